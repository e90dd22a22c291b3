"""HiCache: copies of tree nodes in host memory (rule 10).

Copies run at once and are acknowledged at the start of the next scheduling step. Sources:
``mem_cache/unified_radix_cache.py`` (write-through, load-back), ``cache_controller.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import Copy, Event

from .eviction import LeafHeap, policy_key
from .layout import FULL, HOST, HOST_SWA, SWA
from .node import Node
from .slots import Blocks, FreeList

if TYPE_CHECKING:
    from .cache import PrefixCache
    from .lookup import Found

__all__ = ["HostTier"]


class HostTier:
    """Guarantees which nodes have a host copy, and that pending copies keep their nodes."""

    def __init__(self, cache: PrefixCache) -> None:
        options = cache.options
        self.cache = cache
        self.page = cache.page
        self.free = FreeList(options.host_tokens // cache.page, lifo=False)
        self.windows: FreeList | None = None
        """Host blocks of window KV."""
        if options.attention == "swa":
            self.windows = FreeList(options.host_swa_tokens // cache.page, lifo=False)
        self.write_back = options.hicache_write_policy == "write_back"
        self.threshold = 2 if options.hicache_write_policy == "write_through_selective" else 1
        self.leaves = LeafHeap(policy_key(options), self._droppable)
        self.pending: list[tuple[Node, int | None]] = []
        """Ends of paths that a copy under way holds, each with the receipt of its lock."""
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
            if lower.host_window is not None:
                window = lower.host_window
                upper.host_window, lower.host_window = window[:blocks], window[blocks:]
            if upper.blocks is not None:
                self._both[upper] = None
            self.leaves.offer(lower)

    # -- device to host -------------------------------------------------------------------------

    def counted(self, node: Node) -> None:
        """A hit was counted: write through once there are enough."""
        if not self.write_back and node.hits >= self.threshold and self._missing(node):
            self._write_through(node)

    def _missing(self, node: Node) -> bool:
        """Whether the node holds KV on the device that the host does not have."""
        return node.host is None or (node.window is not None and node.host_window is None)

    def _write_through(self, node: Node) -> None:
        """Copy the node, its uncopied ancestors first; each is held until acknowledged."""
        for other in node.path():
            if other is node or other.host is None:
                if not self._copy_out(other):
                    return
                self.pending.append((other, self.cache.lock(other)))

    def _copy_out(self, node: Node) -> bool:
        """Copy one node to the host if there is room, or room can be made."""
        window = node.window if node.host_window is None else None
        tokens = 0 if node.host is not None else node.length
        self._make_room(tokens, 0 if window is None else node.length)
        if self.free_tokens < tokens or (window is not None and not self._fits_window(node)):
            return False
        if node.host is None:
            assert node.blocks is not None
            node.host = self.free.take(len(node.blocks))
            self._copy(FULL, FULL, HOST, node.blocks, node.host)
            self._told("d2h", "offload", FULL, node.length)
        if window is not None:
            assert self.windows is not None
            node.host_window = self.windows.take(len(window))
            self._copy(SWA, SWA, HOST_SWA, window, node.host_window)
            self._told("d2h", "offload", SWA, node.length)
        return True

    def _fits_window(self, node: Node) -> bool:
        return self.windows is not None and self.windows.num_free * self.page >= node.length

    def _told(self, direction: str, kind: str, group: str, tokens: int) -> None:
        self.cache.journal.transfer(direction, tokens, group)
        self.cache.events.append(Event(kind, group, tokens=tokens, rule="10"))

    def _copy(self, group: str, source: str, target: str, old: Blocks, new: Blocks) -> None:
        page = self.page
        runs = tuple((int(a) * page, int(b) * page, page) for a, b in zip(old, new, strict=True))
        self.cache.ops.append(Copy(group, source, target, runs))

    # -- host to device -------------------------------------------------------------------------

    def window_tokens(self, best: Node) -> int:
        """Window KV of the last window before ``best.stop`` that only the host holds."""
        return sum(node.length for node in self._host_windows(best))

    def _host_windows(self, best: Node) -> list[Node]:
        windows = self.cache.windows
        if windows is None:
            return []
        return [n for n in windows.seen(best) if n.window is None and n.host_window is not None]

    def load_back(self, found: Found) -> bool:
        """Bring the host part of a hit to the device, whole or not at all."""
        cache = self.cache
        if found.host < cache.options.load_back_threshold:
            return False
        nodes = [node for node in found.best.path() if node.blocks is None]
        windows = list(reversed(self._host_windows(found.best)))
        tokens = sum(node.length for node in nodes)
        window_tokens = sum(node.length for node in windows)
        for node in nodes:
            node.host_lock += 1
        cache.room.make_room(tokens, window_tokens)
        for node in nodes:
            node.host_lock -= 1
        if not cache.room.has_room(tokens, window_tokens):
            return False
        for node in nodes:
            assert node.host is not None
            blocks = cache.slots.take(len(node.host))
            self._copy(FULL, HOST, FULL, node.host, blocks)
            cache.tree.adopt_blocks(node, blocks)
        for node in windows:
            assert cache.windows is not None and node.host_window is not None
            blocks = cache.windows.free.take(len(node.host_window))
            self._copy(SWA, HOST_SWA, SWA, node.host_window, blocks)
            cache.windows.revive(node, blocks)
        for group, amount in ((FULL, tokens), (SWA, window_tokens)):
            if amount:
                self._told("h2d", "onboard", group, amount)
        self.pending.append((found.best, cache.lock(found.best)))
        self._loading.extend(nodes)
        return True

    def acknowledge(self) -> None:
        """The copies started in the last step are done."""
        for node, mark in self.pending:
            self.cache.unlock(node, mark)
        self.pending.clear()
        for node in self._loading:
            self._both[node] = None
        self._loading.clear()

    def revived(self, node: Node) -> None:
        """An insert gave a host-only node device blocks again."""
        self._both[node] = None

    # -- leaving --------------------------------------------------------------------------------

    def demote(self, node: Node) -> bool:
        """Before a device leaf goes: whether its content stays on the host."""
        if self.write_back and self._missing(node):
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

    def _make_room(self, tokens: int, window_tokens: int) -> None:
        """Drop host leaves by policy until the tokens fit, or none is left."""
        while self.free_tokens < tokens or (
            self.windows is not None and self.windows.num_free * self.page < window_tokens
        ):
            leaf = self.leaves.pop()
            if leaf is None:
                return
            self._drop(leaf)

    def _drop(self, leaf: Node) -> None:
        self._forget(leaf)
        parent = leaf.parent
        self.cache.tree.remove(leaf)
        self.leaves.offer(parent)

    def _forget(self, node: Node) -> None:
        """The node's host copies go."""
        assert node.host is not None
        self.free.give(node.host)
        if node.host_window is not None:
            assert self.windows is not None
            self.windows.give(node.host_window)
        node.host = node.host_window = None

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
                self._forget(node)
                del self._both[node]
