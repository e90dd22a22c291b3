"""A sequence as the engine sees it: tokens, how many have KV, its table and its state.

The fields are upstream's (RULES "Symbols"; csrc/engine/sequence.hpp); ``Grant`` adds what the
Handoff tells about where a hit came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from handoff.index.spans import Seq
from handoff.types import Deduction

__all__ = ["Grant", "Sequence", "Status"]


class Status(Enum):
    """Where a sequence stands; names as upstream logs them."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    FINISHED_STOPPED = "FINISHED_STOPPED"
    FINISHED_LENGTH_CAPPED = "FINISHED_LENGTH_CAPPED"
    FINISHED_ABORTED = "FINISHED_ABORTED"
    FINISHED_IGNORED = "FINISHED_IGNORED"
    FINISHED_PREEMPTED = "FINISHED_PREEMPTED"

    @property
    def finished(self) -> bool:
        """Whether the sequence will not run again."""
        return self not in (Status.WAITING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Grant:
    """Where the tokens that are ready at admission came from; nothing for a plain prompt.

    ``raw`` is the longest prefix the matcher knew, ``deductions`` lead from there to ``hit``.
    """

    raw: int = 0
    hit: int = 0
    deductions: tuple[Deduction, ...] = ()
    matcher: str = "nobody: no tree, no lookup, every prompt starts cold"
    references: str = "private blocks and a private state"
    external: bool = False
    unsound: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt (or fork) and its progress.

    * ``num_tokens`` (num): tokens whose KV is ready; ``inflight`` rows of Steps not yet answered.
    * ``table``: block ids by column; ``state``: ring id, 0 = none yet, stale after a free.
    * ``valid_start`` (vs): first position whose window KV may be seen in prefill.
    * ``branch``: a leading ``_`` asks for private copies before the first row (RULES 2.4).
    * ``drafts``: drafts held for the next row (``None`` values are padding).
    """

    id: str
    request_id: str
    tokens: Seq
    prompt_len: int
    max_tokens: int
    branch: str = ""
    lora: str | None = None
    num_tokens: int = 0
    inflight: int = 0
    launched: int = 0
    table: list[int] = field(default_factory=list)
    state: int = -1
    valid_start: int = 0
    cached_hit_tokens: int = 0
    status: Status = Status.WAITING
    schedulable: bool = True
    checkpoints: list[int] = field(default_factory=list)
    forced: int | None = None
    drafts: tuple[int, ...] = ()
    rates: tuple[float, ...] | None = None
    previous_rates: tuple[float, ...] | None = None
    published: bool = False
    grant: Grant = Grant()
    seq: int = -1
    attempt: int = 0
    announced: bool = False
    copied: tuple[tuple[int, int, int], ...] = ()
    is_probe: bool = False

    @property
    def length(self) -> int:
        """Tokens known: prompt and generated."""
        return len(self.tokens)

    @property
    def num_outputs(self) -> int:
        """Tokens generated so far; restarts at 0 in a fork."""
        return len(self.tokens) - self.prompt_len

    def need(self, block_size: int) -> int:
        """Blocks for everything known, in flight and drafted (RULES 2.1)."""
        return -(-(self.length + self.inflight + len(self.drafts)) // block_size)

    def restart(self) -> None:
        """Forget what preemption takes: the hit, the valid start, drafts (RULES 4)."""
        self.status = Status.WAITING
        self.num_tokens = self.valid_start = self.inflight = self.launched = 0
        self.drafts = ()
        self.rates = self.previous_rates = None
        self.published = False
        self.grant = Grant()
        self.attempt += 1
        self.announced = False
        self.copied = ()

    def finish(self, status: Status) -> None:
        """End the sequence, unless something ended it before."""
        if not self.status.finished:
            self.status = status

    def mark_unsound(self, rule: str) -> None:
        """Note in the Handoff that upstream reads what a cold run would not hold."""
        self.grant = replace(self.grant, unsound=(*self.grant.unsound, rule))
