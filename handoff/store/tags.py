"""The tag pass: every Step over content tags alone, without tensors; soundness is found here.

Each slot carries (position, name of LoRA and text up to it, taint). ``TagStore`` runs a Step as the
executor would (RECORDS 4, order O1 to O8; RECORDS 5) and raises ``TagFault`` where it would read a
hole, a void slot or a slot of another position, hand out an id twice, overwrite or shift what
another open table sees, or compute other tokens than the sequence's. Reading what a cold run would
not hold is no fault but *taint*, counted by cause, and it spreads: a tainted row taints all it
writes.

A slot is tested when it first becomes visible to a table and when its content changes behind the
table's back, not at every row; ``every=True`` tests every visible slot of every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from handoff.types import NULL, Group, Layout, StateUse, Step

from .names import Words
from .slots import CAUSES, SHIFTED, VOID, ZERO, Slots, names_of
from .tables import Ints, Sequence, Settled, Table, expand
from .tagops import Reading, TagOps

__all__ = ["TagStore"]

_TEXT, _MOVED, _LORA, _STATE, _ZEROS, _HIDDEN, _SALT = (1 << at for at in range(len(CAUSES)))

_NOWHERE: Ints = np.empty(0, np.int64)


class _Pass:
    """One row on its way through a Step; ``spans`` as ``TagStore._span`` gives them."""

    __slots__ = ("causes", "names", "reading", "row", "slots", "spans", "state")

    def __init__(
        self,
        row: Settled,
        reading: Reading,
        names: Words,
        spans: dict[int, tuple[int, int, int]],
    ) -> None:
        self.row = row
        self.reading = reading
        self.names = names
        self.spans = spans
        self.causes: dict[int, int] = {}
        """What ring groups read before anything was written."""
        self.slots: dict[int, Ints] = {}
        self.state = 0


class TagStore(TagOps):
    """Runs Steps over tags; see the module.

    ``taint`` counts computed tokens by cause, ``num_tokens`` all of them, ``num_tainted`` those
    with any cause, ``first`` describes the first occurrence of each cause. With ``salts`` (request
    to salt) a salt counts as content.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        every: bool = False,
        salts: Mapping[str, str | None] | None = None,
    ) -> None:
        super().__init__(layout, salts)
        self.every = every
        self.taint: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.rows: list[Settled] = []
        """The last Step's rows with their real positions and tokens."""
        self.causes: dict[int, tuple[str, ...]] = {}
        """Causes of taint of the last Step's rows, by sequence; clean rows are absent."""
        self.num_tokens = self.num_tainted = 0
        self._stages = [_stages_of(layout, group) for group in layout.groups]
        groups = list(enumerate(layout.groups))
        self._kv = [at for at, group in groups if group.kind == "kv"]
        self._rings = [at for at, group in groups if group.ring]
        self._states = len(self._kv) < len(groups)

    def tainted(self, seq: int, stop: int) -> int:
        """Positions below ``stop`` that an open sequence sees tainted, in whatever group."""
        reading = self._reading.get(seq)
        runs = [run for reader in reading.readers for run in reader.runs] if reading else []
        total = edge = 0
        for first, last, _ in sorted(runs):
            total += max(0, min(last, stop) - max(first, edge))
            edge = max(edge, last)
        return total

    def _run(self, step: Step) -> None:
        self._number = step.number
        self._shifted.clear()
        self.causes.clear()
        for op in step.ops:
            self._apply(op)
        for handoff in step.handoffs:
            if handoff.seq in self._reading:
                self._reading[handoff.seq].cold = handoff.cold
        rows = self.rows = [self.tables.settle(step, row) for row in step.rows]
        passes = [self._pass(row) for row in rows]
        for each in passes:
            for at in self._rings:
                each.causes[at] = self._read(each, at)
            each.state = self._load_states(each.row) if self._states else 0
        for each in passes:
            for at in self._kv:
                each.slots[at] = self._write(each, at)
        for each in passes:
            self._finish(each)
            self.tables.remember(each.row)

    def _pass(self, row: Settled) -> _Pass:
        reading = self._reading[row.of.seq]
        spans = {at: self._span(row, at) for at in self._kv}
        return _Pass(row, reading, self._row_names(row), spans)

    def _row_names(self, row: Settled) -> Words:
        """Names of the row's positions; drafts get those of the text they would make."""
        names = self._names(row.of, min(row.stop, len(row.of.content)))
        if row.stop <= names.length:
            return names.of(row.start, row.stop)
        return names.follow(row.start, expand(row.tokens))

    def _span(self, row: Settled, at: int) -> tuple[int, int, int]:
        """``(first seen, first written, first computed)`` of the row in a KV group."""
        group = self.layout.groups[at]
        reads, owns = self._stages[at]
        computed = min(row.compute(reads), row.stop)
        first = row.visible(at)
        if group.window is not None:
            first = max(first, computed - group.window + 1)
        if group.local is not None:
            first = max(first, computed - computed % group.local)
        write = max(row.write(at), row.compute(owns))
        return max(first, 0), min(write, row.stop), computed

    def _read(self, each: _Pass, at: int) -> int:
        """Test what the row sees of older content; returns the causes of taint in it."""
        row, reader = each.row, each.reading.readers[at]
        first, write, computed = each.spans[at]
        tags = self._tags(at)
        table = row.of.tables[at]
        if reader.epoch != tags.epoch:
            blocks = table.blocks(reader.first, reader.last)
            if (tags.stamp[blocks[blocks >= 0]] > reader.epoch).any():
                reader.reset()
            reader.epoch = tags.epoch
        if self.every:
            reader.reset()
        if write < reader.last:
            reader.keep(reader.first, write)
        if computed >= row.stop or first >= write:
            return 0
        start = reader.last if reader.first <= first <= reader.last else first
        if start < write:
            self._verify(row.of, at, tags, table, start, write)
            if start == first:
                reader.first = first
            reader.last = write
        return reader.cause(first, write) if reader.runs else 0

    def _verify(
        self, of: Sequence, at: int, tags: Slots, table: Table, first: int, last: int
    ) -> None:
        """Slots of the positions ``[first, last)`` hold these positions; note taint."""
        slots = table.slots(first, last)
        label = tags.label[slots]
        wrong = (slots < 0) | ((label != np.arange(first + 1, last + 1)) & (label != ZERO))
        if wrong.any():
            offset = int(np.flatnonzero(wrong)[0])
            slot, found = int(slots[offset]), int(label[offset])
            rule = "hole" if slot < 0 else "void slot" if found == VOID else "slot position"
            raise self._fault(
                rule,
                "a visible position has no content of its own",
                of,
                at,
                position=first + offset,
                slot=None if slot < 0 else slot,
                expected=f"position {first + offset}",
                found="NULL" if slot < 0 else self._describe(tags, slot),
            )
        names = self._names(of, last).of(first, last)
        cause = tags.taint[slots] & ~np.uint8(SHIFTED)
        zero = label == ZERO
        other = tags.name[slots] != names
        if not (other.any() or cause.any() or zero.any()):
            return
        cause[zero] |= _ZEROS
        for offset in np.flatnonzero(other & ~zero).tolist():
            cause[offset] |= self._why(tags, int(slots[offset]), int(names[offset]), of)
        edges = np.flatnonzero(np.diff(cause)) + 1
        reader = self._reading[of.seq].readers[at]
        for start, stop in zip((0, *edges.tolist()), (*edges.tolist(), len(cause))):
            if cause[start]:
                reader.note(first + start, first + stop, int(cause[start]))
                self._name_first(int(cause[start]), of, at, first + start, int(slots[start]))

    def _why(self, tags: Slots, slot: int, expected: int, of: Sequence) -> int:
        """Cause of a text that differs."""
        if tags.taint[slot] & SHIFTED:
            return _MOVED
        bare = (int(tags.name[slot]) - expected + self._reading[of.seq].names.seed) % (1 << 64)
        if bare not in self._loras:
            return _TEXT
        return _SALT if self._loras[bare] == of.lora else _LORA

    def _write(self, each: _Pass, at: int) -> Ints:
        """Tag what the row stores in a KV group; returns its slots."""
        row = each.row
        group = self.layout.groups[at]
        first, write, computed = each.spans[at]
        if group.ring:
            write = max(write, row.stop - group.columns * group.block_size)
        if write >= row.stop:
            return _NOWHERE
        slots = row.of.tables[at].slots(write, row.stop)
        label = np.arange(write + 1, row.stop + 1, dtype=np.int32)
        text = each.names[write - row.start :]
        filled = slots >= 0
        if not filled.all():
            seen = max(first, write) - write
            if computed < row.stop and not filled[seen:].all():
                hole = write + seen + int(np.flatnonzero(~filled[seen:])[0])
                raise self._fault(
                    "hole", "the row sees a position it cannot store", row.of, at, position=hole
                )
            slots, label, text = slots[filled], label[filled], text[filled]
        tags = self._tags(at)
        self._guard(at, None, tags, slots, label, text, row.of)
        tags.label[slots] = label
        tags.name[slots] = text
        return slots

    def _finish(self, each: _Pass) -> None:
        """Paged reads, saves, and the row's taint on all it wrote."""
        row = each.row
        stages = [0] * self.layout.num_stages
        stages[0] |= each.state
        for at in self._kv:
            cause = each.causes[at] if at in each.causes else self._read(each, at)
            if row.spans is not None:
                cause |= self._hidden(row, at)
            stages[self._stages[at][0]] |= cause
        for stage in range(1, len(stages)):
            stages[stage] |= stages[stage - 1]
        self._count(row, stages)
        for at in self._kv:
            self._taint(each, at, stages[self._stages[at][1]])
        if row.states:
            self._save_states(row, each.names, stages[0])

    def _taint(self, each: _Pass, at: int, cause: int) -> None:
        """Mark the written slots, and take them over as verified."""
        tags, slots = self._tags(at), each.slots[at]
        if len(slots):
            changed = tags.taint[slots] != cause
            if changed.any():
                tags.taint[slots] = cause
                home = self.tables.held[self.layout.groups[at].pool]
                shared = slots[changed & (home[slots // tags.size] > 1)]
                if len(shared):
                    tags.touch(shared)
        row, reader = each.row, each.reading.readers[at]
        first, write, computed = each.spans[at]
        group = self.layout.groups[at]
        if computed < row.stop and write < row.stop:
            if not reader.first <= first <= reader.last:
                reader.first = max(first, write)
            reader.last = row.stop
            if cause:
                reader.note(write, row.stop, cause)
            if group.ring:
                reader.keep(row.stop - group.columns * group.block_size, row.stop)
        if row.drafts:  # an accepted one is tested against the sequence when it is next seen
            reader.keep(reader.first, len(row.of.content))

    def _hidden(self, row: Settled, at: int) -> int:
        """Does the row see less than the cold rule shows?"""
        if not row.visible(at):
            return 0
        group = self.layout.groups[at]
        computed = row.compute(self._stages[at][0])
        if computed >= row.stop:
            return 0
        cold = self._reading[row.of.seq].cold
        shown = max(cold.visible[at] if cold else 0, 0)
        if group.window is not None:
            shown = max(shown, computed - group.window + 1)
        hidden = row.visible(at) > shown and (row.visible(at) < row.stop or row.emits)
        if hidden:
            self._name_first(_HIDDEN, row.of, at, shown, NULL)
        return _HIDDEN if hidden else 0

    # -- states -----------------------------------------------------------------------------

    def _load_states(self, row: Settled) -> int:
        """Test the states that the row starts from; returns the causes of taint."""
        cause = 0
        used = {use.group: use for use in row.states}
        for at, group in enumerate(self.layout.groups):
            if group.kind == "state" and group.name in used:
                cause |= self._load_state(row, at, used[group.name])
            elif group.kind == "state" and any(
                layer.group == group.name for layer in self.layout.layers
            ):
                raise self._fault("no state", "the row names no state", row.of, at)
        return cause

    def _load_state(self, row: Settled, at: int, use: StateUse) -> int:
        if use.load == NULL:
            if row.start:
                raise self._fault(
                    "state position", "the zero state stands at 0", row.of, at, position=row.start
                )
            return 0
        tags = self._tags(at)
        found = int(tags.label[use.load])
        if found != row.start + 1:
            raise self._fault(
                "void state" if found == VOID else "state position",
                "the loaded state is not the row's start",
                row.of,
                at,
                position=row.start,
                slot=use.load,
                expected=f"position {row.start}",
                found=self._describe(tags, use.load),
            )
        cause = int(tags.taint[use.load]) & ~SHIFTED
        expected = self._names(row.of, row.start).last(row.start)
        if int(tags.name[use.load]) != expected:
            why = self._why(tags, use.load, expected, row.of)
            cause |= _STATE if why == _TEXT else why
        self._name_first(cause, row.of, at, row.start, use.load)
        return cause

    def _save_states(self, row: Settled, names: Words, cause: int) -> None:
        for use in row.states:
            at = self.tables.index[use.group]
            tags = self._tags(at)
            for position, block in use.saves:
                if not row.start < position <= row.stop:
                    raise self._fault(
                        "state position",
                        f"a save outside of the row ({row.start}, {row.stop}]",
                        row.of,
                        at,
                        position=position,
                        slot=block,
                    )
                slots = np.array([block])
                label = np.array([position + 1], np.int32)
                text = names[position - row.start - 1 : position - row.start]
                self._guard(at, None, tags, slots, label, text, row.of)
                tags.label[block] = position + 1
                tags.name[block] = text[0]
                tags.taint[block] = cause

    # -- counting ---------------------------------------------------------------------------

    def _count(self, row: Settled, stages: list[int]) -> None:
        self.num_tokens += len(row.tokens)
        if not stages[-1]:
            return
        seen = 0
        for stage, cause in enumerate(stages):
            computed = max(row.stop - row.compute(stage), 0)
            for name in names_of(cause & ~seen):
                self.taint[name] += computed
            if cause and not seen:
                self.num_tainted += computed
            seen |= cause
        self.causes[row.of.seq] = tuple(names_of(seen))

    def _name_first(self, cause: int, of: Sequence, at: int, position: int, slot: int) -> None:
        for name in names_of(cause):
            self.first.setdefault(
                name,
                f"step {self._number}, sequence {of.seq}, request {of.request},"
                f" group {self.layout.groups[at].name}, position {position}, slot {slot}",
            )


def _stages_of(layout: Layout, group: Group) -> tuple[int, int]:
    """The first stage whose layers read the group, and the last whose layers own its KV."""
    reads = [layer.stage for layer in layout.layers if layer.group == group.name]
    owns = [
        layer.stage for layer in layout.layers if layer.group == group.name and layer.reads is None
    ]
    return min(reads, default=0), max(owns, default=0)
