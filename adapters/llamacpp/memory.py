"""A model's memory: cells and states of all groups behind one set of calls, and their operations.

The calls are llama.h's (seq_rm, seq_add, seq_cp, state save and load); each change is also written
down as operations for the executor. A slot's sequence is *open* while a request runs on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from handoff.index.spans import Seq
from handoff.types import (
    Bind,
    Close,
    Copy,
    Cut,
    Op,
    Open,
    Row,
    Shift,
    Spans,
    StateUse,
)

from .batches import Work, consecutive, equal
from .cells import Cells, Purge, runs
from .copies import SEQ_BYTES, Part, Saved, cache_bytes, zip_runs
from .hostpool import HostPool
from .layout import FULL, STATE, WINDOW, host_name, make_layout
from .options import Options
from .recurrent import States

__all__ = ["Chunk", "Memory"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """``length`` cached tokens at ``source`` reused at ``target`` (< source)."""

    source: int
    target: int
    length: int


class Memory:
    """Cells, states, host pools, and the operations not yet emitted."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.kv: dict[str, Cells] = {}
        slots = options.num_slots
        if options.memory == "window":
            self.kv[WINDOW] = Cells(options.window_cells, options.streams, slots, options.n_swa)
        if options.memory != "recurrent":
            self.kv[FULL] = Cells(options.stream_cells, options.streams, slots)
        self.states: States | None = None
        if options.memory in ("recurrent", "hybrid"):
            self.states = States(slots, options.num_drafts > 0)
        self.layout = make_layout(options)
        self.hosts = {
            group.name: HostPool(pool.name, pool.blocks)
            for group in self.layout.groups
            for pool in (self.layout.pool(host_name(group.name)),)
        }
        self.ops: list[Op] = []
        self.open_seq: list[int | None] = [None] * slots
        self.purged: list[Purge] = []
        """What writes pushed out since the server last looked."""
        self._next_seq = 0

    # -- what the memory reports ---------------------------------------------------------------

    def pos_min(self, slot: int, chunks: Sequence[Chunk] = ()) -> int:
        """Smallest position held, after ``chunks`` are moved; -1 if none (RULES 7)."""
        if self.states is None:
            return self._kv_min(self.kv.get(WINDOW) or self.kv[FULL], slot, chunks)
        state = self.states.pos[slot]
        for chunk in chunks:
            if chunk.source <= state < chunk.source + chunk.length:
                state += chunk.target - chunk.source
                break
        if not self.kv:
            return state
        return max(state, self._kv_min(self.kv[FULL], slot, chunks))

    @staticmethod
    def _kv_min(cells: Cells, slot: int, chunks: Sequence[Chunk]) -> int:
        low = cells.pos_min(slot)
        if not chunks or low < chunks[0].target:
            return low
        for chunk in chunks:
            if chunk.source + chunk.length > low:
                return chunk.target + max(0, low - chunk.source)
        return low

    def pos_max(self, slot: int) -> int:
        """Highest position held by every group; -1 if none."""
        if self.states is None:
            return (self.kv.get(WINDOW) or self.kv[FULL]).pos_max(slot)
        state = self.states.pos[slot]
        return min(state, self.kv[FULL].pos_max(slot)) if self.kv else state

    def num_held(self, slot: int) -> int:
        """Cells and states a slot's sequence holds, all groups."""
        held = sum(cells.pos_max(slot) + 1 for cells in self.kv.values())
        return held + (self.states is not None and self.states.pos[slot] >= 0)

    # -- seq_rm, seq_add, seq_cp ---------------------------------------------------------------

    def remove(self, slot: int, start: int, stop: int | None = None) -> None:
        """Take positions ``[start, stop)`` from a slot's sequence."""
        seq = self.open_seq[slot]
        for name, cells in self.kv.items():
            top = cells.pos_max(slot) + 1
            if cells.remove(slot, start, stop) and seq is not None:
                self.ops.append(Cut(seq, name, start, top if stop is None else min(stop, top)))
        if self.states is not None:
            self.states.remove(slot, start, stop)

    def move(self, slot: int, start: int, stop: int, delta: int) -> None:
        """Shift the positions ``[start, stop)`` of a closed sequence; keys are rotated."""
        assert self.open_seq[slot] is None, "an open sequence is closed before it is shifted"
        for name, cells in self.kv.items():
            moved = cells.shift(slot, start, stop, delta)
            if moved:
                self.ops.append(Shift(name, tuple(runs(sorted(moved))), delta))
        if self.states is not None:
            ids = self.states.shift(slot, start, stop, delta)
            if ids:
                self.ops.append(Shift(STATE, tuple(runs(ids)), delta))

    def copy(self, source: int, target: int) -> None:
        """``target`` gets what ``source`` holds: shared cells if unified, else a copied stream."""
        for name, cells in self.kv.items():
            pairs = cells.copy(source, target)
            if pairs:
                first = pairs[0][1] - pairs[0][0]
                here = runs(sorted(cell for cell, _ in pairs))
                moves = tuple((start, start + first, count) for start, count in here)
                self.ops.append(Copy(name, name, name, moves))
        if self.states is not None:
            states = self.states
            states.pos[target] = states.pos[source]
            if states.pos[source] >= 0:
                run = (states.ids(source)[0], states.ids(target)[0], 1)
                self.ops.append(Copy(STATE, STATE, STATE, (run,)))

    def keep_state(self, slot: int) -> None:
        """Remember the state before a row that verifies drafts."""
        if self.states is not None:
            state, kept = self.states.ids(slot)
            self.ops.append(Copy(STATE, STATE, STATE, ((state, kept, 1),)))

    def return_state(self, slot: int, length: int) -> None:
        """Back to the kept state of ``length`` tokens; cells beyond them go as well."""
        assert self.states is not None
        state, kept = self.states.ids(slot)
        self.ops.append(Copy(STATE, STATE, STATE, ((kept, state, 1),)))
        self.states.pos[slot] = length - 1
        self.remove(slot, length)

    # -- serialized copies ---------------------------------------------------------------------

    def _partial(self) -> tuple[str, ...]:
        return (STATE,) if self.states is not None else (WINDOW,)

    def _content(self, slot: int, partial: bool) -> list[tuple[str, list[int], list[int]]]:
        """Group, cells and positions of a copy."""
        wanted = self._partial() if partial else (*self.kv, STATE)
        found = [(name, *cells.saved(slot)) for name, cells in self.kv.items() if name in wanted]
        if self.states is not None and STATE in wanted and self.states.pos[slot] >= 0:
            found.append((STATE, [self.states.ids(slot)[0]], [self.states.pos[slot]]))
        return found

    def num_bytes(self, slot: int, partial: bool = False) -> int:
        """Bytes of a serialized copy, the draft model's included (RULES 8.4)."""
        options = self.options
        wanted = self._partial() if partial else (*self.kv, STATE)
        total = SEQ_BYTES
        for name, layers, size in (
            (FULL, options.n_layer, options.kv_bytes_per_token),
            (WINDOW, options.n_layer_swa, options.swa_bytes_per_token),
        ):
            if name in self.kv and name in wanted:
                count = self.kv[name].num_saved(slot)
                total += cache_bytes(count, layers, size, options.streams)
        if self.states is not None:
            total += options.state_bytes
        if options.draft_n_layer and not partial:
            count = self.pos_max(slot) + 1
            layers, size = options.draft_n_layer, options.draft_bytes_per_token
            total += SEQ_BYTES + cache_bytes(count, layers, size, options.streams)
        return total

    def save(self, slot: int, partial: bool = False) -> Saved:
        """A serialized copy of a slot's sequence in host cells."""
        num_bytes = self.num_bytes(slot, partial)
        parts = []
        for name, cells, positions in self._content(slot, partial):
            if not cells:
                continue
            host = self.hosts[name].take(len(cells))
            self.ops.append(Copy(name, name, host_name(name), zip_runs(runs(cells), host)))
            parts.append(Part(name, positions, host))
        return Saved(tuple(parts), num_bytes)

    def load(self, slot: int, saved: Saved) -> bool:
        """Replace the groups of a copy in a slot's sequence; False if there is no room.

        An open sequence (RULES 11.4) is re-opened by the caller.
        """
        for part in saved.parts:
            if part.group == STATE:
                assert self.states is not None
                self.states.pos[slot] = part.positions[0]
                cells = [self.states.ids(slot)[0]]
            else:
                placed = self.kv[part.group].restore(slot, part.positions)
                if placed is None:
                    return False
                cells = placed[0]
                self._pushed_out(part.group, placed[1])
            copies = zip_runs(part.host, runs(cells))
            self.ops.append(Copy(part.group, host_name(part.group), part.group, copies))
        return True

    def clone(self, saved: Saved) -> Saved:
        """A second copy of a copy (a child's checkpoints, a slot file read back)."""
        parts = []
        for part in saved.parts:
            host = self.hosts[part.group].take(len(part.positions))
            name = host_name(part.group)
            self.ops.append(Copy(part.group, name, name, zip_runs(part.host, host)))
            parts.append(Part(part.group, part.positions, host))
        return Saved(tuple(parts), saved.num_bytes)

    def drop(self, saved: Saved) -> None:
        """A copy is given up; its host cells come back."""
        for part in saved.parts:
            self.hosts[part.group].give(part.host)

    # -- open sequences ------------------------------------------------------------------------

    def open(self, slot: int, request: str, tokens: Seq, lora: str | None) -> int:
        """Open a sequence on what the slot holds; returns its number."""
        assert self.open_seq[slot] is None
        seq = self._next_seq
        self._next_seq += 1
        self.open_seq[slot] = seq
        self.ops.append(Open(seq, request, tokens, lora))
        for name, cells in self.kv.items():
            low, table = cells.low[slot], cells.tables[slot]
            if table:
                self.ops.append(Bind(seq, name, low, tuple(table[low:]), False))
        if self.states is not None:
            kept = self.states.load(slot)
            for column, ident in enumerate(self.states.ids(slot)):
                self.ops.append(Bind(seq, STATE, column, (ident,), ident != kept))
        return seq

    def close(self, slot: int) -> None:
        """The slot's sequence ends; what it holds stays in the slot."""
        seq = self.open_seq[slot]
        if seq is not None:
            self.ops.append(Close(seq))
            self.open_seq[slot] = None

    # -- micro-batches -------------------------------------------------------------------------

    def split(self, work: Sequence[Work]) -> list[list[Work]]:
        """The micro-batches of a batch (RULES 6; llama-batch.cpp)."""
        if self.options.unified and self.states is None:
            return list(consecutive(work, self.options.micro_batch))
        return list(equal(work, self.options.micro_batch, in_order=not self.options.unified))

    def fits(self, batches: Sequence[Sequence[Work]]) -> bool:
        """Whether all micro-batches find room; changes nothing."""
        for cells in self.kv.values():
            need = [0] * cells.streams
            for batch in batches:
                for work in batch:
                    need[cells.stream(work.slot)] += work.count
            if all(cells.size - used >= n for used, n in zip(cells.used, need, strict=True)):
                continue
            if cells.window is None:
                return False
            if all(n == 0 or cells.num_usable(s) >= n for s, n in enumerate(need)):
                continue
            if not self._tried(cells, batches):
                return False
        return True

    @staticmethod
    def _tried(cells: Cells, batches: Sequence[Sequence[Work]]) -> bool:
        """Place all micro-batches and undo it; a later one may use what an earlier one frees."""
        state = cells.snapshot()
        try:
            return all(
                _write(cells, stream, part) is not None
                for batch in batches
                for stream, part in _by_stream(cells, batch)
            )
        finally:
            cells.rollback(state)

    def place(self, batch: Sequence[Work]) -> None:
        """Cells for one micro-batch that fits; binds them."""
        for name, cells in self.kv.items():
            for stream, part in _by_stream(cells, batch):
                placed = _write(cells, stream, part)
                assert placed is not None, "a micro-batch that was found to fit has no room"
                ids, purges = placed
                self._pushed_out(name, purges)
                done = 0
                for work in part:
                    seq = self.open_seq[work.slot]
                    assert seq is not None
                    new = tuple(ids[done : done + work.count])
                    self.ops.append(Bind(seq, name, work.start, new, True))
                    done += work.count

    def row(self, work: Work, tokens: Seq, emits: int) -> Row:
        """The row of one placed piece of work."""
        seq = self.open_seq[work.slot]
        assert seq is not None
        states: tuple[StateUse, ...] = ()
        if self.states is not None:
            load = self.states.load(work.slot)
            saves = self.states.advance(work.slot, work.start + work.count)
            states = (StateUse(STATE, load, saves),)
        return Row(seq, work.start, tokens, work.drafts, emits, self.spans(work), states)

    def spans(self, work: Work) -> Spans | None:
        """Where a window group lost positions the row should see (RULES 11.3)."""
        window = self.kv.get(WINDOW)
        if window is None or window.window is None:
            return None
        low = window.low[work.slot]
        if low <= max(0, work.start - window.window + 1):
            return None
        groups = self.layout.groups
        visible = tuple(low if group.name == WINDOW else 0 for group in groups)
        return Spans((work.start,), (work.start,) * len(groups), visible)

    def _pushed_out(self, group: str, purges: Iterable[Purge]) -> None:
        for purge in purges:
            seq = self.open_seq[purge.seq]
            if seq is not None:
                self.ops.append(Cut(seq, group, purge.start, purge.stop))
            self.purged.append(purge)


def _by_stream(cells: Cells, batch: Sequence[Work]) -> list[tuple[int, list[Work]]]:
    """A micro-batch's work by stream, in batch order."""
    if cells.streams == 1:
        return [(0, list(batch))]
    return [(cells.stream(work.slot), [work]) for work in batch]


def _write(cells: Cells, stream: int, part: Sequence[Work]) -> tuple[list[int], list[Purge]] | None:
    ids = cells.find(stream, sum(work.count for work in part))
    if ids is None:
        return None
    return ids, cells.write(ids, [(work.slot, work.start, work.count) for work in part])
