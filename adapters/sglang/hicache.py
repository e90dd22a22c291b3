"""HiCache: copies of tree nodes in host memory (rule 10).

Copies run at once and are acknowledged at the start of the next scheduling step. Sources:
``mem_cache/unified_radix_cache.py`` (write-through, load-back), ``cache_controller.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from handoff.types import Copy, Event

from .eviction import LeafHeap, policy_key
from .layout import FULL, HOST
from .node import Node
from .slots import Blocks, FreeList

if TYPE_CHECKING:
    from .cache import Found, PrefixCache
    from .journal import Evicted

__all__ = ["HostTier"]


class HostTier:
    """Guarantees which nodes have a host copy, and that pending copies keep their nodes."""

    def __init__(self, cache: PrefixCache) -> None:
        options = cache.options
        self.cache = cache
        self.page = cache.page
        self.free = FreeList(options.host_tokens // cache.page, lifo=False)
        self.write_back = options.hicache_write_policy == "write_back"
        self.threshold = 2 if options.hicache_write_policy == "write_through_selective" else 1
        self.leaves = LeafHeap(policy_key(options), self._droppable)
        self._pending: list[tuple[Node, int | None]] = []
        self._loading: list[Node] = []
        self._both: dict[Node, None] = {}
        """Nodes on both tiers whose host copy may be reclaimed, oldest tracked first."""

    @property
    def free_tokens(self) -> int:
        """Host slots that are free."""
        return self.free.num_free * self.page

    @staticmethod
    def _droppable(node: Node) -> bool:
        """A host leaf that neither tier holds."""
        return (
            node.host is not None
            and node.blocks is None
            and not node.kids
            and node.lock == 0
            and node.host_lock == 0
        )

    def split(self, upper: Node, lower: Node) -> None:
        """Both parts keep their host copy."""
        if lower.host is not None:
            blocks = upper.length // self.page
            upper.host, lower.host = lower.host[:blocks], lower.host[blocks:]
            upper.host_lock = lower.host_lock
            if upper.blocks is not None:
                self._both[upper] = None
            self.leaves.offer(lower)

    # -- device to host -------------------------------------------------------------------------

    def counted(self, node: Node) -> None:
        """A hit was counted: write through once there are enough."""
        if not self.write_back and node.host is None and node.hits >= self.threshold:
            self._write_through(node)

    def _write_through(self, node: Node) -> None:
        """Copy the node, its uncopied ancestors first; it is held until acknowledged."""
        chain = [other for other in node.path() if other.host is None]
        for other in chain:
            if not self._copy_out(other):
                return
        self._pending.append((node, self.cache.lock(node)))

    def _copy_out(self, node: Node) -> bool:
        """Copy one node to the host if there is room, or room can be made."""
        assert node.blocks is not None
        self._make_room(node.length)
        if self.free_tokens < node.length:
            return False
        node.host = self.free.take(len(node.blocks))
        self._copy(node, FULL, HOST, node.blocks, node.host)
        self.cache.journal.transfer("d2h", node.length, FULL)
        self.cache.events.append(Event("offload", FULL, tokens=node.length, rule="10"))
        return True

    def _copy(self, node: Node, source: str, target: str, old: Blocks, new: Blocks) -> None:
        page = self.page
        runs = tuple(
            (int(a) * page, int(b) * page, page) for a, b in zip(old, new, strict=True)
        )
        self.cache.ops.append(Copy(FULL, source, target, runs))

    # -- host to device -------------------------------------------------------------------------

    def load_back(self, found: Found) -> bool:
        """Bring the host part of a hit to the device, whole or not at all."""
        cache = self.cache
        nodes = [node for node in found.best.path() if node.blocks is None]
        tokens = sum(node.length for node in nodes)
        if tokens < cache.options.load_back_threshold:
            return False
        for node in nodes:
            node.host_lock += 1
        cache.make_room(tokens)
        for node in nodes:
            node.host_lock -= 1
        if cache.free_tokens < tokens:
            return False
        for node in nodes:
            assert node.host is not None
            blocks = cache.slots.take(len(node.host))
            self._copy(node, HOST, FULL, node.host, blocks)
            cache.tree.adopt_blocks(node, blocks)
        cache.journal.transfer("h2d", tokens, FULL)
        cache.events.append(Event("onboard", FULL, tokens=tokens, rule="10"))
        self._pending.append((found.best, cache.lock(found.best)))
        self._loading.extend(nodes)
        return True

    def acknowledge(self) -> None:
        """The copies started in the last step are done."""
        for node, mark in self._pending:
            self.cache.unlock(node, mark)
        self._pending.clear()
        for node in self._loading:
            self._both[node] = None
        self._loading.clear()

    def revived(self, node: Node) -> None:
        """An insert gave a host-only node device blocks again."""
        self._both[node] = None

    # -- leaving --------------------------------------------------------------------------------

    def demote(self, node: Node) -> bool:
        """Before a device leaf goes: whether its content stays on the host."""
        if node.host is None and self.write_back:
            self._reclaim(node.length - self.free_tokens)
            self._copy_out(node)
        return node.host is not None

    def left_device(self, node: Node) -> None:
        """The node lives on the host only."""
        self._both.pop(node, None)
        self.leaves.offer(node)

    def drop_below(self, node: Node) -> None:
        """A deleted device leaf takes its host-only descendants along."""
        for kid in list(node.kids.values()):
            self.drop_below(kid)
            self._drop(kid)

    def _make_room(self, tokens: int) -> None:
        """Drop host leaves by policy until ``tokens`` fit, or none is left."""
        while self.free_tokens < tokens:
            leaf = self.leaves.pop()
            if leaf is None:
                return
            self._drop(leaf)

    def _drop(self, leaf: Node) -> None:
        assert leaf.host is not None
        self.free.give(leaf.host)
        leaf.host = None
        parent = leaf.parent
        self.cache.tree.remove(leaf)
        self.leaves.offer(parent)

    def _reclaim(self, tokens: int) -> None:
        """Give up host copies of nodes that are on the device too, oldest tracked first."""
        for spare_leaves in (True, False):
            for node in list(self._both):
                if tokens <= 0:
                    return
                if node.blocks is None or node.host is None or node.host_lock:
                    continue
                if spare_leaves and node.evictable:
                    continue
                tokens -= node.length
                self.free.give(node.host)
                node.host = None
                del self._both[node]
