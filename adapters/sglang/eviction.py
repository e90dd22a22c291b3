"""Which device leaf is evicted next: one policy key, one lazy heap (rule 6).

Source: ``mem_cache/evict_policy.py`` and the leaf heaps of the tree core.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from .node import Node
from .options import Options

__all__ = ["LeafHeap", "policy_key"]

Key = tuple[float, ...]


def policy_key(options: Options) -> Callable[[Node], Key]:
    """The key of the configured policy; the smallest is evicted first, ties by access time."""
    threshold = options.slru_protected_threshold

    def tlru(node: Node) -> Key:
        """Leaves whose reusable head is long enough go first (rule 6, ``hist`` never shrinks)."""
        keep = max(node.deepest + options.tlru_next_prompt_estimate - options.tlru_threshold, 0)
        return (-1 if node.start >= keep else 0, node.time)

    keys: dict[str, Callable[[Node], Key]] = {
        "lru": lambda node: (node.time,),
        "lfu": lambda node: (node.hits, node.time),
        "slru": lambda node: (node.hits >= threshold, node.time),
        "priority": lambda node: (node.priority, node.time),
        "tlru": tlru,
        "fifo": lambda node: (node.born, node.time),
        "filo": lambda node: (-node.born, node.time),
        "mru": lambda node: (-node.time,),
    }
    return keys[options.radix_eviction_policy]


class LeafHeap:
    """Guarantees the leaf with the smallest *current* key, whatever keys did since it was offered.

    A node is offered whenever it became a candidate or its key may have changed; entries that no
    longer say the truth are dropped when popped.
    """

    __slots__ = ("_entries", "_fits", "_key", "_serial")

    def __init__(self, key: Callable[[Node], Key], fits: Callable[[Node], bool]) -> None:
        self._key = key
        self._fits = fits
        self._entries: list[tuple[Key, int, Node]] = []
        self._serial = count()

    def offer(self, node: Node) -> None:
        """Enter ``node`` under its current key if it is a candidate."""
        if self._fits(node):
            heapq.heappush(self._entries, (self._key(node), next(self._serial), node))
            if len(self._entries) > 1024 and len(self._entries) & (len(self._entries) - 1) == 0:
                self._compact()

    def pop(self) -> Node | None:
        """Remove and return the first candidate, or ``None`` if there is none."""
        while self._entries:
            key, _, node = heapq.heappop(self._entries)
            if self._fits(node) and self._key(node) == key:
                return node
        return None

    def _compact(self) -> None:
        """Keep one true entry a node; called when the heap reached a power of two."""
        seen: dict[int, tuple[Key, int, Node]] = {}
        for entry in self._entries:
            if self._fits(entry[2]) and self._key(entry[2]) == entry[0]:
                seen.setdefault(id(entry[2]), entry)
        self._entries = list(seen.values())
        heapq.heapify(self._entries)
