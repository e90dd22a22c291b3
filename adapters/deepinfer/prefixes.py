"""A radix index over stored prefixes that answers "which entry shares most with this prompt".

It belongs to the outside store, not to DeepInfer, which has no look-up of any kind.
"""

from __future__ import annotations

from handoff.index.spans import Seq, common

__all__ = ["Prefixes"]


class _Node:
    """Tokens ``[start, stop)`` of ``seq``; ``entries`` pass or end here, oldest first."""

    __slots__ = ("entries", "kids", "seq", "start", "stop")

    def __init__(self, seq: Seq, start: int, stop: int) -> None:
        self.seq = seq
        self.start = start
        self.stop = stop
        self.kids: dict[int, _Node] = {}
        self.entries: dict[int, None] = {}


class Prefixes:
    """Entries (numbers) under token prefixes, in recency order.

    >>> index = Prefixes(); index.add(1, Seq([5, 6, 7]), 3); index.add(2, Seq([5, 6, 8]), 3)
    >>> index.longest(Seq([5, 6, 8, 9]), 4), index.longest(Seq([5, 6]), 2)
    ((3, 2), (2, 1))
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node(Seq(), 0, 0)

    def longest(self, seq: Seq, stop: int) -> tuple[int, int | None]:
        """Length shared with the best entry, and the oldest entry that shares as much."""
        node, at = self._root, 0
        while at < stop:
            kid = node.kids.get(seq[at])
            if kid is None:
                break
            node = kid
            at += common(seq, at, kid.seq, kid.start, min(stop, kid.stop) - at)
            if at < kid.stop:
                break
        return (at, next(iter(node.entries))) if at else (0, None)

    def add(self, entry: int, seq: Seq, stop: int) -> None:
        """Put ``entry`` under ``seq[:stop]`` as the most recent one; ``seq`` is kept."""
        node, at = self._root, 0
        while at < stop:
            kid = node.kids.get(seq[at])
            if kid is None:
                kid = node.kids[seq[at]] = _Node(seq, at, stop)
            run = common(seq, at, kid.seq, kid.start, min(stop, kid.stop) - at)
            if at + run < kid.stop:
                self._split(kid, at + run)
            kid.entries[entry] = None
            node, at = kid, at + run

    def touch(self, entry: int, seq: Seq, stop: int) -> None:
        """Make an entry the most recent one everywhere on its path."""
        for _, node in self._path(seq, stop):
            del node.entries[entry]
            node.entries[entry] = None

    def remove(self, entry: int, seq: Seq, stop: int) -> None:
        """Take an entry away, with the nodes that only it used."""
        for parent, node in self._path(seq, stop):
            del node.entries[entry]
            if not node.entries:
                del parent.kids[seq[node.start]]
                return

    def _path(self, seq: Seq, stop: int) -> list[tuple[_Node, _Node]]:
        path = []
        node, at = self._root, 0
        while at < stop:
            kid = node.kids[seq[at]]
            path.append((node, kid))
            node, at = kid, kid.stop
        return path

    @staticmethod
    def _split(node: _Node, at: int) -> None:
        """Cut ``node`` at position ``at``: it keeps its head, a kid gets the tail."""
        tail = _Node(node.seq, at, node.stop)
        tail.kids = node.kids
        tail.entries = dict(node.entries)
        node.kids = {node.seq[at]: tail}
        node.stop = at
