"""Recency orders over integer ids: a linked queue with removal in the middle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

__all__ = ["LinkedQueue"]

_OUT = -2  # marks an id that is not linked


class LinkedQueue:
    """A doubly linked queue of the ids ``0 .. capacity - 1``; every operation is O(1).

    >>> q = LinkedQueue(5, [1, 2, 3]); q.remove(2); q.push_front(4); list(q), q.front()
    ([4, 1, 3], 4)
    """

    __slots__ = ("_next", "_prev", "_size")

    def __init__(self, capacity: int, ids: Iterable[int] = ()) -> None:
        # Index `capacity` is the sentinel: its next is the front, its prev the back.
        self._next = [_OUT] * capacity + [capacity]
        self._prev = [_OUT] * capacity + [capacity]
        self._size = 0
        for ident in ids:
            self.push_back(ident)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, ident: int) -> bool:
        return self._next[ident] != _OUT

    def __iter__(self) -> Iterator[int]:
        end = len(self._next) - 1
        at = self._next[end]
        while at != end:
            yield at
            at = self._next[at]

    def front(self) -> int:
        """The first id; ``IndexError`` if there is none."""
        if not self._size:
            raise IndexError("empty queue")
        return self._next[-1]

    def push_back(self, ident: int) -> None:
        """Link an id behind the last one."""
        self._link(ident, self._prev[-1], len(self._next) - 1)

    def push_front(self, ident: int) -> None:
        """Link an id before the first one."""
        self._link(ident, len(self._next) - 1, self._next[-1])

    def remove(self, ident: int) -> None:
        """Unlink an id wherever it stands."""
        before, after = self._prev[ident], self._next[ident]
        assert after != _OUT, f"{ident} is not in the queue"
        self._next[before] = after
        self._prev[after] = before
        self._next[ident] = self._prev[ident] = _OUT
        self._size -= 1

    def pop_front_many(self, count: int) -> list[int]:
        """Remove and return the first ``count`` ids; ``IndexError`` if there are fewer."""
        if count > self._size:
            raise IndexError("queue too short")
        after, before = self._next, self._prev
        ids = []
        at = after[-1]
        for _ in range(count):
            ids.append(at)
            follower = after[at]
            after[at] = before[at] = _OUT
            at = follower
        after[-1] = at
        before[at] = len(after) - 1
        self._size -= count
        return ids

    def remove_many(self, ids: Sequence[int]) -> None:
        """Unlink ids wherever they stand."""
        followers, leaders = self._next, self._prev
        for ident in ids:
            before, after = leaders[ident], followers[ident]
            assert after != _OUT, f"{ident} is not in the queue"
            followers[before] = after
            leaders[after] = before
            followers[ident] = leaders[ident] = _OUT
        self._size -= len(ids)

    def push_back_many(self, ids: Sequence[int]) -> None:
        """Link ids behind the last one, in their order."""
        self._link_many(ids, self._prev[-1], len(self._next) - 1)

    def push_front_many(self, ids: Sequence[int]) -> None:
        """Link ids before the first one, in their order: ``ids[0]`` becomes the front."""
        self._link_many(ids, len(self._next) - 1, self._next[-1])

    def _link_many(self, ids: Sequence[int], last: int, end: int) -> None:
        after, before = self._next, self._prev
        for ident in ids:
            assert after[ident] == _OUT, f"{ident} is in the queue already"
            after[last] = ident
            before[ident] = last
            last = ident
        after[last] = end
        before[end] = last
        self._size += len(ids)

    def _link(self, ident: int, before: int, after: int) -> None:
        assert self._next[ident] == _OUT, f"{ident} is in the queue already"
        self._next[ident] = after
        self._prev[ident] = before
        self._next[before] = ident
        self._prev[after] = ident
        self._size += 1
