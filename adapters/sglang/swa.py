"""Sliding-window KV beside full KV on the same tree (rule 7, hybrid).

A node whose window KV is gone is a *tombstone*. Sources:
``mem_cache/unified_cache/components/swa_component.py``, ``allocator/swa.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from .node import Link, Node, RecencyList
from .slots import Blocks, FreeList

__all__ = ["Windows"]


class Windows:
    """Guarantees which nodes hold window KV, which of it is locked, and in what order it leaves.

    ``evictable`` and ``protected`` count live units outside and under a window lock.
    """

    def __init__(self, window: int, page: int, free: FreeList) -> None:
        self.window = window
        self.page = page
        self.free = free
        self.recency = RecencyList()
        self.evictable = 0
        self.protected = 0
        self._marks = 0

    def ceil(self, units: int) -> int:
        """``units`` rounded up to whole pages."""
        return -(-units // self.page) * self.page

    # -- matching -------------------------------------------------------------------------------

    def accept(self, path: list[Node], units: int, *, host: bool) -> int:
        """How many nodes of ``path`` may be hit: the last must end a live run of >= one window.

        Only ``units`` of the path count. A path that is live from the root needs no full window.
        ``host``: copies on the host count as live, else only nodes wholly on the device do.
        """
        run: float = float("inf")
        accepted = 0
        for index, node in enumerate(path, 1):
            if not host and node.blocks is None:
                break
            if node.window is None and not (host and node.host_window is not None):
                run = 0
            else:
                run += min(node.stop, units) - node.start
                if run >= self.window:
                    accepted = index
        return accepted

    def seen(self, end: Node) -> list[Node]:
        """The nodes that cover one window upward from ``end``, lowest first."""
        nodes, covered, node = [], 0, end
        while node.parent is not None and covered < self.window:
            nodes.append(node)
            covered += node.length
            node = node.parent
        return nodes

    def refresh(self, end: Node) -> None:
        """Nodes covering window + page upward from ``end`` become newest, ``end`` newest of all."""
        nodes, covered, node = [], 0, end
        while node.parent is not None and covered < self.window + self.page:
            nodes.append(node)
            covered += node.length
            node = node.parent
        for node in reversed(nodes):
            if node.window_link is not None:
                self.recency.renew(node.window_link)

    # -- life of window KV ----------------------------------------------------------------------

    def revive(self, node: Node, blocks: Blocks) -> None:
        """A tombstone (or new leaf) gets window KV; it enters as newest."""
        assert node.window is None and len(blocks) * self.page == node.length
        node.window = blocks
        node.window_link = Link(node)
        self.recency.add_newest(node.window_link)
        if node.window_lock:
            self.protected += node.length
        else:
            self.evictable += node.length

    def bury(self, node: Node) -> Blocks:
        """The node becomes a tombstone; returns its window blocks."""
        blocks, link = node.window, node.window_link
        assert blocks is not None and link is not None and node.window_lock == 0
        node.window = node.window_link = None
        self.recency.remove(link)
        self.evictable -= node.length
        return blocks

    def split(self, upper: Node, lower: Node) -> None:
        """Cut window KV; the upper part takes the mark and is the older neighbour."""
        upper.window_lock = lower.window_lock
        upper.mark, lower.mark = lower.mark, None
        if lower.window is not None and lower.window_link is not None:
            blocks = upper.length // self.page
            upper.window, lower.window = lower.window[:blocks], lower.window[blocks:]
            upper.window_link = Link(upper)
            self.recency.add_older(upper.window_link, lower.window_link)

    # -- locks ----------------------------------------------------------------------------------

    def lock(self, end: Node) -> int | None:
        """Hold at least one window upward from ``end``; returns the mark of the upper end.

        ``None``: the path is shorter, everything up to the root is held.
        """
        covered, node = 0, end
        while node.parent is not None:
            if node.window_lock == 0 and node.window is not None:
                self.evictable -= node.length
                self.protected += node.length
            node.window_lock += 1
            covered += node.length
            if covered >= self.window:
                if node.mark is None:
                    self._marks += 1
                    node.mark = self._marks
                return node.mark
            node = node.parent
        return None

    def unlock(self, end: Node, mark: int | None) -> None:
        """Undo the ``lock`` that returned ``mark``."""
        node = end
        while node.parent is not None:
            node.window_lock -= 1
            assert node.window_lock >= 0, "window unlocked more often than locked"
            if node.window_lock == 0 and node.window is not None:
                self.evictable += node.length
                self.protected -= node.length
            if mark is not None and node.mark == mark:
                return
            node = node.parent

    def top(self, end: Node, mark: int | None) -> int:
        """First position of the nodes that a lock of ``end`` with ``mark`` holds."""
        node = end
        while node.parent is not None and (mark is None or node.mark != mark):
            node = node.parent
        return node.start

    def unlocked(self) -> Iterable[Node]:
        """Nodes with window KV that no window lock holds, oldest first."""
        return (node for node in self.recency if node.window_lock == 0)
