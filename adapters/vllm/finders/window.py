"""Sliding window: the longest prefix whose last window is cached; what lies before may be gone."""

from __future__ import annotations

from ..pool import NULL_BLOCK
from ..sizes import cdiv
from .base import Found, Lookup, SpecSet

__all__ = ["blocks_needed", "find_window"]


def blocks_needed(window: int, block_size: int, eagle: bool) -> int:
    """Blocks that must be cached in a row for a hit: the window, and one more under EAGLE."""
    return cdiv(window - 1, block_size) + eagle


def find_window(look: Lookup, wanted: SpecSet, limit: int, drop: bool) -> Found:
    """Scan backwards for a run of cached blocks as long as a window (RULES 5, Sliding window).

    A run that touches block 0 is enough whatever its length. Columns before the run are null.
    """
    size, unit = wanted.spec.block_size, look.unit
    need = blocks_needed(wanted.spec.window, size, drop)
    count = min(limit, look.hashed) // size
    slots: list[tuple[int, ...]] = [(NULL_BLOCK,) * len(wanted.members)] * count
    run = 0
    end = 0
    for column in range(count - 1, -1, -1):
        blocks = look.at(wanted, (column + 1) * size)
        if blocks is None:
            run = 0
            continue
        if run == 0 and size != unit and (column + (not drop)) * size % unit:
            continue  # a hit that ended here would not be aligned
        slots[column] = blocks
        run += 1
        if run >= need:
            end = column + run
            break
    else:
        end = run
        while size != unit and end * size % unit:
            end -= 1
    if drop and end:
        end -= 1
        while end * size % unit:
            end -= 1
    return Found(
        tuple([slot[member] for slot in slots[:end]] for member in range(len(wanted.members))),
        end * size,
    )
