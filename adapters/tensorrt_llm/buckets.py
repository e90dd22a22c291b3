"""Iteration order of a C++ ``std::unordered_map`` (libstdc++): it decides ties between siblings.

(RULES 13.) One list in which the elements of a bucket stand together. A new element goes to the
front of its bucket's run, the first of a bucket to the head of the list. Growth re-inserts all
elements in list order; the bucket count never shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BucketOrder"]

T = TypeVar("T")

_GROWTH = (
    *(1, 13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933),
    *(351061, 712697, 1447153, 2938679, 5967347),
)
"""Bucket counts in turn; an insertion that would exceed the count takes the next."""


class BucketOrder(Generic[T]):
    """Order of the elements of one map, worked out only when somebody asks.

    ``insert`` and ``erase`` are O(1); ``ranked`` replays what happened since it last ran.

    >>> order = BucketOrder(lambda x: x)
    >>> for x in (26, 1, 13): order.insert(x)
    >>> order.ranked()
    [1, 13, 26]
    """

    __slots__ = ("_count", "_growth", "_hash", "_log", "_runs")

    def __init__(self, hash_of: Callable[[T], int]) -> None:
        self._hash = hash_of
        self._growth = 0
        self._count = 0
        # Runs and elements stand in order of insertion: the list order is both reversed.
        self._runs: dict[int, list[tuple[int, T]]] = {}
        self._log: list[tuple[T, bool]] = []

    def insert(self, element: T) -> None:
        """The map gained ``element``."""
        self._log.append((element, True))

    def erase(self, element: T) -> None:
        """The map lost ``element``."""
        self._log.append((element, False))

    def ranked(self) -> list[T]:
        """The elements in iteration order."""
        for element, gained in self._log:
            number = self._hash(element)
            if gained:
                self._grow()
                self._place(number, element)
            else:
                self._drop(number, element)
        self._log.clear()
        return [element for _, element in self._listed()]

    def _listed(self) -> list[tuple[int, T]]:
        return [pair for run in reversed(self._runs.values()) for pair in reversed(run)]

    def _place(self, number: int, element: T) -> None:
        self._runs.setdefault(number % _GROWTH[self._growth], []).append((number, element))
        self._count += 1

    def _drop(self, number: int, element: T) -> None:
        bucket = number % _GROWTH[self._growth]
        self._runs[bucket].remove((number, element))
        if not self._runs[bucket]:
            del self._runs[bucket]
        self._count -= 1

    def _grow(self) -> None:
        if self._count < _GROWTH[self._growth]:
            return
        pairs = self._listed()
        self._growth += 1
        self._runs, self._count = {}, 0
        for number, element in pairs:
            self._place(number, element)
