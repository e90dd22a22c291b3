"""Float64 loops that are obviously right: what every kernel is tested against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .segments import Segments

__all__ = ["attend", "copy", "rotate", "scan", "shift", "write", "zero"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def attend(q: Floats, k: Floats, v: Floats, segments: Segments, scale: float) -> Floats:
    """Softmax over the visible keys of each row and head, one key at a time."""
    out = np.zeros_like(q)
    size, group = k.shape[1], q.shape[1] // k.shape[2]
    for s in range(len(segments)):
        begin, end = int(segments.q_start[s]), int(segments.q_start[s + 1])
        for row in range(begin, end):
            p = int(segments.first[s]) + row - begin
            low = int(segments.visible[s])
            if segments.window is not None:
                low = max(low, p - segments.window + 1)
            keys = []
            for j in range(max(low, 0), p + 1):
                at = j - int(segments.origin[s])
                keys.append((int(segments.table[s, at // size]), at % size))
            for head in range(q.shape[1]):
                out[row, head] = _mix(q[row, head], k, v, keys, head // group, scale)
    return out


def _mix(
    query: Floats, k: Floats, v: Floats, keys: list[tuple[int, int]], head: int, scale: float
) -> Floats:
    if not keys:
        return np.zeros_like(query)
    scores = np.array([scale * float(query @ k[block, offset, head]) for block, offset in keys])
    weights = np.exp(scores - scores.max())
    total = np.zeros_like(query)
    for weight, (block, offset) in zip(weights, keys, strict=True):
        total += weight * v[block, offset, head]
    mixed: Floats = total / weights.sum()
    return mixed


def write(k_pages: Floats, v_pages: Floats, k: Floats, v: Floats, slots: Ints) -> None:
    """Row by row; -1 is skipped."""
    size = k_pages.shape[1]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            k_pages[slot // size, slot % size] = k[row]
            v_pages[slot // size, slot % size] = v[row]


def copy(
    sources: Sequence[Floats], destinations: Sequence[Floats], runs: Sequence[tuple[int, int, int]]
) -> None:
    """Slot by slot, out of a copy of the source."""
    for source, destination in zip(sources, destinations, strict=True):
        size = source.shape[1]
        for src, dst, count in runs:
            before = source.copy()
            for at in range(count):
                a, b = src + at, dst + at
                destination[b // size, b % size] = before[a // size, a % size]


def rotate(x: Floats, position: int, theta: float) -> Floats:
    """One vector ``[dim]`` turned by ``position``, pair by pair."""
    out = np.empty_like(x)
    half = len(x) // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
        out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
    return out


def shift(
    pages: Sequence[Floats], runs: Sequence[tuple[int, int]], delta: int, theta: float
) -> None:
    """Turn every key of the runs by ``delta``."""
    for keys in pages:
        size = keys.shape[1]
        for first, count in runs:
            for slot in range(first, first + count):
                for head in range(keys.shape[2]):
                    key = keys[slot // size, slot % size, head]
                    keys[slot // size, slot % size, head] = rotate(key, delta, theta)


def zero(pages: Sequence[Floats], runs: Sequence[tuple[int, int]]) -> None:
    """Slot by slot."""
    for each in pages:
        for first, count in runs:
            for slot in range(first, first + count):
                each[slot // each.shape[1], slot % each.shape[1]] = 0


def scan(decay: Floats, gain: Floats, initial: Floats, q_start: Ints) -> Floats:
    """The recurrence as it is written."""
    out = np.empty_like(gain)
    for row in range(len(q_start) - 1):
        state = initial[row]
        for at in range(int(q_start[row]), int(q_start[row + 1])):
            state = decay[at] * state + gain[at]
            out[at] = state
    return out
