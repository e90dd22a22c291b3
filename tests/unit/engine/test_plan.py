"""Forward plans of hand-made rows: blocks of 4, numbers to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from handoff.engine.plan import build
from handoff.index.spans import Seq
from handoff.model.spec import ModelSpec, reference_spec
from handoff.store.faults import TagFault
from handoff.store.tables import Settled, Tables
from handoff.types import NULL, Bind, Group, Layer, Layout, Open, Pool, Row, Spans, StateUse, Step

LAYOUT = Layout(
    (Pool("kv", 32), Pool("w", 32), Pool("r", 4), Pool("s", 8)),
    (
        Group("full", "kv", 4),
        Group("window", "w", 4, window=5),
        Group("ring", "r", 8, window=5, ring=True, columns=1),
        Group("state", "s", 1, "state"),
        Group("local", "w", 4, local=8),
    ),
    (
        Layer("full"),
        Layer("window"),
        Layer("ring"),
        Layer("state"),
        Layer("local"),
        Layer("full", stage=1, reads=0),
    ),
)
SPEC = reference_spec(LAYOUT, depth=1)


def settled(*rows: Row, known: int = 20, holes: bool = False) -> list[Settled]:
    tables = Tables(LAYOUT)
    for row in rows:
        tables.apply(Open(row.seq, "r", Seq(range(known)), "style" if row.seq == 1 else None))
        for name in ("full", "window", "local"):
            ids = tuple(range(10 * row.seq, 10 * row.seq + 5))
            ids = (NULL, NULL, *ids[2:]) if holes and name == "window" else ids
            tables.apply(Bind(row.seq, name, 0, ids, False))
        tables.apply(Bind(row.seq, "ring", 0, (row.seq,), True))
    return [tables.settle(Step(0, 0, -1), row) for row in rows]


def row(seq: int, start: int, stop: int, **more: object) -> Row:
    state = (StateUse("state", 3, ((stop, 4),)),)
    return Row(seq, start, Seq(range(start, stop)), states=state, **more)  # type: ignore[arg-type]


def test_two_rows_of_a_batch() -> None:
    plan = build(settled(row(0, 9, 12, emits=2), row(1, 14, 15)), LAYOUT, SPEC)
    stage = plan.stages[0]
    assert plan.tokens.tolist() == [9, 10, 11, 14] == stage.positions.tolist()
    assert stage.q_start.tolist() == [0, 3, 4] and stage.keep is None
    assert stage.loras == (("style", 3, 4),)
    assert plan.emits.tolist() == [1, 2, 3] and plan.emit_start.tolist() == [0, 2, 3]
    full = stage.kv[0, 0]
    assert full.slots.tolist() == [9, 10, 11, 54]
    assert full.segments.table.tolist() == [[0, 1, 2, -1], [10, 11, 12, 13]]
    assert full.segments.lowest.tolist() == [0, 0] and full.pairs == 10 + 11 + 12 + 15


def test_a_window_s_table_starts_at_its_first_block() -> None:
    plan = build(settled(row(0, 13, 15), holes=True), LAYOUT, SPEC)
    window = plan.stages[0].kv[1, 0].segments
    assert window.origin.tolist() == [8] and window.table.tolist() == [[2, 3]]
    assert window.lowest.tolist() == [9] and window.pairs == 10
    with pytest.raises(TagFault, match="hole"):
        build(settled(row(0, 11, 13), holes=True), LAYOUT, SPEC)  # sees position 7


def test_local_attention_is_cut_at_its_chunks() -> None:
    local = build(settled(row(0, 6, 18)), LAYOUT, SPEC).stages[0].kv[4, 0].segments
    assert local.first.tolist() == [6, 8, 16] and local.visible.tolist() == [0, 8, 16]
    assert local.q_start.tolist() == [0, 2, 10, 12] and local.origin.tolist() == [0, 8, 16]


def test_a_long_row_in_a_ring_is_staged() -> None:
    """Ring of 8, window 5: rows of up to 4 are paged; the last 8 of a long one are stored."""
    short = build(settled(row(0, 9, 13)), LAYOUT, SPEC).stages[0].kv[2, 0]
    assert short.paged is None and not short.staged and short.slots.tolist() == [1, 2, 3, 4]
    long = build(settled(row(0, 3, 5), row(1, 6, 16)), LAYOUT, SPEC).stages[0].kv[2, 0]
    assert long.paged is not None and long.paged.tolist() == [0, 1]
    assert long.slots.tolist() == [3, 4, -1, -1, *range(8, 16)]
    (staged,) = long.staged
    assert staged.slots.tolist() == [10, 11, 12, 13] and staged.segments.origin.tolist() == [2]
    assert (staged.row, staged.begin, staged.end, staged.own) == (1, 2, 12, 0)


def test_a_later_stage_keeps_fewer_rows() -> None:
    spans = Spans((9, 11), (10, 9, 9, 9, 9), (0, 9, 0, 0, 0))
    plan = build(settled(row(0, 9, 12, spans=spans), row(1, 14, 15)), LAYOUT, SPEC)
    first, second = plan.stages
    assert second.keep is not None and second.keep.tolist() == [2, 3]
    assert second.positions.tolist() == [11, 14] and second.q_start.tolist() == [0, 1, 2]
    assert first.kv[0, 0].slots.tolist() == [-1, 10, 11, 54]
    assert first.kv[1, 0].segments.lowest.tolist() == [9, 10]
    assert plan.emits.tolist() == [0, 1]


def test_states_load_and_save_by_id() -> None:
    use = StateUse("state", 2, ((10, 5), (12, 6)))
    one = Row(0, 9, Seq(range(9, 12)), states=(use,))
    plan = build(settled(one, row(1, 14, 15)), LAYOUT, SPEC)
    assert plan.states[3].loads == (2, 3)
    assert plan.states[3].save_rows == (0, 2, 3) and plan.states[3].save_ids == (5, 6, 4)
    with pytest.raises(TagFault, match="no state"):
        build(settled(Row(0, 9, Seq(range(9, 12)))), LAYOUT, SPEC)


def test_an_empty_batch() -> None:
    plan = build([], LAYOUT, ModelSpec(()))
    assert len(plan.tokens) == 0 and np.array_equal(plan.emit_start, [0])
