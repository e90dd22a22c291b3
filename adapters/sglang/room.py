"""The pools and how room is made in them: eviction (rules 5, 6, 7, 8).

Sources: ``mem_cache/allocation.py`` (``evict_for_alloc``), ``mem_cache/unified_cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from handoff.types import Event

from .journal import Evicted
from .layout import STATE, SWA
from .node import Node

if TYPE_CHECKING:
    from .cache import PrefixCache

__all__ = ["Room"]


class Room:
    """Guarantees that only what nothing holds is evicted, in the order of policy and recency."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.page = cache.page
        self.slots = cache.slots
        self.tree = cache.tree
        self.windows = cache.windows
        self.states = cache.states

    @property
    def free_tokens(self) -> int:
        """Tokens of full KV that can be taken at once."""
        return self.slots.num_free * self.page

    @property
    def free_window_tokens(self) -> int:
        """Tokens of window KV that can be taken at once."""
        assert self.windows is not None
        return self.windows.free.num_free * self.page

    def make_room(self, tokens: int, window_tokens: int | None = None) -> None:
        """Evict what ``tokens`` miss, in the window pool too (rules 5, 6, 7)."""
        full = max(tokens - self.free_tokens, 0)
        window = 0
        if self.windows is not None:
            wanted = tokens if window_tokens is None else window_tokens
            window = max(wanted - self.free_window_tokens, 0)
        if (full or window) and not self.cache.disabled:
            self.evict(full, window)

    def has_room(self, tokens: int, window_tokens: int = 0) -> bool:
        """Whether so much is free in each pool."""
        if self.windows is not None and self.free_window_tokens < window_tokens:
            return False
        return self.free_tokens >= tokens

    def evict(self, full: int, window: int = 0, states: int = 0) -> None:
        """Free at least so many tokens and states, or all that can be freed (rule 6)."""
        done = Evicted(full, window, states)
        while done.full < full:
            leaf = self.tree.leaves.pop()
            if leaf is None:
                break
            self._evict_leaf(leaf, done)
        if self.windows is not None and done.window < window:
            self._evict_windows(done)
        if self.states is not None and done.states < states:
            self._evict_states(done)
        self.cache.journal.evict(done)
        for group, amount in (
            (self.cache.main, done.full),
            (SWA, done.window),
            (STATE, done.states),
        ):
            if amount:
                self.cache.events.append(Event("evict", group, tokens=amount, rule="6"))

    def _evict_leaf(self, leaf: Node, done: Evicted) -> None:
        """A device leaf goes completely, with window KV and state; a host copy stays (rule 10)."""
        stays = self.cache.host is not None and self.cache.host.demote(leaf)
        done.full += leaf.length
        if self.windows is not None and leaf.window is not None:
            done.window += leaf.length
            self.windows.free.give(self.windows.bury(leaf))
        if self.states is not None and leaf.state is not None:
            done.states += 1
            self.drop_state(self.states.drop(leaf))
        blocks = self.tree.drop_blocks(leaf)
        done.gone.append(blocks)
        self.slots.give(blocks)
        parent = leaf.parent
        if self.cache.host is not None:
            if stays:
                self.cache.host.left_device(leaf)
            else:
                self.cache.host.drop_below(leaf)
        if not stays:
            self.tree.remove(leaf)
        self.tree.leaves.offer(parent)

    def _evict_windows(self, done: Evicted) -> None:
        """Window KV in order of recency; an inner or held node becomes a tombstone (rule 7)."""
        assert self.windows is not None
        while done.window < done.need_window:
            node = next(iter(self.windows.unlocked()), None)
            if node is None:
                return
            if node.evictable:
                self._evict_leaf(node, done)
            else:
                done.window += node.length
                self.windows.free.give(self.windows.bury(node))

    def _evict_states(self, done: Evicted) -> None:
        """States in order of recency; an inner or held node only loses its state (rule 8)."""
        assert self.states is not None
        while done.states < done.need_states:
            node = next(iter(self.states.unlocked()), None)
            if node is None:
                return
            if node.evictable:
                self._evict_leaf(node, done)
            else:
                done.states += 1
                self.drop_state(self.states.drop(node))

    def new_state(self) -> int:
        """A free state slot, evicting one state if there is none."""
        assert self.states is not None
        if not self.states.free.num_free:
            self.evict(0, states=1)
        return int(self.states.free.take(1)[0])

    def drop_state(self, state: int) -> None:
        """A state slot goes back."""
        assert self.states is not None
        self.states.free.give(np.array([state], dtype=np.int32))

    def hold_frees(self) -> None:
        """Frees from now on become available together (rule 5, "Grouped frees")."""
        self.slots.hold()
        if self.windows is not None:
            self.windows.free.hold()

    def release_frees(self) -> None:
        """They become available."""
        self.slots.release()
        if self.windows is not None:
            self.windows.free.release()
