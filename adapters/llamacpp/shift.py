"""Context shift: what a full slot keeps and discards (RULES 10)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ContextShift", "plan_shift"]


class ContextShift(NamedTuple):
    """Positions ``[keep, keep + discard)`` go, the rest moves down by ``discard``."""

    keep: int
    left: int
    discard: int


def plan_shift(
    length: int, num_prompt: int, limit: int, keep: int, discard: int, add_bos: bool
) -> ContextShift:
    """The shift of a list of ``length`` tokens in a slot of ``limit``.

    ``keep`` < 0 keeps the prompt; ``discard`` 0 discards half of what is not kept.
    """
    kept = (num_prompt if keep < 0 else keep) + int(add_bos)
    kept = min(limit - 4, kept)
    left = length - kept
    wanted = discard or left // 2
    return ContextShift(kept, left, min(max(wanted, 0), max(0, left - 1)))
