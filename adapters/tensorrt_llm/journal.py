"""What happened since the last Step: operations, events, and facts that recordings list.

The block manager writes operations in the order of its own bookkeeping; the engine takes them into
the next Step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from handoff.index.spans import Seq
from handoff.types import Bind, Close, Copy, Cut, Event, Op, Open

if TYPE_CHECKING:
    from .request import LlmRequest

__all__ = ["Fact", "Journal", "group_name", "host_pool", "primary_pool"]


def group_name(window: int) -> str:
    """Group of the layers with this attention window."""
    return f"window {window}"


def primary_pool(window: int) -> str:
    """Device pool of a window manager."""
    return f"primary {window}"


def host_pool(window: int) -> str:
    """Secondary pool of a window manager."""
    return f"secondary {window}"


class Fact(NamedTuple):
    """One line of bookkeeping: ``kind`` of ``window`` with upstream's block ids in ``data``.

    evict (block, tokens); offload (victim, host block); onboard (block, freed block); copy (source,
    new, tokens); take (block, tokens); tie (candidates, block, tokens); store (block, index,
    tokens); detach_front (block, index); remove (): what follows belongs to a sequence's end.
    """

    kind: str
    window: int
    data: tuple[int, ...]


class Journal:
    """Collects operations, events and facts; ``take`` hands them over and starts afresh."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._events: list[Event] = []
        self.keeps_facts = False
        """Recordings want facts; runs do without."""
        self._facts: list[Fact] = []
        self._evicted: dict[int, tuple[list[int], list[int]]] = {}  # per window: ids, tokens
        # A run of consecutive columns that grows before it becomes one Bind.
        self._run: tuple[int, str, int, list[int], bool] | None = None

    def open(self, seq: int, request: LlmRequest) -> None:
        """A sequence starts with the tokens known now."""
        known = Seq()
        known.extend(request.tokens)
        self._put(Open(seq, request.id, known, request.lora))

    def close(self, seq: int) -> None:
        """A sequence ends."""
        self._put(Close(seq))

    def bind(self, seq: int, window: int, column: int, slot: int, fresh: bool) -> None:
        """One table entry; neighbours become one operation."""
        group = group_name(window)
        if self._run is not None:
            last_seq, last_group, first, ids, last_fresh = self._run
            if (last_seq, last_group, last_fresh) == (seq, group, fresh) and (
                first + len(ids) == column
            ):
                ids.append(slot)
                return
        self._flush()
        self._run = (seq, group, column, [slot], fresh)

    def cut(self, seq: int, window: int, first: int, last: int) -> None:
        """Columns ``[first, last)`` leave the table."""
        self._put(Cut(seq, group_name(window), first, last))

    def copy(
        self, window: int, source: tuple[str, int], target: tuple[str, int], size: int, tokens: int
    ) -> None:
        """Copies ``tokens`` slots of block ``(pool, slot)`` to another; ``size`` slots a block."""
        (src_pool, src), (dst_pool, dst) = source, target
        runs = ((src * size, dst * size, tokens),)
        self._put(Copy(group_name(window), src_pool, dst_pool, runs))

    def event(self, event: Event) -> None:
        """Something for the ledger."""
        self._events.append(event)

    def fact(self, kind: str, window: int, *data: int) -> None:
        """A line of bookkeeping; evictions and moves between tiers are events, too."""
        if self.keeps_facts:
            self._facts.append(Fact(kind, window, data))
        if kind == "evict":
            evicted = self._evicted.setdefault(window, ([], []))
            evicted[0].append(data[0])
            evicted[1].append(data[1])
        elif kind in ("offload", "onboard"):
            self._events.append(Event(kind, group_name(window), data, rule="6"))

    def inserted(self, seq: int, window: int, tokens: int) -> None:
        """The first ``tokens`` tokens of a sequence became findable in a window."""
        self._events.append(Event("insert", group_name(window), seq=seq, tokens=tokens, rule="11b"))

    def take_facts(self) -> list[Fact]:
        """Facts since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def take(self) -> tuple[tuple[Op, ...], tuple[Event, ...]]:
        """Operations and events since the last call."""
        self._flush()
        for window, (ids, tokens) in self._evicted.items():
            self._events.append(
                Event("evict", group_name(window), tuple(ids), tokens=sum(tokens), rule="6")
            )
        self._evicted.clear()
        ops, events = tuple(self._ops), tuple(self._events)
        self._ops, self._events = [], []
        return ops, events

    @property
    def empty(self) -> bool:
        """Nothing is waiting for a Step."""
        return not (self._ops or self._events or self._evicted or self._run)

    def _put(self, op: Op) -> None:
        self._flush()
        self._ops.append(op)

    def _flush(self) -> None:
        if self._run is not None:
            seq, group, column, ids, fresh = self._run
            self._run = None
            self._ops.append(Bind(seq, group, column, tuple(ids), fresh))
