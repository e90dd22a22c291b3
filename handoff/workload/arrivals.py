"""When a request reaches the server: by the clock, or by what happened to another request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from handoff.errors import BadInput
from handoff.types import Request

__all__ = ["Arrival", "When"]


@dataclass(frozen=True, slots=True)
class When:
    """The condition under which an arrival happens.

    * ``start``: at ``Request.arrival`` seconds.
    * ``after``: once ``target`` has finished (and, if nothing else runs, the engine is idle).
    * ``with``: together with ``target``, behind it.
    * ``during_decode``: once ``target`` has ``count`` output tokens.
    """

    kind: Literal["start", "after", "with", "during_decode"] = "start"
    target: str = ""
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> When:
        """``start``, ``after:x``, ``with:x``, ``during_decode:x`` or ``during_decode:x@n``."""
        kind, _, rest = text.partition(":")
        if kind == "start" and not rest:
            return cls()
        if kind in ("after", "with") and rest:
            return cls(kind, rest)  # type: ignore[arg-type]
        if kind == "during_decode" and rest:
            target, _, count = rest.partition("@")
            if not count or (count.isdecimal() and int(count) >= 1):
                return cls("during_decode", target, int(count or 1))
        raise BadInput(
            f"when {text!r} is none of start, after:ID, with:ID, during_decode:ID, "
            "during_decode:ID@N"
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, or an action on the server (``reset_prefix_cache`` ...), and its condition."""

    id: str
    when: When
    request: Request | None = None
    action: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
