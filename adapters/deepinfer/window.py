"""Sliding-window rings: where a position lives, what is loaded before a prefill, what a row sees.

One state is one ring of ``SB = W + backtrack (+ extra)`` positions for each half of the model;
position p lives at offset ``p % SB`` (RULES 5; csrc/engine/input_metadata/*.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Ints",
    "Place",
    "decode_window",
    "history",
    "lowest_visible",
    "pivots",
    "ring_writes",
]

Ints = NDArray[np.int64]


def ring_writes(state: int, start: int, stop: int, ring: int) -> Ints:
    """Slots written by the rows ``[start, stop)``; -1 where a later row takes the place."""
    positions = np.arange(start, stop)
    slots = state * ring + positions % ring
    slots[stop - positions > ring] = -1
    return slots


def history(
    state: int, start: int, valid_start: int, window: int, ring: int, dst: int
) -> Iterator[tuple[int, int, int, int]]:
    """Load rows ``(source state or -1 for zeros, from, to, dst)`` of exactly W tokens before a row.

    Zeros stand for positions below 0 or below the valid start; ring reads are cut at the wrap.
    """
    begin = start - window
    pad = min(max(valid_start - begin, 0), window)
    while pad:
        piece = min(pad, ring)
        yield -1, 0, piece, dst
        dst, pad, begin = dst + piece, pad - piece, begin + piece
    while begin < start:
        offset = begin % ring
        piece = min(start - begin, ring - offset)
        yield state, offset, offset + piece, dst
        dst, begin = dst + piece, begin + piece


class Place(NamedTuple):
    """Where one sequence's tokens lie among all keys of a step: history first, then own rows.

    ``before``: history tokens of earlier sequences; ``own``: first own row of this sequence among
    all keys (negative shifts are allowed: rows that were left out do not count).
    """

    before: int
    own: int


def pivots(start: int, window: int, lows: Ints, at: Place) -> Ints:
    """``[history at, history count, own at, own count]`` of each row from ``start`` on.

    ``lows`` is the lowest visible position of each row (RULES 5, 6).
    """
    rows = np.arange(len(lows))
    slot = np.minimum(lows, start) - (start - window)
    skipped = np.maximum(lows - start, 0)
    own = rows - skipped + 1
    return np.stack((at.before + slot, window - slot, at.own + skipped, own), axis=1)


def lowest_visible(start: int, stop: int, window: int, floor: int) -> Ints:
    """First position each row sees: the window's edge, not below ``floor``, at most one past it."""
    positions = np.arange(start, stop)
    return np.clip(np.maximum(positions - window + 1, floor), 0, positions + 1)


def decode_window(state: int, position: int, window: int, ring: int) -> tuple[int, int]:
    """``(first slot, count)`` of a decode row's window; the valid start is ignored (RULES 5)."""
    count = min(position + 1, window)
    return state * ring + (position - count + 1) % ring, count
