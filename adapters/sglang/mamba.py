"""Recurrent states on the ends of nodes (rule 8, no extra buffer).

Source: ``mem_cache/unified_cache/components/mamba_component.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from .node import Link, Node, RecencyList
from .slots import FreeList

__all__ = ["States"]


class States:
    """Guarantees which nodes hold a state, which are locked, and in what order they leave.

    A state belongs to the end of its node. ``evictable`` and ``protected`` count states.
    """

    def __init__(self, free: FreeList) -> None:
        self.free = free
        self.recency = RecencyList()
        self.evictable = 0
        self.protected = 0

    def accept(self, path: list[Node], units: int) -> int:
        """How many nodes of ``path`` may be hit: the deepest within ``units`` must hold a state."""
        for index in range(len(path), 0, -1):
            node = path[index - 1]
            if node.state is not None and node.stop <= units:
                return index
        return 0

    def refresh(self, end: Node) -> None:
        """The accepted node's state becomes newest."""
        if end.state_link is not None:
            self.recency.renew(end.state_link)

    def store(self, node: Node, state: int) -> bool:
        """The node takes ``state`` unless it has one; its recency is renewed either way."""
        if node.state is not None:
            self.refresh(node)
            return False
        node.state = state
        node.state_link = Link(node)
        self.recency.add_newest(node.state_link)
        if node.state_lock:
            self.protected += 1
        else:
            self.evictable += 1
        return True

    def drop(self, node: Node) -> int:
        """The node loses its state; returns the id."""
        state, link = node.state, node.state_link
        assert state is not None and link is not None and node.state_lock == 0
        node.state = node.state_link = None
        self.recency.remove(link)
        self.evictable -= 1
        return state

    def split(self, upper: Node, lower: Node) -> None:
        """The upper part is left without a state."""

    def lock(self, end: Node) -> None:
        """Hold the state of ``end`` (the root has none)."""
        if end.state_lock == 0 and end.state is not None:
            self.evictable -= 1
            self.protected += 1
        end.state_lock += 1

    def unlock(self, end: Node) -> None:
        """Undo one ``lock``."""
        end.state_lock -= 1
        assert end.state_lock >= 0, "state unlocked more often than locked"
        if end.state_lock == 0 and end.state is not None:
            self.evictable += 1
            self.protected -= 1

    def unlocked(self) -> Iterable[Node]:
        """Nodes whose state nothing holds, oldest first."""
        return (node for node in self.recency if node.state_lock == 0)
