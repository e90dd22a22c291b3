"""What happens inside the cache and the queue, told to whoever listens.

The recordings were made by listening at these calls of upstream; the conformance driver listens at
the same places. An engine without a listener uses ``Journal`` itself, which does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lookup import Found
    from .req import Req
    from .slots import Blocks

__all__ = ["Evicted", "Journal"]


class Evicted:
    """One eviction call: what was asked for and what left, in tokens (states: in states)."""

    __slots__ = ("full", "gone", "need_full", "need_states", "need_window", "states", "window")

    def __init__(self, need_full: int, need_window: int, need_states: int) -> None:
        self.need_full = need_full
        self.need_window = need_window
        self.need_states = need_states
        self.full = 0
        self.window = 0
        self.states = 0
        self.gone: list[Blocks] = []
        """Device blocks of full KV that left the tree, a node at a time."""


class Journal:
    """Does nothing with what it hears; subclass what you need."""

    def order(self, waiting: Sequence[Req]) -> None:
        """The waiting queue was ordered."""

    def touch(self, req: Req, tokens: int) -> None:
        """A waiting request's prefix was kept recent."""

    def match(self, req: Req | None, found: Found) -> None:
        """A key was matched; without a request it is the re-match after an insert."""

    def evict(self, evicted: Evicted) -> None:
        """An eviction call is over."""

    def extend(self, req: Req, start: int, length: int, blocks: Blocks) -> None:
        """A prefill row got its blocks (a mixed batch's decode rows too)."""

    def decode(self, rows: Sequence[tuple[Req, Blocks]]) -> None:
        """A decode batch got its blocks."""

    def verify(self, rows: Sequence[tuple[Req, int, int, int]]) -> None:
        """A verify step ended: request, committed before it, accepted, row length."""

    def insert(self, req: Req, up_to: int, finished: bool) -> None:
        """A checkpoint is over."""

    def finish(self, req: Req) -> None:
        """A request has ended."""

    def retract(self, req: Req, protected: int, allocated: int) -> None:
        """A running request is about to be given back to the queue."""

    def transfer(self, direction: str, tokens: int, group: str) -> None:
        """KV of a group was copied between device and host (``d2h``, ``h2d``)."""
