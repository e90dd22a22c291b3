"""Serialized copies of a sequence, as RAM entries, checkpoints and slot files hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CELL_BYTES", "SEQ_BYTES", "Part", "Saved", "cache_bytes", "zip_runs"]

SEQ_BYTES = 8
"""Head of a serialized sequence (RULES 8.4)."""
CELL_BYTES = 12
"""What a cell costs beside its keys and values."""


@dataclass(frozen=True, slots=True)
class Part:
    """A serialized copy of one group: positions in saved order, and where they lie."""

    group: str
    positions: list[int]
    host: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Saved:
    """A serialized sequence: all groups, or only what a checkpoint takes (window or state)."""

    parts: tuple[Part, ...]
    num_bytes: int


def cache_bytes(cells: int, layers: int, bytes_per_token: int, streams: int) -> int:
    """Bytes of one serialized cache of ``cells`` cells (RULES 8.4)."""
    return 20 + 4 * streams + 24 * layers + cells * (CELL_BYTES + bytes_per_token)


def zip_runs(
    sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]
) -> tuple[tuple[int, int, int], ...]:
    """Runs ``(source, target, count)`` that pair two lists of runs in order.

    >>> zip_runs([(5, 3)], [(0, 2), (9, 1)])
    ((5, 0, 2), (7, 9, 1))
    """
    found: list[tuple[int, int, int]] = []
    left, right = iter(sources), iter(targets)
    source, more = next(left, (0, 0))
    target, room = next(right, (0, 0))
    while more and room:
        count = min(more, room)
        found.append((source, target, count))
        source, more, target, room = source + count, more - count, target + count, room - count
        if not more:
            source, more = next(left, (0, 0))
        if not room:
            target, room = next(right, (0, 0))
    return tuple(found)
