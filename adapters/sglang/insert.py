"""Insertion: what becomes reusable, which duplicates leave, where the lock goes (rules 3, 7, 8).

Source: ``mem_cache/unified_cache/unified_tree_core.py`` (insert), ``unified_radix_cache.py``
(checkpoint_kv_cache, release_kv_cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from handoff.types import NULL

from .node import Node
from .req import Req

if TYPE_CHECKING:
    from .cache import PrefixCache

__all__ = ["Inserter"]


class Inserter:
    """Guarantees one owner for every block below the inserted length: the tree."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.tree = cache.tree
        self.page = cache.page

    def running(self, req: Req, up_to: int) -> None:
        """Insert what a running request computed; the row goes on behind it."""
        cache = self.cache
        units, branching = self._units(req, up_to)
        if cache.windows is not None:
            cache.free_windows(req, units - 1, 1)
        units = self.tree.floor(units)
        if cache.states is not None and units > 0:
            state = cache.room.new_state()
            self._store(req, units)
            assert req.end is not None and req.state is not None
            if cache.states.store(req.end, state):
                cache.copy_state(req.state, state)
            else:
                cache.room.drop_state(state)
        else:
            self._store(req, units)
        if branching:
            cache.free_windows(req, up_to - 1 - self.tree.pair, 1)

    def finished(self, req: Req, owned: int) -> None:
        """Insert everything a finished request leaves behind (rule 5, ``owned_kv_len``)."""
        units, _ = self._units(req, owned)
        units = self.tree.floor(units)
        self._store(req, units)
        states = self.cache.states
        if states is None or units <= 0:
            return
        assert req.end is not None and req.state is not None
        if states.store(req.end, req.state):
            req.state = None  # handed over

    def _units(self, req: Req, up_to: int) -> tuple[int, bool]:
        """Units to insert, not floored; whether they end where the paths part.

        A hit that windows cut short is remembered once, so that a live window will exist at the
        divergence (rule 7, "Branching insert").
        """
        branch, pair = req.branch, self.tree.pair
        if (
            self.cache.windows is None
            or branch is None
            or branch <= req.protected
            or up_to < branch + pair
        ):
            return max(up_to - pair, 0), False
        req.branch = None
        return branch, True

    def _store(self, req: Req, units: int) -> None:
        cache = self.cache
        if cache.options.attention == "pure_swa":
            units = min(units, req.floor)  # the prefill's part only (rule 7, "Pure SWA")
        if units <= 0:
            return
        end = self._insert(req, units)
        if cache.options.attention == "pure_swa":
            cache.lookup.rematch(req, end)
        prompt = self.tree.floor(req.prompt - self.tree.pair)
        if cache.windows is None and cache.states is None and 0 < prompt < units:
            for _ in self.tree.insert_walk(
                req.seq, prompt, req.namespace, priority=req.priority + 1, counted=prompt
            ):
                pass  # splits at the prompt boundary and renews the prompt's path (rule 3.5)
        self.tree.leaves.offer(end)
        cache.hold(req, end)
        req.protected = units
        cache.findable(req, units + self.tree.pair)

    def _insert(self, req: Req, units: int) -> Node:
        """Steps 1 to 4 of rule 3; returns the node that ends at ``units``."""
        tree, host = self.tree, self.cache.host
        end = tree.root
        start = req.end if req.locked else None
        counted = None if host is not None and host.write_back else req.counted
        walked = []
        for node in tree.insert_walk(
            req.seq,
            units,
            req.namespace,
            priority=req.priority,
            counted=counted,
            start=start,
        ):
            end = node
            walked.append(node)
            if node.stop > req.protected:
                end = self._meet(req, node)
        if end.stop < units:
            end = self._add(req, end, units)
            if counted is not None and units > counted:
                end.hits += 1
            walked.append(end)
        if self.cache.windows is not None:
            self.cache.windows.refresh(end)
        if host is not None:
            for node in walked:
                host.counted(node)
        req.counted = max(req.counted, units)
        return end

    def _meet(self, req: Req, node: Node) -> Node:
        """The tree holds ``node`` already: the request's own blocks of it are duplicates."""
        cache, page = self.cache, self.page
        start = max(req.protected, node.start)
        first, last = start // page, node.stop // page
        if cache.windows is None:
            if node.blocks is None:
                self._adopt(req, node)
                return node
            cache.slots.give(req.row.copy(first, last))
            cache.repoint(req, cache.main, first, node.blocks[first - node.start // page :])
            return node
        return self._meet_windowed(req, node, start)

    def _adopt(self, req: Req, node: Node) -> None:
        """The node lived on the host only: the request's blocks revive it (rule 10)."""
        host, page = self.cache.host, self.page
        assert host is not None and node.start >= req.protected
        self.tree.adopt_blocks(node, req.row.copy(node.start // page, node.stop // page))
        host.revived(node)

    def _meet_windowed(self, req: Req, node: Node, start: int) -> Node:
        """The same with window KV: tombstones above ``window_freed`` are revived (rule 7).

        What a revival frees goes before the duplicates of the same walked node.
        """
        upper = None
        if node.window is None and node.stop > req.window_freed:
            if node.start < req.window_freed:
                upper = self.tree.split(node, req.window_freed)
            self._revive(req, node)
            if upper is not None:
                self._duplicate(req, upper, start)
        else:
            self._duplicate(req, node, start)
        return node

    def _revive(self, req: Req, node: Node) -> None:
        """A tombstone takes the request's window KV; unlocked, its full KV too."""
        cache, windows, page = self.cache, self.cache.windows, self.page
        assert windows is not None
        first, last = node.start // page, node.stop // page
        own = req.row.copy(first, last)
        if node.blocks is None:
            self._adopt(req, node)
        elif node.lock == 0:
            cache.slots.give(node.blocks)
            node.blocks = own
        else:
            cache.slots.give(own)
            cache.repoint(req, cache.main, first, node.blocks)
        windows.revive(node, req.window_row.copy(first, last))

    def _duplicate(self, req: Req, node: Node, start: int) -> None:
        cache, windows, page = self.cache, self.cache.windows, self.page
        assert windows is not None
        if node.blocks is None:
            self._adopt(req, node)
            return
        first, last = start // page, node.stop // page
        cache.slots.give(req.row.copy(first, last))
        cache.repoint(req, cache.main, first, node.blocks[first - node.start // page :])
        own = req.window_row.copy(first, last)
        windows.free.give(own[own != NULL])
        if node.window is not None:
            cache.repoint(req, "swa", first, node.window[first - node.start // page :])
        else:
            nothing = np.full(last - first, NULL, dtype=np.int32)
            cache.repoint(req, "swa", first, nothing)

    def _add(self, req: Req, parent: Node, units: int) -> Node:
        """The rest becomes a new leaf; window KV divides it (rule 7, "Insert")."""
        windows = self.cache.windows
        if windows is None:
            return self._leaf(req, parent, units)
        start = parent.stop
        if req.window_freed > start:
            parent = self._leaf(req, parent, min(req.window_freed, units))
            if parent.stop == units:
                return parent
        leaf = self._leaf(req, parent, units)
        windows.revive(leaf, req.window_row.copy(leaf.start // self.page, units // self.page))
        tail = windows.ceil(windows.window)
        if leaf.length > tail:
            self.tree.split(leaf, units - tail)
        return leaf

    def _leaf(self, req: Req, parent: Node, stop: int) -> Node:
        blocks = req.row.copy(parent.stop // self.page, stop // self.page)
        leaf = self.tree.add_leaf(parent, req.seq, stop, blocks, req.namespace)
        leaf.priority = req.priority
        return leaf
