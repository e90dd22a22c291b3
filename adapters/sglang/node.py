"""One node of the radix tree: a span of one sequence and where its KV lives (rules 0, 2)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from handoff.index.spans import Seq

from .slots import Blocks

__all__ = ["Link", "Node", "RecencyList"]


class Link:
    """A place in a ``RecencyList``."""

    __slots__ = ("newer", "node", "older")

    def __init__(self, node: Node | None) -> None:
        self.node = node
        self.older: Link = self
        self.newer: Link = self


class RecencyList:
    """Nodes from oldest to newest, with insertion beside a given node."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = Link(None)  # its newer neighbour is the oldest node, its older one the newest

    def add_newest(self, link: Link) -> None:
        """Link a node as the newest."""
        self._insert(link, self._end.older)

    def add_older(self, link: Link, than: Link) -> None:
        """Link a node right behind (older than) another one."""
        self._insert(link, than.older)

    def renew(self, link: Link) -> None:
        """Make a linked node the newest."""
        self.remove(link)
        self.add_newest(link)

    def remove(self, link: Link) -> None:
        """Unlink a node."""
        link.older.newer = link.newer
        link.newer.older = link.older
        link.older = link.newer = link

    def __iter__(self) -> Iterator[Node]:
        """Nodes from the oldest on; the node just yielded may be removed while iterating."""
        link = self._end.newer
        while link.node is not None:
            following = link.newer
            yield link.node
            link = following

    @staticmethod
    def _insert(link: Link, older: Link) -> None:
        link.older, link.newer = older, older.newer
        older.newer.older = link
        older.newer = link


class Node:
    """Units ``[start, stop)`` of ``seq``; the path from the root spells ``[0, stop)``.

    A unit is a token, or with EAGLE the pair of a token and its successor (rule 9); unit i owns the
    slot of token i.

    * ``blocks``: device blocks of the span, ``None`` once it lives on the host only.
    * ``lock``: paths through this node that are held; ``host_lock`` the same for the host tier.
    * ``time``, ``born``: access and creation ticks; ``hits``, ``priority``, ``deepest`` (longest
      path ever seen through the node): what eviction policies read.
    * ``window``: sliding-window blocks, ``None`` = tombstone; ``window_lock``; ``mark``: identity
      of a window lock's upper end; ``window_link``: place in the window recency.
    * ``state``: id of the recurrent state after ``stop`` tokens; ``state_lock``, ``state_link``.
    * ``host``: host blocks holding a copy; ``host_window`` the same of the window KV.
    * ``device_kids``: children with KV on the device.
    """

    __slots__ = (
        "blocks",
        "born",
        "deepest",
        "device_kids",
        "hits",
        "host",
        "host_lock",
        "host_window",
        "key",
        "kids",
        "lock",
        "mark",
        "parent",
        "priority",
        "seq",
        "start",
        "state",
        "state_link",
        "state_lock",
        "stop",
        "time",
        "window",
        "window_link",
        "window_lock",
    )

    def __init__(
        self, seq: Seq, start: int, stop: int, parent: Node | None, blocks: Blocks | None
    ) -> None:
        self.seq = seq
        self.start = start
        self.stop = stop
        self.parent: Any = parent  # None only for the root, where no rule looks
        self.key: Hashable = None  # under which the parent keeps this node
        self.kids: dict[Hashable, Node] = {}
        self.blocks = blocks
        self.lock = 0
        self.time = 0.0
        self.born = 0.0
        self.hits = 0
        self.priority = 0
        self.deepest = stop
        self.device_kids = 0
        self.window: Blocks | None = None
        self.window_lock = 0
        self.mark: int | None = None
        self.window_link: Link | None = None
        self.state: int | None = None
        self.state_lock = 0
        self.state_link: Link | None = None
        self.host: Blocks | None = None
        self.host_window: Blocks | None = None
        self.host_lock = 0

    @property
    def length(self) -> int:
        """Units of the span."""
        return self.stop - self.start

    @property
    def evictable(self) -> bool:
        """A device leaf that nothing holds (rule 6); never the root."""
        return (
            self.lock == 0
            and self.device_kids == 0
            and self.blocks is not None
            and self.parent is not None
        )

    def path(self) -> list[Node]:
        """Nodes from the first below the root down to this one; empty for the root."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes
