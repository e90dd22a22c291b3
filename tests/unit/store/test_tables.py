"""Tables, contents and settling by hand: blocks of 4."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.index.spans import LATE, VIRTUAL, Seq
from handoff.store.faults import TagFault
from handoff.store.names import Names, seed
from handoff.store.tables import InOrder, Table, Tables, expand
from handoff.types import (
    NULL,
    Bind,
    Close,
    Cut,
    Group,
    Layer,
    Layout,
    Open,
    Pool,
    Row,
    RowResult,
    Spans,
    Step,
    StepResult,
)

LAYOUT = Layout((Pool("kv", 16),), (Group("full", "kv", 4),), (Layer("full"),))


def test_table_binds_cuts_and_looks_up() -> None:
    table = Table(LAYOUT.groups[0])
    assert table.bind(0, np.array([7, 3, 9])).tolist() == [NULL] * 3
    assert table.slots(2, 9).tolist() == [30, 31, 12, 13, 14, 15, 36]
    assert table.cut(0, 1).tolist() == [7] and table.length == 3
    assert table.slots(2, 5).tolist() == [NULL, NULL, 12]
    assert table.slot(3) == NULL and table.slot(11) == 39 and table.slot(12) == NULL
    assert table.cut(1, 9).tolist() == [3, 9] and table.length == 0  # trailing holes go
    assert table.slots(4, 4).tolist() == []


def test_ring_columns_wrap() -> None:
    table = Table(Group("ring", "kv", 4, ring=True, columns=2))
    table.bind(0, np.array([5, 2]))
    assert table.slots(3, 10).tolist() == [23, 8, 9, 10, 11, 20, 21]
    assert [table.slot(p) for p in (3, 4, 8)] == [23, 8, 20]


def test_held_counts_follow_the_open_tables() -> None:
    tables = Tables(LAYOUT)
    for op in (
        Open(0, "a", Seq([1, 2])),
        Bind(0, "full", 0, (1, 2, NULL, 3), False),
        Open(1, "b", Seq([1, 2])),
        Bind(1, "full", 0, (1,), False),
        Bind(0, "full", 1, (4,), True),
        Cut(0, "full", 3, 4),
    ):
        tables.apply(op)
    assert tables.held["kv"][[1, 2, 3, 4]].tolist() == [2, 0, 0, 1]
    tables.apply(Close(0))
    assert tables.held["kv"].sum() == 1 and [of.seq for of in tables] == [1]


def test_ids_outside_of_the_pool_fault() -> None:
    tables = Tables(LAYOUT)
    tables.apply(Open(0, "a", Seq([1])))
    with pytest.raises(TagFault, match="no such id"):
        tables.apply(Bind(0, "full", 0, (16,), True))
    with pytest.raises(TagFault, match="not open"):
        tables.apply(Close(3))


def test_open_copies_what_is_known_now() -> None:
    growing = Seq([1, 2])
    tables = Tables(LAYOUT)
    tables.apply(Open(0, "a", growing))
    growing.append(3)
    assert tables.open[0].content.tokens() == [1, 2]


def answered(tables: Tables, number: int, row: Row, tokens: tuple[int, ...], drafts: tuple) -> None:
    step = Step(number, number, number - 1, (), (row,))
    tables.answer(step, StepResult(number, (RowResult(0, tokens, drafts),)))


def test_settle_moves_a_row_by_what_was_rejected() -> None:
    """Two drafts each; Step 1 accepts one of two; Step 2 was planned at 13, really starts at 12."""
    tables = Tables(LAYOUT)
    tables.apply(Open(0, "a", Seq(range(100, 110))))
    answered(tables, 0, Row(0, 0, Seq(range(100, 110))), (7,), (21, 22))
    late = Seq([LATE, LATE, LATE])
    row = tables.settle(Step(1, 1, -1, (), ()), Row(0, 10, late, 2, 3))
    assert (row.start, row.stop, row.tokens.tokens()) == (10, 13, [7, 21, 22])
    answered(tables, 1, Row(0, 10, late, 2, 3), (21, 30), (31, 32))
    spans = Spans((13, 15), (13, 15), (5, 0))
    row = tables.settle(Step(2, 2, 0, (), ()), Row(0, 13, late, 2, 3, spans))
    assert (row.start, row.tokens.tokens()) == (12, [30, 31, 32])
    assert row.spans == Spans((12, 14), (12, 14), (5, 0))  # what is seen does not move
    known = tables.settle(Step(2, 2, 1, (), ()), Row(0, 12, Seq([30, 31, LATE]), 2, 3))
    assert (known.start, known.tokens.tokens()) == (12, [30, 31, 32])


def test_padding_drafts_stay_late() -> None:
    tables = Tables(LAYOUT)
    tables.apply(Open(0, "a", Seq([1, 2])))
    answered(tables, 0, Row(0, 0, Seq([1, 2])), (3,), (9,))
    row = tables.settle(Step(1, 1, 0), Row(0, 2, Seq([3, LATE, LATE]), 2, 3))
    assert row.tokens.tokens() == [3, 9, LATE]


class Log(InOrder):
    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables(LAYOUT)
        self.ran: list[int] = []

    def _run(self, step: Step) -> None:
        for op in step.ops:
            self.tables.apply(op)
        self.ran.append(step.number)


def test_steps_run_when_the_one_before_is_answered() -> None:
    log = Log()
    row = Row(0, 0, Seq([1]), emits=0)
    log.step(Step(0, 0, -1, (Open(0, "a", Seq([1, 2])),), (row,)))
    log.step(Step(1, 1, -1, (), (row,)))
    log.step(Step(2, 2, -1))  # no rows: nobody needs to answer it
    assert log.ran == [0]
    log.complete(StepResult(0, (RowResult(0, ()),)))
    assert log.ran == [0, 1]
    log.complete(StepResult(1, (RowResult(0, ()),)))
    log.complete(StepResult(2))
    assert log.ran == [0, 1, 2]


@given(st.lists(st.integers(0, 1 << 41), max_size=12), st.integers(0, 12))
def test_names_do_not_depend_on_how_a_text_grew(tokens: list[int], cut: int) -> None:
    array = np.array(tokens, np.int64)
    whole, parts = Names(None), Names(None)
    whole.extend(array)
    parts.extend(array[:cut])
    for at in range(cut, len(tokens)):
        parts.extend(array[at : at + 1])
    assert whole.of(0, len(tokens)).tolist() == parts.of(0, len(tokens)).tolist()
    follow = whole.follow(min(cut, len(tokens)), array[cut:])
    assert follow.tolist() == whole.of(min(cut, len(tokens)), len(tokens)).tolist()


def test_names_tell_texts_loras_and_salts_apart() -> None:
    array = np.array([0, 0, 5], np.int64)
    found = set()
    for lora, salt in ((None, None), ("x", None), (None, "x"), ("x", "x")):
        names = Names(lora, salt)
        names.extend(array)
        found |= set(names.of(0, 3).tolist()) | {seed(lora, salt)}
    assert len(found) == 16


def test_expand_mixes_runs_and_ids() -> None:
    seq = Seq([1, 2])
    seq.add_run(VIRTUAL, 3)
    seq.append(9)
    assert expand(seq, 1, 6).tolist() == [2, VIRTUAL, VIRTUAL + 1, VIRTUAL + 2, 9]
    assert expand(Seq()).tolist() == []
