"""Chunked local attention: only the current chunk must be cached."""

from __future__ import annotations

from ..pool import NULL_BLOCK
from ..sizes import floor_to
from .base import Found, Lookup, SpecSet

__all__ = ["find_local"]


def find_local(look: Lookup, wanted: SpecSet, limit: int, drop: bool) -> Found:
    """Blocks before the chunk of ``limit`` count as computed; then the cached run (RULES 5)."""
    assert not drop, "upstream asserts that chunked local attention is no EAGLE group"
    size = wanted.spec.block_size
    first = floor_to(limit, wanted.spec.chunk) // size
    slots: list[tuple[int, ...]] = [(NULL_BLOCK,) * len(wanted.members)] * first
    for column in range(first, min(limit, look.hashed) // size):
        blocks = look.at(wanted, (column + 1) * size)
        if blocks is None:
            break
        slots.append(blocks)
    return Found(
        tuple([slot[member] for slot in slots] for member in range(len(wanted.members))),
        len(slots) * size,
    )
