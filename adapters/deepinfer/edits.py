"""Collects the operations and events of the Step that is being planned, in bookkeeping order.

Only here do DeepInfer's two kinds of ids become operations on groups: a block id on ``blocks``, a
state id on each ring group. Whatever happens between two Steps leads the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

from handoff.types import Bind, Close, Copy, Cut, Event, Group, Layout, Load, Op, Open, Zero

from .layout import BLOCKS
from .sequence import Sequence

__all__ = ["Edits"]


class Edits:
    """Operations and events owed to the next Step."""

    def __init__(self, layout: Layout) -> None:
        self.rings: tuple[Group, ...] = tuple(group for group in layout.groups if group.ring)
        self.block_size = layout.group(BLOCKS).block_size
        self.ops: list[Op] = []
        self.events: list[Event] = []
        self._opened = 0

    def take(self) -> tuple[tuple[Op, ...], tuple[Event, ...]]:
        """Everything collected so far; forgets it."""
        ops, events = tuple(self.ops), tuple(self.events)
        self.ops, self.events = [], []
        return ops, events

    # -- tables -----------------------------------------------------------------------------

    def open(self, seq: Sequence) -> None:
        """A new sequence number for ``seq`` with all its tokens."""
        seq.seq = self._opened
        self._opened += 1
        self.ops.append(Open(seq.seq, seq.id, seq.tokens.slice(0, seq.length), seq.lora))

    def close(self, seq: Sequence) -> None:
        """The tables of ``seq`` vanish, if it ever had any."""
        if seq.seq >= 0:
            self.ops.append(Close(seq.seq))
            seq.seq = -1

    def bind(self, seq: Sequence, column: int, ids: list[int], fresh: bool) -> None:
        """Block ids from ``column`` on."""
        if ids:
            self.ops.append(Bind(seq.seq, BLOCKS, column, tuple(ids), fresh))

    def bind_state(self, seq: Sequence, fresh: bool) -> None:
        """The sequence's state id in every ring group."""
        for ring in self.rings:
            self.ops.append(Bind(seq.seq, ring.name, 0, (seq.state,), fresh))

    def cut(self, seq: Sequence, first: int, last: int) -> None:
        """Surplus columns ``[first, last)`` leave the table."""
        self.ops.append(Cut(seq.seq, BLOCKS, first, last))

    # -- contents ---------------------------------------------------------------------------

    def copy_block(self, src: int, dst: int, tokens: int) -> None:
        """The first ``tokens`` slots of a block."""
        run = (src * self.block_size, dst * self.block_size, tokens)
        self.ops.append(Copy(BLOCKS, "blocks", "blocks", (run,)))

    def copy_state(self, src: int, dst: int, stale: tuple[int, int] = (0, 0)) -> None:
        """Rings in both halves, whole; ``stale`` positions are left out and read as zeros."""
        first, last = stale
        for ring in self.rings:
            size = ring.block_size
            runs = tuple(
                (src * size + offset, dst * size + offset, count)
                for offset, count in _around(last, first + size, size)
            )
            self.ops.append(Copy(ring.name, ring.pool, ring.pool, runs))
            zeros = tuple((dst * size + at, count) for at, count in _around(first, last, size))
            if zeros:
                self.ops.append(Zero(ring.name, zeros))

    def load(self, seq: Sequence, group: str, start: int, stop: int) -> None:
        """The outside system fills the slots of positions ``[start, stop)``."""
        if stop > start:
            self.ops.append(Load(seq.seq, group, start, stop))

    def zero_ring(self, ring: Group, state: int) -> None:
        """All slots of one ring read as zeros."""
        self.ops.append(Zero(ring.name, ((state * ring.block_size, ring.block_size),)))

    def zero_blocks(self, ids: list[int], tokens: int) -> None:
        """The first ``tokens`` slots of a table read as zeros."""
        size = self.block_size
        runs = [
            (block * size, min(size, tokens - at * size))
            for at, block in enumerate(ids)
            if at * size < tokens
        ]
        if runs:
            self.ops.append(Zero(BLOCKS, tuple(runs)))

    def event(self, kind: str, seq: Sequence, rule: str, **more: object) -> None:
        """Something for the ledger."""
        number = seq.seq if seq.seq >= 0 else None
        self.events.append(Event(kind, seq=number, request=seq.id, rule=rule, **more))  # type: ignore[arg-type]

    def evicted(self, request: str, ids: tuple[int, ...], tokens: int) -> None:
        """The outside store dropped an entry; ``ids`` became free."""
        self.events.append(Event("evict", BLOCKS, ids, request=request, tokens=tokens, rule="9.6"))


def _around(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Runs ``(offset, count)`` of the positions ``[start, stop)`` round a ring, cut at the wrap."""
    while start < stop:
        offset = start % size
        count = min(stop - start, size - offset)
        yield offset, count
        start += count
