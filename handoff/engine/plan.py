"""From settled rows to flat arrays: one forward pass, per stage and per group.

"Only some layers compute some rows" is a shorter list of rows in a later stage; a window, a ring, a
hole or a chunk of local attention is a table that starts further right. Nothing below this module
knows rows, sequences or spans.

FLOPs of a step on the reference model, as ``FlopCounterMode`` counts them with
``kernels.flop_formulas()``: every linear map 2 x in x out per row of its stage; attention
``4 x heads x head_dim`` per visible pair (``Segments.pairs``, per layer of the group); logits
``2 x hidden x vocab`` per emitted row; a LoRA ``2 x rank x (in + out)`` per row of its sequence and
map. Norms, activations, rotations and the recurrence count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from handoff.kernels import Segments
from handoff.model.forward import ForwardPlan, KVPlan, StagedRow, StagePlan, StatePlan
from handoff.model.spec import ModelSpec
from handoff.store.faults import TagFault
from handoff.store.tables import Ints, Settled, expand
from handoff.types import NULL, Group, Layout

__all__ = ["build"]


def build(rows: Sequence[Settled], layout: Layout, spec: ModelSpec) -> ForwardPlan:
    """The plan of one Step's rows. ``TagFault`` if a visible position has no slot."""
    stages: list[StagePlan] = []
    before: list[tuple[int, int]] = [(row.start, row.stop) for row in rows]
    for stage in range(layout.num_stages):
        bounds = [(min(row.compute(stage), row.stop), row.stop) for row in rows]
        stages.append(_stage(rows, layout, spec, stage, before, bounds))
        before = bounds
    states = {
        at: _states(rows, group.name, stages[0].q_start)
        for at, group in enumerate(layout.groups)
        if group.kind == "state" and spec.owners(at)
    }
    last = stages[-1].q_start
    wanted = [min(row.emits, int(n)) for row, n in zip(rows, np.diff(last), strict=True)]
    emits = [np.arange(end - n, end) for n, end in zip(wanted, last[1:].tolist(), strict=True)]
    return ForwardPlan(
        tokens=_join([expand(row.tokens) for row in rows]),
        stages=tuple(stages),
        states=states,
        emits=_join(emits),
        emit_start=_starts(wanted),
    )


