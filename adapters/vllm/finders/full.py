"""Full attention (also MLA and R-SWA): the longest run of cached blocks from the first one on."""

from __future__ import annotations

from ..sizes import cdiv, floor_to
from .base import Found, Lookup, SpecSet

__all__ = ["find_full", "reach_full"]


def find_full(look: Lookup, wanted: SpecSet, limit: int, drop: bool) -> Found:
    """Blocks from 0 on while all groups have them, at most ``limit`` tokens (RULES 5, Full).

    Fine-grained hits may end inside the next block. The EAGLE drop takes one unit.
    """
    size, unit = wanted.spec.block_size, look.unit
    count = min(limit, look.hashed) // size
    blocks: list[list[int]] = []
    for group in wanted.members:
        found = _leading_run(look, group, size, count)
        count = len(found)
        blocks.append(found)
    tokens = count * size
    tail: tuple[int, ...] | None = None
    if unit < size:
        tail, tokens = _tail(look, wanted, tokens, limit)
    if drop and tokens:
        tokens -= min(unit, size)
    tokens = floor_to(tokens, unit)
    columns = cdiv(tokens, size)
    for index, found in enumerate(blocks):
        del found[count:]
        if tail is not None:
            found.append(tail[index])
        del found[columns:]
    return Found(tuple(blocks), tokens)


def reach_full(look: Lookup, wanted: SpecSet, tokens: int) -> int:
    """How many tokens the cached run reaches that is known to hold the first ``tokens``."""
    size = wanted.spec.block_size
    tokens = floor_to(tokens, size)
    while tokens + size <= look.hashed and look.at(wanted, tokens + size) is not None:
        tokens += size
    if look.unit < size:
        return _tail(look, wanted, tokens, look.hashed)[1]
    return tokens


def _leading_run(look: Lookup, group: int, size: int, count: int) -> list[int]:
    get = look.pool.index.get
    found: list[int] = []
    for run in look.keys.runs(group, size, 0, count):
        for key in run:
            block = get(key)
            if block is None:
                return found
            found.append(block if type(block) is int else block[0])  # type: ignore[index]
    return found


def _tail(
    look: Lookup, wanted: SpecSet, tokens: int, limit: int
) -> tuple[tuple[int, ...] | None, int]:
    """The longest cached prefix that ends inside the next block, and its length."""
    unit = look.unit
    longest = min(tokens + wanted.spec.block_size - unit, floor_to(limit, unit), look.hashed)
    for length in range(longest, tokens, -unit):
        blocks = look.at(wanted, length)
        if blocks is not None:
            return blocks, length
    return None, tokens
