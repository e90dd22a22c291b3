"""What ``attend`` is told about a batch: flat arrays of numbers, never a mode."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Query rows in runs of consecutive positions over block tables.

    Row ``t`` of segment ``s`` (rows ``q_start[s] .. q_start[s + 1] - 1``) stands at position
    ``p = first[s] + t`` and sees the keys ``max(visible[s], p - window + 1) .. p``. The key of
    position ``j`` lies in block ``table[s, (j - origin[s]) // block_size]`` at offset
    ``(j - origin[s]) % block_size``; ``origin`` is a multiple of the block size, at or below the
    first key that a row of the segment sees. Entries beyond a segment's last key are -1. A row that
    sees nothing gives 0.

    Rings, holes left of a window and chunked-local attention are resolved by the plan builder: here
    every table is a plain run of columns.
    """

    q_start: Ints
    first: Ints
    origin: Ints
    visible: Ints
    table: Ints
    window: int | None = None
    cache: dict[str, object] = field(default_factory=dict, compare=False, repr=False)
    """Whatever a device path derives from the arrays once a step (copies on the device, tiles)."""

    def __len__(self) -> int:
        return len(self.first)

    @property
    def counts(self) -> Ints:
        """Query rows of each segment."""
        return np.diff(self.q_start)

    @property
    def lowest(self) -> Ints:
        """First position that some row of each segment sees (may lie beyond its last row)."""
        edge = self.visible if self.window is None else self.first - self.window + 1
        return np.maximum(np.maximum(edge, self.visible), 0)

    def apart(self) -> Segments:
        """The same rows, each a segment of its own."""
        of = np.repeat(np.arange(len(self)), self.counts)
        rows = np.arange(len(of))
        return Segments(
            q_start=np.arange(len(of) + 1),
            first=self.first[of] + rows - self.q_start[of],
            origin=self.origin[of],
            visible=self.visible[of],
            table=self.table[of],
            window=self.window,
        )

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs: the number that attention FLOPs count."""
        total = 0
        for first, count, visible in zip(self.first, self.counts, self.visible, strict=True):
            at = np.arange(first, first + count)
            low = np.full(count, visible)
            if self.window is not None:
                low = np.maximum(low, at - self.window + 1)
            total += int(np.maximum(at + 1 - np.maximum(low, 0), 0).sum())
        return total
