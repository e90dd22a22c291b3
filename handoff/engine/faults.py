"""Planted handoff faults: each changes one Step of a healthy run in one way.

They prove that the truth test can fail. A fault is planted where it does harm: in a hit that is
read, a copy that is needed, a block that another sequence sees. These are faults of a planner;
``broken`` has those of an executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from handoff.index.spans import common
from handoff.store.tables import Settled
from handoff.types import FOLLOW, NULL, Bind, Copy, Cut, Row, Shift, Spans, Step, Zero

from .planting import Fault, Site

__all__ = ["FAULTS"]


# -- rows ---------------------------------------------------------------------------------------


def _moved(row: Row, delta: int, drop: int = 0) -> Row:
    """The row ``delta`` positions on, without its first ``drop`` tokens."""
    start = row.start + delta
    spans = row.spans
    if spans is not None:
        spans = Spans(
            tuple(max(start, each) for each in spans.compute),
            tuple(max(start, each) for each in spans.write),
            spans.visible,
        )
        spans = spans._replace(compute=(start, *spans.compute[1:]))
    tokens = row.tokens.slice(drop, len(row.tokens))
    emits = min(row.emits, len(tokens))
    states = tuple(
        use._replace(saves=tuple(save for save in use.saves if save[0] > start))
        for use in row.states
    )
    return row._replace(start=start, tokens=tokens, emits=emits, spans=spans, states=states)


def _prefix_too_long(site: Site) -> Step | None:
    for at, row, _ in site.hits():
        if len(row.tokens) > 1 and not row.drafts:
            return site.with_row(at, _moved(row, 1, drop=1))
    return None


def _start_late(site: Site) -> Step | None:
    for at, row, _ in site.hits():
        return site.with_row(at, _moved(row, 1))
    return None


def _start_early(site: Site) -> Step | None:
    for at, row, _ in site.hits():
        if row.tokens[0] != row.tokens[-1] or len(row.tokens) == 1:
            return site.with_row(at, _moved(row, -1))
    return None


def _not_computed_again(site: Site) -> Step | None:
    """After a preemption the planner acts as if the blocks still held everything."""
    again = {handoff.seq for handoff in site.step.handoffs if handoff.attempt}
    for at, row in enumerate(site.step.rows):
        if row.seq in again and len(row.tokens) > 1 and not row.drafts:
            last = len(row.tokens) - 1
            return site.with_row(at, _moved(row, last, drop=last))
    return None


def _seeing_from(site: Site, index: int, bounds: Mapping[int, int]) -> Step:
    """The Step whose row ``index`` sees nothing below the given positions, by group."""
    row, layout = site.step.rows[index], site.scan.layout
    spans = row.spans or Spans(
        (row.start,) * layout.num_stages,
        (row.start,) * len(layout.groups),
        (0,) * len(layout.groups),
    )
    visible = tuple(bounds.get(at, bound) for at, bound in enumerate(spans.visible))
    return site.with_row(index, row._replace(spans=spans._replace(visible=visible)))


def _visible_too_late(site: Site) -> Step | None:
    for index, _, real in site.hits():
        for at, _ in site.groups:
            low, write = site.scan.span(real, at)
            if low < write:
                return _seeing_from(site, index, {at: low + 1})
    return None


def _zeros_hidden(site: Site) -> Step | None:
    """A row that upstream lets attend zeros sees none of them."""
    for index, real in enumerate(site.rows):
        behind = {at: position + 1 for at, position, _ in _zeros_read(site, real)}
        if behind:
            return _seeing_from(site, index, behind)
    return None


def _zeros_read(site: Site, real: Settled) -> Iterator[tuple[int, int, int]]:
    """The last zero that a row sees in each group: (group, position, slot)."""
    for at, _ in site.groups:
        slots = site.old_slots(real, at)
        zeros = np.flatnonzero(site.scan.zeros(at, slots))
        if len(zeros):
            last = int(zeros[-1])
            yield at, site.scan.span(real, at)[0] + last, int(slots[last])


def _zeros_missing(site: Site) -> Step | None:
    """Zeros are read here; the Step that should have written them does not."""
    for real in site.rows:
        for at, _, slot in _zeros_read(site, real):
            for step, index in reversed(site.scan.zeroing):
                op = step.ops[index]
                assert isinstance(op, Zero)
                mine = site.scan.tables.index[op.group] == at
                if mine and any(first <= slot < first + count for first, count in op.runs):
                    return replace(step, ops=(*step.ops[:index], *step.ops[index + 1 :]))
    return None


def _later_state(site: Site) -> Step | None:
    for index, (row, real) in enumerate(zip(site.step.rows, site.rows, strict=True)):
        for use, known in zip(row.states, real.states, strict=True):
            if known.load == NULL or use.load == FOLLOW:
                continue
            at = site.scan.tables.index[use.group]
            written = {block for each in site.rows for _, block in _saves(each, use.group)}
            later = np.flatnonzero(site.scan.labels(at) > real.start + 1).tolist()
            for block in later:
                if block not in written:
                    states = tuple(
                        each._replace(load=block) if each is use else each for each in row.states
                    )
                    return site.with_row(index, row._replace(states=states))
    return None


def _saves(row: Settled, group: str) -> Iterator[tuple[int, int]]:
    return (save for use in row.states if use.group == group for save in use.saves)


def _not_settled(site: Site) -> Step | None:
    for row, real in zip(site.step.rows, site.rows, strict=True):
        if row.start != real.start:
            return replace(site.step, known_through=site.step.number - 1)
    return None


# -- operations ---------------------------------------------------------------------------------


def _needed_copies(site: Site) -> Iterator[tuple[int, Copy, int, int]]:
    """Copies that an exact row of the Step reads: (index, copy, run, how much of it)."""
    for index, op in enumerate(site.step.ops):
        if not isinstance(op, Copy):
            continue
        at = site.scan.tables.index[op.group]
        group = site.scan.layout.groups[at]
        if op.dst_pool != group.pool:
            continue
        clean = [real for real in site.rows if real.of.seq not in site.scan.causes]
        if group.kind == "kv":
            seen = [site.old_slots(real, at) for real in clean]
        else:
            seen = [
                np.array([use.load for use in real.states if use.group == op.group], np.int64)
                for real in clean
            ]
        slots = np.concatenate(seen) if seen else np.empty(0, np.int64)
        for run, (_, dst, count) in enumerate(op.runs):
            needed = slots[(slots >= dst) & (slots < dst + count)]
            if len(needed):
                yield index, op, run, int(needed.max()) - dst + 1


def _copy_missing(site: Site) -> Step | None:
    for index, op, run, _ in _needed_copies(site):
        runs = (*op.runs[:run], *op.runs[run + 1 :])
        return site.with_op(index, *([op._replace(runs=runs)] if runs else []))
    return None


def _copy_short(site: Site) -> Step | None:
    for index, op, run, needed in _needed_copies(site):
        if needed > 1:
            src, dst, _ = op.runs[run]
            runs = (*op.runs[:run], (src, dst, needed - 1), *op.runs[run + 1 :])
            return site.with_op(index, op._replace(runs=runs))
    return None


def _wrong_shift_sign(site: Site) -> Step | None:
    for index, op in enumerate(site.step.ops):
        if isinstance(op, Shift) and op.delta:
            return site.with_op(index, op._replace(delta=-op.delta))
    return None


def _window_cut_too_far(site: Site) -> Step | None:
    for index, op in enumerate(site.step.ops):
        if not isinstance(op, Cut):
            continue
        at = site.scan.tables.index[op.group]
        for real in site.rows:
            low, write = site.scan.span(real, at)
            edge = low // real.of.tables[at].block_size
            if real.of.seq == op.seq and low < write and op.last <= edge:
                return site.with_op(index, op._replace(last=edge + 1))
    return None


def _bind_missing(site: Site) -> Step | None:
    """The last fresh bind of a row is lost."""
    for index, op in enumerate(site.step.ops):
        if not isinstance(op, Bind) or not op.fresh:
            continue
        at = site.scan.tables.index[op.group]
        for real in site.rows:
            table = real.of.tables[at]
            last = (real.stop - 1) // table.block_size
            if real.of.seq == op.seq and op.column <= last < op.column + len(op.ids):
                return site.with_op(index)
    return None


def _replace_id(op: Bind, old: int, new: int) -> Bind:
    return op._replace(ids=tuple(new if each == old else each for each in op.ids))


def _handed_out_while_read(site: Site) -> Step | None:
    for index, op in enumerate(site.step.ops):
        if not isinstance(op, Bind) or not op.fresh:
            continue
        at = site.scan.tables.index[op.group]
        if site.scan.layout.groups[at].kind != "kv":
            continue
        for real in site.rows:
            if real.of.seq == op.seq:
                continue
            slots = site.old_slots(real, at)
            block = int(slots[0]) // real.of.tables[at].block_size if len(slots) else NULL
            if block >= 0 and block not in op.ids:
                return site.with_op(index, _replace_id(op, op.ids[0], block))
    return None


def _same_block_twice(site: Site) -> Step | None:
    """Two sequences get one new block in one Step."""
    fresh: dict[str, Bind] = {}
    for index, op in enumerate(site.step.ops):
        if isinstance(op, Bind) and op.fresh:
            first = fresh.setdefault(op.group, op)
            if first.seq != op.seq:
                return site.with_op(index, _replace_id(op, op.ids[0], first.ids[0]))
    return None


def _shared_write(site: Site) -> Step | None:
    """A row writes into a block that another open table sees, with other content."""
    for at, group in site.groups:
        if group.ring:
            continue
        writers = [real for real in site.rows if len(real.of.tables[at].ids)]
        for one in writers:
            for other in writers:
                step = _write_into(site, at, one, other)
                if step is not None:
                    return step
    return None


def _write_into(site: Site, at: int, one: Settled, other: Settled) -> Step | None:
    """``one`` writes where ``other`` keeps its first visible block."""
    table = one.of.tables[at]
    low, write = site.scan.span(other, at)
    column = (one.stop - 1) // table.block_size
    if one is other or low >= write:
        return None
    theirs = int(other.of.tables[at].slots(low, low + 1)[0])
    same_place = low // table.block_size == column
    agree = common(one.of.content, 0, other.of.content, 0, low + 1) > low
    if theirs < 0 or (same_place and agree) or theirs // table.block_size == table.ids[column]:
        return None
    bind = Bind(
        one.of.seq, site.scan.layout.groups[at].name, column, (theirs // table.block_size,), False
    )
    return replace(site.step, ops=(*site.step.ops, bind))


def _hit_blocks(site: Site) -> Iterator[tuple[int, Bind, int, int, int, Settled]]:
    """Shared blocks that a row reads: (op index, bind, id, its first position, group, row)."""
    rows = {real.of.seq: real for real in site.rows}
    for index, op in enumerate(site.step.ops):
        if not isinstance(op, Bind) or op.fresh or op.seq not in rows:
            continue
        at = site.scan.tables.index[op.group]
        group, real = site.scan.layout.groups[at], rows[op.seq]
        if group.kind != "kv" or group.ring:
            continue
        low, write = site.scan.span(real, at)
        for offset, block in enumerate(op.ids):
            position = (op.column + offset) * group.block_size
            if block != NULL and low <= position < write:
                yield index, op, block, position, at, real


def _collision(site: Site) -> Step | None:
    """The index confuses two texts: the block of another text at the same positions."""
    for index, op, block, position, at, real in _hit_blocks(site):
        for other in np.flatnonzero(site.scan.labels(at) == position + 1).tolist():
            different = site.scan.holds(at, other, position, same_text=False, row=real)
            if different and other != block:
                return site.with_op(index, _replace_id(op, block, other))
    return None


def _evicted(site: Site) -> Step | None:
    """The index still names a block that by now holds something else."""
    for index, op, block, position, at, _ in _hit_blocks(site):
        labels = site.scan.labels(at)
        others = np.flatnonzero((labels > 0) & (labels != position + 1))
        if len(others):
            return site.with_op(index, _replace_id(op, block, int(others[0])))
    return None


_NO_HIT = "nothing is served from the cache in these streams"
_NO_OTHER = "no hit binds a block that another one could be taken for"
_NO_ZEROS = "nothing reads zeros"
_ALONE = "no two sequences are open at once in these streams"

FAULTS = (
    Fault("position start +1", "a hit's first row starts late", _NO_HIT, _start_late),
    Fault("position start -1", "a hit's first row starts early", _NO_HIT, _start_early),
    Fault("prefix too long", "one token more is taken for cached", _NO_HIT, _prefix_too_long),
    Fault(
        "stale after preemption",
        "a resumed request takes its new blocks for filled",
        "no request is preempted in these streams",
        _not_computed_again,
    ),
    Fault("visible from", "one visible key is hidden", _NO_HIT, _visible_too_late),
    Fault(
        "later state",
        "a state is loaded that is ahead",
        "no state is kept that is ahead of one that is loaded",
        _later_state,
    ),
    Fault(
        "not settled",
        "rejected drafts are not deducted from a planned start",
        "no row is planned ahead of a rejected draft",
        _not_settled,
    ),
    Fault("missing copy", "a needed copy is not made", "no row needs a copy", _copy_missing),
    Fault(
        "short copy",
        "a copy lacks a needed token",
        "no row needs more than one slot of a copied run",
        _copy_short,
    ),
    Fault("shift sign", "keys are moved the other way", "nothing is shifted", _wrong_shift_sign),
    Fault("zeros missing", "zeros are not written", _NO_ZEROS, _zeros_missing),
    Fault("zeros hidden", "zeros are not attended", _NO_ZEROS, _zeros_hidden),
    Fault(
        "window cut",
        "a block leaves too early",
        "no block leaves a window that a row still sees",
        _window_cut_too_far,
    ),
    Fault("missing bind", "a new block is not entered", "no blocks are bound", _bind_missing),
    Fault("reused while read", "a block that is read is new", _ALONE, _handed_out_while_read),
    Fault("same block twice", "two requests get one new block", _ALONE, _same_block_twice),
    Fault("shared write", "a row writes where another one reads", _ALONE, _shared_write),
    Fault("hash collision", "another text's block is a hit", _NO_OTHER, _collision),
    Fault("evicted block", "a hit names a block that was used again", _NO_OTHER, _evicted),
)
"""Each kind with what is done and why a run may be unable to express it."""
