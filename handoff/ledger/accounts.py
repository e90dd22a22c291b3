"""Accounts under way: a request over its admissions, and what the rows of each of them did."""

from __future__ import annotations

from dataclasses import dataclass, field

from handoff.types import Handoff, Request, Row, RowResult

from .classes import Shared
from .seen import Live

__all__ = ["Account", "Admission", "overhead"]


@dataclass(slots=True)
class Admission:
    """One Handoff and what its rows did; FLOPs and bytes of prompt positions."""

    handoff: Handoff
    shared: Shared
    live: Live
    queue_s: float
    computed: int = 0
    recomputed: int = 0
    overhead: int = 0
    flops: int = 0
    read: int = 0
    written: int = 0
    tainted: int = 0
    ttft_s: float = 0.0


@dataclass(slots=True)
class Account:
    """One request (or branch of one) over all its admissions."""

    request: Request | None
    submitted: float
    admissions: list[Admission] = field(default_factory=list)
    frontier: int = 0  # positions below it were granted or computed once
    outputs: int = 0
    refused: str | None = None
    aborted: bool = False


def overhead(row: Row, found: RowResult, known: int) -> int:
    """Positions of a row that belong to no content: rejected drafts, padding, an extra step."""
    if row.emits == 0:
        return 0
    if not found.tokens:
        return max(0, row.stop - max(row.start, known))
    return max(0, row.drafts - (len(found.tokens) - 1))
