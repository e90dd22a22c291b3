"""The operations half of the tag pass: what ``open`` to ``load`` do to tags, and may not do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from handoff.types import (
    NULL,
    Bind,
    Close,
    Copy,
    Cut,
    Layout,
    Load,
    Op,
    Open,
    Shift,
    Spans,
    Zero,
)

from .faults import TagFault
from .names import Names, Words, seed
from .slots import SHIFTED, VOID, ZERO, Reader, Slots
from .tables import InOrder, Ints, Sequence, Tables, expand

__all__ = ["Reading", "TagOps"]

Taint = NDArray[np.uint8]


class Reading:
    """One open sequence as the tag pass sees it."""

    __slots__ = ("cold", "names", "readers")

    def __init__(self, of: Sequence, salt: str | None) -> None:
        self.names = Names(of.lora, salt)
        self.readers = [Reader() for _ in of.tables]
        self.cold: Spans | None = None


class TagOps(InOrder):
    """Tags, what each open sequence has verified, and the operations that change either."""

    def __init__(self, layout: Layout, salts: Mapping[str, str | None] | None = None) -> None:
        super().__init__()
        self._salts = salts or {}
        self.layout = layout
        self.tables = Tables(layout)
        self._number = 0
        self._slots: dict[tuple[int, str], Slots] = {}
        self._reading: dict[int, Reading] = {}
        self._loras: dict[int, str | None] = {seed(None): None}
        """LoRA of every seed seen so far."""
        self._shifted: dict[int, Ints] = {}

    def _tags(self, at: int, pool: str | None = None) -> Slots:
        group = self.layout.groups[at]
        key = at, pool or group.pool
        found = self._slots.get(key)
        if found is None:
            size = group.block_size if group.kind == "kv" else 1
            found = self._slots[key] = Slots(self.layout.pool(key[1]).blocks, size)
        return found

    def _fault(
        self,
        rule: str,
        message: str,
        of: Sequence | None = None,
        at: int | None = None,
        **where: object,
    ) -> TagFault:
        return TagFault(
            rule,
            message,
            step=self._number,
            seq=of.seq if of else None,
            request=of.request if of else None,
            group=None if at is None else self.layout.groups[at].name,
            **where,  # type: ignore[arg-type]
        )

    # -- operations -------------------------------------------------------------------------

    def _apply(self, op: Op) -> None:
        if isinstance(op, Bind):
            self._bind(op)
        elif isinstance(op, Cut):
            self.tables.apply(op)
            self._rebound(self.tables.index[op.group], op.seq, op.first, op.last)
        elif isinstance(op, Open):
            self.tables.apply(op)
            salt = self._salts.get(op.request.partition("#")[0])
            reading = self._reading[op.seq] = Reading(self.tables.open[op.seq], salt)
            self._loras[reading.names.seed] = op.lora
        elif isinstance(op, Close):
            self.tables.apply(op)
            del self._reading[op.seq]
        elif isinstance(op, Copy):
            self._copy(op)
        elif isinstance(op, Shift):
            self._shift(op)
        elif isinstance(op, Zero):
            at = self.tables.index[op.group]
            for first, count in op.runs:
                slots = np.arange(first, first + count)
                zeros = np.zeros(count, np.uint64)
                self._put(at, None, slots, np.full(count, ZERO, np.int32), zeros, None)
        elif isinstance(op, Load):
            self._load(op)

    def _bind(self, op: Bind) -> None:
        at = self.tables.index[op.group]
        group = self.layout.groups[at]
        self.tables.apply(op)
        of = self.tables.open[op.seq]
        if op.fresh:
            ids = np.array([block for block in op.ids if block != NULL], np.int64)
            held = self.tables.held[group.pool]
            if len(ids) and held[ids].max() > 1:
                block = int(ids[held[ids] > 1][0])
                raise self._fault(
                    "fresh id held",
                    f"id {block} is handed out while an open table holds it",
                    of,
                    at,
                    position=(op.column + op.ids.index(block)) * of.tables[at].block_size,
                    slot=block * of.tables[at].block_size,
                    expected="held by nobody",
                    found=f"held by sequence {self._holder(group.pool, block, op.seq)}",
                )
            for other, each in enumerate(self.layout.groups):
                if each.pool == group.pool:
                    tags = self._tags(other)
                    tags.label.reshape(-1, tags.size)[ids] = VOID
                    tags.taint.reshape(-1, tags.size)[ids] = 0
        self._rebound(at, op.seq, op.column, op.column + len(op.ids))

    def _holder(self, pool: str, block: int, but: int) -> int:
        """A sequence other than ``but`` (if there is one) that holds the id."""
        for of in self.tables:
            for group, table in zip(self.layout.groups, of.tables, strict=True):
                if group.pool == pool and of.seq != but and block in table.ids:
                    return of.seq
        return but

    def _rebound(self, at: int, seq: int, first: int, last: int) -> None:
        """Columns ``[first, last)`` changed: what was verified there is so no longer."""
        reader = self._reading[seq].readers[at]
        size = self.tables.open[seq].tables[at].block_size
        if self.layout.groups[at].ring:
            reader.reset()
        elif first * size <= reader.first:
            reader.keep(last * size, reader.last)
        else:
            reader.keep(reader.first, first * size)

    def _copy(self, op: Copy) -> None:
        at = self.tables.index[op.group]
        source = self._tags(at, op.src_pool)
        for src, dst, count in op.runs:
            taken = slice(src, src + count)
            slots = np.arange(dst, dst + count)
            label, name = source.label[taken].copy(), source.name[taken].copy()
            self._put(at, op.dst_pool, slots, label, name, source.taint[taken].copy())

    def _shift(self, op: Shift) -> None:
        at = self.tables.index[op.group]
        tags = self._tags(at)
        held = self.tables.held[self.layout.groups[at].pool]
        self._once(at, op)
        for first, count in op.runs:
            slots = np.arange(first, first + count)
            shared = held[slots // tags.size] > 1
            if shared.any():
                slot = int(slots[shared][0])
                raise self._fault(
                    "shared shift",
                    "another open table sees the shifted slot",
                    at=at,
                    slot=slot,
                    position=int(tags.label[slot]) - 1,
                )
            filled = slots[tags.label[slots] > 0]
            tags.label[filled] += op.delta
            tags.taint[filled] |= SHIFTED
            if len(filled) and tags.label[filled].min() < 1:
                raise self._fault("negative position", f"shift by {op.delta}", at=at, slot=first)
            tags.touch(slots)

    def _once(self, at: int, op: Shift) -> None:
        """No slot shifts twice in a Step."""
        moved = np.concatenate([np.arange(first, first + count) for first, count in op.runs])
        seen = np.concatenate((self._shifted.get(at, moved[:0]), moved))
        self._shifted[at] = seen
        slots, times = np.unique(seen, return_counts=True)
        if (times > 1).any():
            slot = int(slots[times > 1][0])
            raise self._fault("shifted twice", "a slot shifts once a Step", at=at, slot=slot)

    def _load(self, op: Load) -> None:
        at = self.tables.index[op.group]
        of = self.tables.sequence(op.seq)
        if op.stop > len(of.content):
            raise self._fault(
                "load beyond content",
                f"[{op.start}, {op.stop}) of {len(of.content)} known tokens",
                of,
                at,
                position=len(of.content),
            )
        names = self._names(of, op.stop)
        if self.layout.groups[at].kind == "state":
            slots = of.tables[at].ids[-1:]
            labels, text = np.array([op.stop + 1]), np.array([names.last(op.stop)], np.uint64)
        else:
            slots = of.tables[at].slots(op.start, op.stop)
            labels, text = np.arange(op.start + 1, op.stop + 1), names.of(op.start, op.stop)
        if len(slots) == 0 or slots.min() < 0:
            raise self._fault("hole", "a load needs slots", of, at, position=op.start, found=NULL)
        self._put(at, None, slots, labels.astype(np.int32), text, None, of)

    def _put(
        self,
        at: int,
        pool: str | None,
        slots: Ints,
        label: NDArray[np.int32],
        name: Words,
        taint: Taint | None,
        of: Sequence | None = None,
    ) -> None:
        """Give ``slots`` other tags; readers look again. Faults on a shared slot."""
        tags = self._tags(at, pool)
        self._guard(at, pool, tags, slots, label, name, of)
        tags.label[slots] = label
        tags.name[slots] = name
        tags.taint[slots] = 0 if taint is None else taint
        tags.touch(slots)

    def _guard(
        self,
        at: int,
        pool: str | None,
        tags: Slots,
        slots: Ints,
        label: NDArray[np.int32],
        name: Words,
        of: Sequence | None,
    ) -> None:
        """Raise if a slot in two open tables would get other content."""
        home = self.layout.groups[at].pool
        if pool is not None and pool != home:
            return
        held = self.tables.held[home]
        if len(slots) == 1 and held[int(slots[0]) // tags.size] <= 1:
            return
        shared = held[slots // tags.size] > 1
        if not shared.any():
            return
        old = tags.label[slots]
        other = shared & (old != VOID) & ((old != label) | (tags.name[slots] != name))
        if other.any():
            slot = int(slots[other][0])
            raise self._fault(
                "shared overwrite",
                "another open table sees the slot, and the content differs",
                of,
                at,
                position=int(label[other][0]) - 1,
                slot=slot,
                expected=self._describe(tags, slot),
                found="other content",
            )

    def _describe(self, tags: Slots, slot: int) -> str:
        label = int(tags.label[slot])
        if label <= 0:
            return "void" if label == VOID else "zeros"
        return f"position {label - 1} of text {int(tags.name[slot]):016x}"

    def _names(self, of: Sequence, stop: int) -> Names:
        names = self._reading[of.seq].names
        if names.length < stop:
            names.extend(expand(of.content, names.length, stop))
        return names
