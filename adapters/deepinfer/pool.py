"""One pool of ids with reference counts and a first-in-first-out free list.

Blocks and states use the same class, as upstream does (RULES 2.1; csrc/engine/block_manager.hpp).
The pool knows no cached content: nothing is evicted, nothing is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal

from handoff.store.blocks import BlockPool

__all__ = ["Pool", "Verdict"]

Verdict = Literal["OK", "LATER", "NEVER"]


class Pool:
    """Ids ``1 .. size - 1``; id 0 is never handed out.

    >>> pool = Pool(5); pool.allocate(3), pool.release([1, 2, 3]), list(pool.free)
    ([1, 2, 3], [3, 2, 1], [4, 3, 2, 1])
    """

    __slots__ = ("counts", "free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: deque[int] = deque(range(1, size))
        self.counts = BlockPool(size)

    def can_allocate(self, number: int) -> Verdict:
        """Whether ``number`` ids can be had now, later or never (RULES 2.1)."""
        if number >= self.size:
            return "NEVER"
        return "OK" if number <= len(self.free) else "LATER"

    def allocate(self, number: int) -> list[int]:
        """``number`` ids from the head of the free list, one reference each."""
        ids = [self.free.popleft() for _ in range(number)]
        for ident in ids:
            self.counts.take(ident)
        return ids

    def share(self, ids: Iterable[int]) -> None:
        """One more reference to each id (fork, pin); a free id cannot be pinned."""
        for ident in ids:
            assert self.counts.counts[ident] > 0, f"id {ident} is free and cannot be shared"
            self.counts.share(ident)

    def release(self, ids: Sequence[int]) -> list[int]:
        """One reference less to each id, **last id first**; returns those that became free."""
        freed = [ident for ident in reversed(ids) if self.counts.drop(ident)]
        self.free.extend(freed)
        return freed

    @property
    def above_watermark(self) -> bool:
        """Usage beyond 90 %, id 0 and pins included (RULES 2.1, 3.1).

        Upstream compares 32-bit floats; for pools below 1.6 million ids integers say the same.
        """
        return 10 * (self.size - len(self.free)) > 9 * self.size
