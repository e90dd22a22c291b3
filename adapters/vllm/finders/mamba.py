"""Mamba in align mode: the last recurrent state that was kept."""

from __future__ import annotations

import math

from ..pool import NULL_BLOCK
from ..sizes import cdiv, floor_to
from .base import Found, Lookup, SpecSet

__all__ = ["find_mamba"]


def find_mamba(look: Lookup, wanted: SpecSet, limit: int, drop: bool) -> Found:
    """The largest aligned prefix whose state is cached; EAGLE never drops here (RULES 5)."""
    size, unit = wanted.spec.block_size, look.unit
    step = unit if unit < size else math.lcm(size, unit)
    for length in range(floor_to(min(limit, look.hashed), step), 0, -step):
        blocks = look.at(wanted, length)
        if blocks is not None:
            holes = [NULL_BLOCK] * (cdiv(length, size) - 1)
            return Found(tuple([*holes, block] for block in blocks), length)
    return Found(tuple([] for _ in wanted.members), 0)
