"""The reuse tree: one tree for all windows, one value slot per window in each node.

(RULES 2; templatedTrie.h, kvCacheManager.cpp)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.index.spans import Seq, common

from .buckets import BucketOrder
from .keys import BlockKey, Extra, bucket_hash

if TYPE_CHECKING:
    from .blocks import Block

__all__ = ["Node", "ReuseTree"]

_SCAN_LIMIT = 8  # above so many children, candidates are found by their first token


class Node:
    """A block of tokens below its parent: ``tokens[start : start + key.length]``.

    ``values`` holds at most one block per window. A node may be without a value in a window and
    still have children.
    """

    __slots__ = ("_by_first", "_order", "children", "key", "parent", "start", "tokens", "values")

    def __init__(self, parent: Node | None, key: BlockKey, tokens: Seq, start: int) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.start = start
        self.values: dict[int, Block] = {}
        self.children: dict[BlockKey, Node] = {}
        self._order: BucketOrder[Node] | None = None
        self._by_first: dict[tuple[int, Extra], list[Node]] | None = None

    def add(self, child: Node) -> None:
        """Adds ``child`` under its key, which must be new here."""
        if self._order is None and self.children:  # an only child needs no order
            self._order = BucketOrder(_hash_of)
            for first in self.children.values():
                self._order.insert(first)
        if self._order is not None:
            self._order.insert(child)
        self.children[child.key] = child
        if self._by_first is not None:
            self._by_first.setdefault(child.first, []).append(child)

    def remove(self, child: Node) -> None:
        """Unlinks a child."""
        if self._order is not None:
            self._order.erase(child)
        del self.children[child.key]
        if self._by_first is not None:
            same = self._by_first[child.first]
            same.remove(child)
            if not same:
                del self._by_first[child.first]

    @property
    def first(self) -> tuple[int, Extra]:
        """What a key must start with to have a token in common with this node's."""
        return self.tokens[self.start], self.key.extra

    def sharing(
        self, tokens: Seq, start: int, limit: int, extra: Extra
    ) -> list[tuple[int, list[Node]]]:
        """Children that share leading tokens with ``tokens[start : start + limit]``.

        ``(tokens in common, children)``, longest first; children of one length in no order.
        """
        by_length: dict[int, list[Node]] = {}
        for child in self._starting_with((tokens[start], extra)):
            shared = common(tokens, start, child.tokens, child.start, min(limit, child.key.length))
            if shared:
                by_length.setdefault(shared, []).append(child)
        return sorted(by_length.items(), reverse=True)

    def foremost(self, children: list[Node]) -> Node:
        """The one of ``children`` that the map lists first (RULES 13)."""
        if len(children) == 1:
            return children[0]
        assert self._order is not None
        wanted = {id(child) for child in children}
        return next(child for child in self._order.ranked() if id(child) in wanted)

    def _starting_with(self, wanted: tuple[int, Extra]) -> list[Node]:
        if self._by_first is None:
            if len(self.children) <= _SCAN_LIMIT:
                extra = wanted[1]
                return [child for child in self.children.values() if child.key.extra == extra]
            self._by_first = {}
            for child in self.children.values():
                self._by_first.setdefault(child.first, []).append(child)
        return self._by_first.get(wanted, [])


def _hash_of(node: Node) -> int:
    return bucket_hash(node.tokens, node.start, node.key.length, node.key.extra)


class ReuseTree:
    """Ensures nodes, keeps their value slots and prunes what holds nothing."""

    __slots__ = ("moves", "root")

    def __init__(self) -> None:
        self.moves = 0
        """Times a block left its node for another one."""
        self.root = Node(None, BlockKey(0, None, Extra()), Seq(), 0)

    @staticmethod
    def ensure(parent: Node, key: BlockKey, tokens: Seq, start: int) -> Node:
        """The child of ``parent`` under ``key``, made if there is none."""
        child = parent.children.get(key)
        if child is None:
            child = Node(parent, key, tokens, start)
            parent.add(child)
        return child

    def attach(self, node: Node, window: int, block: Block) -> None:
        """Moves ``block`` into the empty slot of ``node``; it leaves the node it was in."""
        assert window not in node.values
        if block.node is not None:
            self.detach(block, window)
            self.moves += 1
        node.values[window] = block
        block.node = node

    def detach(self, block: Block, window: int) -> None:
        """Takes ``block`` out of the tree; its descendants stay (RULES 6)."""
        node = block.node
        assert node is not None and node.values[window] is block
        del node.values[window]
        block.node = None
        self.prune(node)

    @staticmethod
    def prune(node: Node) -> None:
        """Removes ``node`` and then its ancestors as far as they hold neither value nor child."""
        while node.parent is not None and not node.values and not node.children:
            parent = node.parent
            parent.remove(node)
            node.parent = None
            node = parent