def _join(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _starts(counts: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)


def _stage(
    rows: Sequence[Settled],
    layout: Layout,
    spec: ModelSpec,
    stage: int,
    before: Sequence[tuple[int, int]],
    bounds: Sequence[tuple[int, int]],
) -> StagePlan:
    q_start = _starts([stop - first for first, stop in bounds])
    keep = None
    if list(before) != list(bounds):
        old = _starts([stop - first for first, stop in before])
        keep = _join(
            [
                np.arange(base + first - start, base + stop - start)
                for base, (start, _), (first, stop) in zip(old.tolist(), before, bounds)
            ]
        )
    pairs = {(layer.group, spec.made_in(layer)) for layer in spec.layers if layer.stage == stage}
    return StagePlan(
        keep=keep,
        positions=_join([np.arange(first, stop) for first, stop in bounds]),
        q_start=q_start,
        kv={
            (at, made): _kv(rows, layout.groups[at], at, made, bounds, q_start)
            for at, made in sorted(pairs)
            if layout.groups[at].kind == "kv"
        },
        loras=tuple(
            (row.of.lora, begin, end)
            for row, begin, end in zip(rows, q_start[:-1].tolist(), q_start[1:].tolist())
            if row.of.lora is not None and begin < end
        ),
    )


class _Piece(NamedTuple):
    """Consecutive query rows of one request that share a lower bound of sight."""

    first: int
    rows: int
    visible: int
    origin: int
    table: Ints


def _kv(
    rows: Sequence[Settled],
    group: Group,
    at: int,
    made: int,
    bounds: Sequence[tuple[int, int]],
    q_start: Ints,
) -> KVPlan:
    slots: list[Ints] = []
    pieces: list[_Piece] = []
    paged: list[Ints] = []
    staged: list[StagedRow] = []
    for number, (row, (first, stop), begin) in enumerate(zip(rows, bounds, q_start.tolist())):
        slots.append(_stored(row, group, at, first, stop))
        if first == stop:
            continue
        made_from = min(row.compute(made), stop)
        if group.ring and stop - made_from > _spare(group):
            staged.append(_staged(row, group, at, number, made_from, first, begin))
            continue
        paged.append(np.arange(begin, begin + stop - first))
        pieces += _pieces(row, group, at, first, stop)
    return KVPlan(
        slots=_join(slots),
        segments=_segments(pieces, group.window),
        paged=_join(paged) if staged else None,
        staged=tuple(staged),
    )


def _spare(group: Group) -> int:
    """Longest row that overwrites nothing it sees in a ring."""
    return group.columns * group.block_size - (group.window or 1) + 1


def _stored(row: Settled, group: Group, at: int, first: int, stop: int) -> Ints:
    """Slots of the positions ``[first, stop)``, -1 for those that are not stored."""
    write = min(max(row.write(at), first), stop)
    if group.ring:
        write = max(write, stop - group.columns * group.block_size)
    slots = np.full(stop - first, NULL, np.int64)
    slots[write - first :] = row.of.tables[at].slots(write, stop)
    return slots


def _pieces(row: Settled, group: Group, at: int, first: int, stop: int) -> list[_Piece]:
    """Table look-ups of a row; chunked-local attention cuts it at multiples of the chunk."""
    pieces = []
    while first < stop:
        visible = row.visible(at)
        end = stop
        if group.local is not None:
            visible = max(visible, first - first % group.local)
            end = min(stop, first - first % group.local + group.local)
        low = visible if group.window is None else max(visible, first - group.window + 1)
        low = min(max(low, 0), end)
        size = group.block_size
        table = row.of.tables[at].blocks(low - low % size, end)
        if low < end and (table < 0).any():
            raise TagFault(
                "hole",
                "a visible position has no slot",
                seq=row.of.seq,
                request=row.of.request,
                group=group.name,
                position=low,
            )
        pieces.append(_Piece(first, end - first, visible, low - low % size, table))
        first = end
    return pieces


def _segments(pieces: Sequence[_Piece], window: int | None) -> Segments:
    width = max((len(piece.table) for piece in pieces), default=0)
    table = np.full((len(pieces), width), NULL, np.int64)
    for line, piece in zip(table, pieces):
        line[: len(piece.table)] = piece.table
    return Segments(
        q_start=_starts([piece.rows for piece in pieces]),
        first=np.array([piece.first for piece in pieces], np.int64),
        origin=np.array([piece.origin for piece in pieces], np.int64),
        visible=np.array([piece.visible for piece in pieces], np.int64),
        table=table,
        window=window,
    )


def _staged(
    row: Settled, group: Group, at: int, number: int, made_from: int, first: int, begin: int
) -> StagedRow:
    """Join what the row still sees in the ring with what it makes from ``made_from`` on."""
    write = min(max(row.write(at), made_from), row.stop)
    low = max(row.visible(at), made_from - (group.window or 1) + 1, 0)
    low = min(low, write)
    piece = _Piece(first, row.stop - first, row.visible(at), low, np.zeros(1, np.int64))
    return StagedRow(
        row=number,
        begin=begin,
        end=begin + row.stop - first,
        slots=row.of.tables[at].slots(low, write),
        own=write - made_from,
        segments=_segments([piece], group.window),
    )


def _states(rows: Sequence[Settled], name: str, q_start: Ints) -> StatePlan:
    loads: list[int] = []
    save_rows: list[int] = []
    save_ids: list[int] = []
    for row, begin in zip(rows, q_start.tolist()):
        use = next((use for use in row.states if use.group == name), None)
        if use is None:
            raise TagFault(
                "no state",
                "the row names no state",
                seq=row.of.seq,
                request=row.of.request,
                group=name,
                position=row.start,
            )
        loads.append(use.load)
        for position, block in use.saves:
            save_rows.append(begin + position - row.start - 1)
            save_ids.append(block)
    return StatePlan(tuple(loads), tuple(save_rows), tuple(save_ids))
