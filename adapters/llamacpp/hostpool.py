"""Ids of host cells for serialized copies: RAM cache entries, checkpoints, slot files."""

from __future__ import annotations

from bisect import bisect_right, insort

from handoff.errors import Unsupported

__all__ = ["HostPool"]


class HostPool:
    """Hands out runs of the ids ``0 .. size - 1``, lowest first.

    Upstream allocates host memory by the byte; ids only give these bytes an address. ``size`` is
    an upper bound, and running out of it is an error, never a changed decision.

    >>> pool = HostPool("host", 10); pool.take(4), pool.take(2), pool.give([(0, 4)]), pool.take(6)
    ([(0, 4)], [(4, 2)], None, [(0, 4), (6, 2)])
    """

    __slots__ = ("_free", "name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)] if size else []

    def take(self, count: int) -> list[tuple[int, int]]:
        """Runs ``(first, count)`` with ``count`` ids together."""
        found: list[tuple[int, int]] = []
        while count:
            if not self._free:
                raise Unsupported(f"pool {self.name} of {self.size} host cells is too small")
            first, length = self._free[0]
            part = min(length, count)
            found.append((first, part))
            count -= part
            if part == length:
                del self._free[0]
            else:
                self._free[0] = (first + part, length - part)
        return found

    def give(self, runs: list[tuple[int, int]]) -> None:
        """Ids come back."""
        for first, count in runs:
            at = bisect_right(self._free, (first, 0))
            if at < len(self._free) and first + count == self._free[at][0]:
                count += self._free.pop(at)[1]
            if at and sum(self._free[at - 1]) == first:
                first, before = self._free.pop(at - 1)
                count += before
            insort(self._free, (first, count))

    @property
    def num_free(self) -> int:
        """Ids not handed out."""
        return sum(count for _, count in self._free)
