"""The radix tree: spans, splits, locks and recency, for full-attention KV (rules 2, 3, 6).

Window KV, states and host copies hang on the same nodes; ``swa``, ``mamba`` and ``hicache`` attach
to the three moments that concern them (split, lock, unlock). Sources:
``mem_cache/unified_cache/unified_tree_core.py``, ``mem_cache/unified_radix_cache.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Protocol

from handoff.index.spans import Seq, common

from .eviction import LeafHeap, policy_key
from .node import Node
from .options import Options
from .slots import Blocks

__all__ = ["Component", "RadixTree"]


class Component(Protocol):
    """What else lives on the nodes."""

    def split(self, upper: Node, lower: Node) -> None:
        """``lower`` was cut; ``upper`` took its head."""


class RadixTree:
    """Guarantees that a path spells what its nodes hold, and that locked nodes never leave.

    ``evictable`` and ``protected`` are units on the device outside and under a lock.
    """

    def __init__(self, options: Options) -> None:
        self.page = options.page_size
        self.pair = 1 if options.bigram else 0
        """Tokens that a unit needs beyond its first one."""
        self.root = Node(Seq(), 0, 0, None, None)
        self.components: list[Component] = []
        self.leaves = LeafHeap(policy_key(options), lambda node: node.evictable)
        self.evictable = 0
        self.protected = 0
        self._clock = 0

    def tick(self) -> int:
        """The next reading of the global counter (grows on every read)."""
        self._clock += 1
        return self._clock

    def floor(self, units: int) -> int:
        """Whole pages of ``units``."""
        return units - units % self.page

    # -- walking --------------------------------------------------------------------------------

    def key_of(self, parent: Node, seq: Seq, start: int, namespace: Hashable) -> Hashable:
        """The key under which ``parent`` keeps a child that starts with ``seq[start:]``."""
        key = seq.key(start, start + self.page + self.pair)
        return (namespace, key) if parent.parent is None else key

    def child(self, parent: Node, seq: Seq, start: int, namespace: Hashable) -> Node | None:
        """The child of ``parent`` whose first page equals that of ``seq[start:]``."""
        return parent.kids.get(self.key_of(parent, seq, start, namespace))

    def run(self, node: Node, seq: Seq, start: int, units: int) -> int:
        """Common units of ``seq[start:units]`` and the node's span, not floored."""
        limit = min(units, node.stop) - start
        tokens = common(seq, start, node.seq, node.start, limit + self.pair)
        return max(tokens - self.pair, 0)

    def walk(self, seq: Seq, units: int, namespace: Hashable) -> tuple[list[Node], int]:
        """The stored path that ``seq[:units]`` follows, and where it leaves it (not floored).

        Changes nothing. The last node may be left inside.
        """
        node, at, path = self.root, 0, []
        while units - at >= self.page:
            kid = self.child(node, seq, at, namespace)
            if kid is None:
                break
            at += self.run(kid, seq, at, units)
            path.append(kid)
            if at < kid.stop:
                break
            node = kid
        return path, at

    # -- changing the shape ---------------------------------------------------------------------

    def split(self, node: Node, at: int) -> Node:
        """Cut ``node`` at ``at``; the new upper part takes the head (rule 2, "Split").

        The upper part copies locks, priority, hit count and creation time; both get fresh access
        times, the lower one the newer.
        """
        parent = node.parent
        upper = Node(node.seq, node.start, at, parent, None)
        parent.kids[node.key] = upper
        blocks = (at - node.start) // self.page
        if node.blocks is not None:
            upper.blocks, node.blocks = node.blocks[:blocks], node.blocks[blocks:]
            upper.device_kids = 1
        upper.time, _ = self.tick(), self.tick()
        upper.born, upper.hits, upper.priority = node.born, node.hits, node.priority
        upper.lock, upper.deepest = node.lock, node.deepest
        upper.key, node.key = node.key, node.seq.key(at, at + self.page + self.pair)
        upper.kids[node.key] = node
        node.start, node.parent = at, upper
        node.time = self.tick()
        for component in self.components:
            component.split(upper, node)
        self.leaves.offer(node)
        return upper

    def add_leaf(
        self, parent: Node, seq: Seq, stop: int, blocks: Blocks, namespace: Hashable
    ) -> Node:
        """A new child of ``parent`` for units up to ``stop``; it owns ``blocks`` (rule 3.4)."""
        start = parent.stop
        leaf = Node(seq, start, stop, parent, blocks)
        leaf.time, leaf.born = self.tick(), self.tick()
        leaf.key = self.key_of(parent, seq, start, namespace)
        parent.kids[leaf.key] = leaf
        parent.device_kids += 1
        self.evictable += stop - start
        return leaf

    def drop_blocks(self, node: Node) -> Blocks:
        """The node's KV leaves the device; returns the blocks. It must be evictable."""
        blocks = node.blocks
        assert blocks is not None and node.lock == 0 and node.device_kids == 0
        node.blocks = None
        self.evictable -= node.length
        node.parent.device_kids -= 1
        return blocks

    def adopt_blocks(self, node: Node, blocks: Blocks) -> None:
        """A host-only node gets KV on the device again."""
        assert node.blocks is None
        node.blocks = blocks
        node.parent.device_kids += 1
        if node.lock:
            self.protected += node.length
        else:
            self.evictable += node.length

    def remove(self, node: Node) -> None:
        """Take a childless node without device KV out of the tree."""
        assert node.blocks is None and not node.kids
        del node.parent.kids[node.key]

    # -- recency and locks ----------------------------------------------------------------------

    def refresh(self, end: Node) -> None:
        """One tick for a match: the end node gets it, its ancestors a little less (rule 2.5)."""
        time: float = self.tick()
        node = end
        while node.parent is not None:
            node.time = time
            time -= 0.00001
            if node.lock == 0 and node.device_kids == 0:
                self.leaves.offer(node)
            node = node.parent

    def insert_walk(
        self,
        seq: Seq,
        units: int,
        namespace: Hashable,
        *,
        priority: int,
        counted: int | None,
        start: Node | None = None,
    ) -> Iterator[Node]:
        """Walk as an insert does: tick each node, split where ``seq`` leaves, yield what matched.

        ``priority`` raises the nodes' own; a node whose end lies beyond ``counted`` gains a hit
        (``None``: hits never grow). ``start`` is a node known to lie on the path (rule 3.2).
        """
        self.tick()  # the root's
        node = self.root
        if start is not None and start.stop <= units:
            for node in start.path():
                node.time = self.tick()
                self._raise(node, units, priority)
                yield node
                self._count(node, counted)
        at = node.stop
        while units - at >= self.page:
            kid = self.child(node, seq, at, namespace)
            if kid is None:
                return
            at += self.floor(self.run(kid, seq, at, units))
            kid.time = self.tick()
            if at < kid.stop:
                kid = self.split(kid, at)
            self._raise(kid, units, priority)
            yield kid
            self._count(kid, counted)  # what the caller split off its head counts no hit
            node = kid

    @staticmethod
    def _raise(node: Node, units: int, priority: int) -> None:
        node.priority = max(node.priority, priority)
        node.deepest = max(node.deepest, units)

    @staticmethod
    def _count(node: Node, counted: int | None) -> None:
        if counted is not None and node.stop > counted:
            node.hits += 1

    def lock(self, end: Node) -> None:
        """Hold the whole path of ``end`` (rule 6)."""
        node = end
        while node.parent is not None:
            if node.lock == 0 and node.blocks is not None:
                self.evictable -= node.stop - node.start
                self.protected += node.stop - node.start
            node.lock += 1
            node = node.parent

    def unlock(self, end: Node) -> None:
        """Undo one ``lock``."""
        node = end
        while node.parent is not None:
            node.lock -= 1
            assert node.lock >= 0, "unlocked more often than locked"
            if node.lock == 0 and node.blocks is not None:
                self.evictable += node.stop - node.start
                self.protected -= node.stop - node.start
                self.leaves.offer(node)
            node = node.parent

    def nodes(self) -> Iterator[Node]:
        """Every node below the root, parents first."""
        stack = list(self.root.kids.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.kids.values())
