"""Reference counts of the ids of one pool, and nothing else.

There is no free list: in which order idle ids are taken is policy and belongs to the adapter.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool"]


class BlockPool:
    """Counts holders of the ids ``0 .. num_blocks - 1``; what "holder" means is the owner's.

    >>> pool = BlockPool(4); pool.take(2); pool.share(2); pool.drop(2), pool.drop(2)
    (False, True)
    """

    __slots__ = ("counts", "num_held")

    def __init__(self, num_blocks: int) -> None:
        self.counts = [0] * num_blocks
        self.num_held = 0
        """Number of ids with at least one holder."""

    def __len__(self) -> int:
        return len(self.counts)

    def take(self, block: int) -> None:
        """First holder of an idle id."""
        assert self.counts[block] == 0, f"block {block} has {self.counts[block]} holders"
        self.counts[block] = 1
        self.num_held += 1

    def share(self, block: int) -> None:
        """One more holder (of an idle id whose content lives, too)."""
        if self.counts[block] == 0:
            self.num_held += 1
        self.counts[block] += 1

    def drop(self, block: int) -> bool:
        """One holder less; True if that was the last."""
        count = self.counts[block] - 1
        assert count >= 0, f"block {block} has no holder"
        self.counts[block] = count
        if count == 0:
            self.num_held -= 1
            return True
        return False

    def take_many(self, blocks: Iterable[int]) -> None:
        """``take`` for each."""
        counts = self.counts
        number = 0
        for block in blocks:
            assert counts[block] == 0, f"block {block} has {counts[block]} holders"
            counts[block] = 1
            number += 1
        self.num_held += number

    def share_many(self, blocks: Iterable[int]) -> list[int]:
        """``share`` for each; those that were idle before, in order."""
        counts = self.counts
        idle = []
        for block in blocks:
            if not counts[block]:
                idle.append(block)
            counts[block] += 1
        self.num_held += len(idle)
        return idle

    def drop_many(self, blocks: Iterable[int]) -> list[int]:
        """``drop`` for each; those that lost their last holder, in order."""
        counts = self.counts
        idle = []
        for block in blocks:
            count = counts[block] = counts[block] - 1
            if count:
                assert count > 0, f"block {block} has no holder"
            else:
                idle.append(block)
        self.num_held -= len(idle)
        return idle

    def check(self, held: dict[int, int]) -> None:
        """Asserts that exactly the ids of ``held`` have holders, in these numbers."""
        for block, count in enumerate(self.counts):
            assert count == held.get(block, 0), f"block {block}: {count} != {held.get(block, 0)}"
        assert self.num_held == sum(1 for count in held.values() if count)
