"""Free lists of the slot pools: which id is handed out next (rule 5).

A *block* is one slot when the page size is 1, else one page. Block 0 is padding and never handed
out. Sources: ``mem_cache/allocator/token.py``, ``paged.py``.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocks", "FreeList"]

Blocks = NDArray[np.int32]
"""Block ids in the order of positions; views are shared, never written in place."""


class FreeList:
    """Guarantees upstream's order of ids.

    Single slots are a FIFO queue: frees join at the end. Pages are a stack: frees go to the front
    (rule 5, "Slots"). Frees between ``hold`` and ``release`` become available together, pages as
    one group in call order.
    """

    __slots__ = ("_held", "_lifo", "_runs", "num_free")

    def __init__(self, num_blocks: int, *, lifo: bool) -> None:
        self._runs: deque[Blocks] = deque((np.arange(1, num_blocks + 1, dtype=np.int32),))
        self._lifo = lifo
        self._held: list[Blocks] | None = None
        self.num_free = num_blocks
        """Blocks that can be taken now; held frees do not count."""

    def take(self, count: int) -> Blocks:
        """The next ``count`` blocks; there must be that many."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        self.num_free -= count
        runs, out = self._runs, []
        while count > 0:
            run = runs[0]
            if len(run) <= count:
                out.append(runs.popleft())
                count -= len(run)
            else:
                out.append(run[:count])
                runs[0] = run[count:]
                count = 0
        if len(out) == 1:
            return out[0]
        return np.concatenate(out) if out else np.empty(0, dtype=np.int32)

    def give(self, blocks: Blocks) -> None:
        """Blocks go back; their content lives until they are handed out again."""
        if not len(blocks):
            return
        if self._held is not None:
            self._held.append(blocks)
            return
        self.num_free += len(blocks)
        if self._lifo:
            self._runs.appendleft(blocks)
        else:
            self._runs.append(blocks)

    def hold(self) -> None:
        """Collect frees instead of making them available (while a batch result is processed)."""
        assert self._held is None
        self._held = []

    def release(self) -> None:
        """Make the collected frees available."""
        held, self._held = self._held, None
        assert held is not None
        if held:
            self.give(np.concatenate(held))

    def ids(self) -> Blocks:
        """The free blocks in the order in which they will be handed out."""
        return np.concatenate(tuple(self._runs)) if self._runs else np.empty(0, dtype=np.int32)
