"""The tag pass on small hand-made Steps: blocks of 4, numbers to check by hand."""

from __future__ import annotations

from typing import Any

import pytest

from handoff.index.spans import LATE, Seq
from handoff.store.faults import TagFault
from handoff.store.tags import TagStore
from handoff.types import (
    FOLLOW,
    NULL,
    Bind,
    Close,
    Copy,
    Cut,
    Group,
    Handoff,
    Layer,
    Layout,
    Load,
    Open,
    Pool,
    Row,
    RowResult,
    Shift,
    Spans,
    StateUse,
    Step,
    StepResult,
    Zero,
)

FULL = Layout(
    (Pool("kv", 32), Pool("ram", 32, "host")), (Group("full", "kv", 4),), (Layer("full"),)
)
WINDOW = Layout(
    (Pool("kv", 32), Pool("w", 32)),
    (Group("full", "kv", 4), Group("window", "w", 4, window=6)),
    (Layer("full"), Layer("window")),
)
RING = Layout(
    (Pool("r", 4),),
    (Group("ring", "r", 8, window=6, ring=True, columns=1),),
    (Layer("ring"),),
)
STATE = Layout(
    (Pool("kv", 32), Pool("s", 8)),
    (Group("full", "kv", 4), Group("state", "s", 1, "state")),
    (Layer("full"), Layer("state")),
)


class Play:
    """Feeds Steps synchronously; ``out`` maps a sequence to what its row emits."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        self.tags = TagStore(layout, **options)
        self.number = 0

    def __call__(self, *items: object, known: int | None = None, out: dict | None = None) -> None:
        ops = tuple(item for item in items if not isinstance(item, Row | Handoff))
        rows = tuple(item for item in items if isinstance(item, Row))
        handoffs = tuple(item for item in items if isinstance(item, Handoff))
        known = self.number - 1 if known is None else known
        self.tags.step(Step(self.number, 0, known, ops, rows, handoffs))
        if out is not None or not rows:
            self.result(self.number, rows, out or {})
        self.number += 1

    def result(self, number: int, rows: tuple[Row, ...], out: dict) -> None:
        results = tuple(
            RowResult(row.seq, *out.get(row.seq, ((),)))
            if isinstance(out.get(row.seq, ((),))[0], tuple)
            else RowResult(row.seq, tuple(out[row.seq]))
            for row in rows
        )
        self.tags.complete(StepResult(number, results))


def prompt(count: int, first: int = 100) -> Seq:
    return Seq(range(first, first + count))


def row(seq: int, content: Seq, start: int, stop: int | None = None, **more: object) -> Row:
    return Row(seq, start, content.slice(start, len(content) if stop is None else stop), **more)


def cold(play: Play, seq: int, content: Seq, ids: tuple[int, ...], out: int = 7) -> None:
    play(
        Open(seq, f"r{seq}", content),
        Bind(seq, "full", 0, ids, True),
        row(seq, content, 0),
        out={seq: (out,)},
    )


def test_hit_on_full_blocks_is_clean() -> None:
    play, text = Play(FULL), prompt(10)
    cold(play, 0, text, (5, 9, 2))
    play(
        Close(0),
        Open(1, "r1", text),
        Bind(1, "full", 0, (5, 9), False),
        Bind(1, "full", 2, (3,), True),
        row(1, text, 8),
        out={1: (7,)},
    )
    assert play.tags.num_tokens == 12 and not play.tags.taint


def test_hit_on_a_block_of_the_same_step() -> None:
    play, text = Play(FULL), prompt(10)
    play(
        Open(0, "a", text),
        Bind(0, "full", 0, (5, 9, 2), True),
        Open(1, "b", text),
        Bind(1, "full", 0, (5, 9), False),
        Bind(1, "full", 2, (3,), True),
        row(0, text, 0),
        row(1, text, 8),
        out={0: (7,), 1: (7,)},
    )
    assert not play.tags.taint


def test_partial_copy_and_its_loss() -> None:
    text, other = prompt(12), prompt(10)
    for tokens in (2, 1):
        play = Play(FULL)
        cold(play, 0, text, (1, 2, 3))
        step = (
            Open(1, "r1", other),
            Bind(1, "full", 0, (1, 2), False),
            Bind(1, "full", 2, (4,), True),
            Copy("full", "kv", "kv", ((3 * 4, 4 * 4, tokens - 1),)),
            row(1, other, 9),
        )
        if tokens == 2:
            play(*step, out={1: (7,)})
            assert not play.tags.taint
            continue
        with pytest.raises(TagFault, match="void slot") as fault:
            play(*step, out={1: (7,)})
        assert (fault.value.position, fault.value.slot, fault.value.seq) == (8, 16, 1)


def shared(
    play: Play, second: Seq, start: int, ids: tuple[int, ...], fresh: tuple[int, ...]
) -> None:
    play(
        Open(1, "r1", second),
        Bind(1, "full", 0, ids, False),
        Bind(1, "full", len(ids), fresh, True),
        row(1, second, start),
        out={1: (7,)},
    )


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("start late", "void slot"),
        ("start early", "shared overwrite"),
        ("tokens one off", "row tokens"),
        ("swapped ids", "slot position"),
        ("lost window block", "hole"),
        ("id handed out twice", "fresh id held"),
        ("foreign text", "text"),
        ("lost copy", "void slot"),
        ("two shared writes", "shared overwrite"),
        ("no settle", "row beyond content"),
    ],
)
def test_ten_planner_faults(name: str, rule: str) -> None:
    """The faults of RECORDS 12; each is found by the tags alone."""
    play, text = Play(WINDOW if "window" in name else FULL), prompt(10)
    if name == "lost window block":
        with pytest.raises(TagFault, match=rule):
            play(
                Open(0, "a", text),
                Bind(0, "full", 0, (0, 1, 2), True),
                Bind(0, "window", 0, (0, 1, 2), True),
                row(0, text, 0, 8, emits=0),
                out={},
            )
            play(Cut(0, "window", 0, 1), row(0, text, 8), out={0: (7,)})
        return
    cold(play, 0, text, (5, 9, 2))
    if name == "foreign text":
        other = prompt(4, 300)
        other.extend(text, 4)
        shared(play, other, 8, (5, 9), (3,))
        assert play.tags.taint == {"text": 2} and "position 0, slot 20" in play.tags.first["text"]
        return
    with pytest.raises(TagFault, match=rule) as fault:
        if name == "start late":
            shared(play, text, 9, (5, 9), (3,))
        elif name == "start early":  # writes position 7 of a text that differs there
            other = prompt(7)
            other.extend(prompt(3, 500))
            shared(play, other, 7, (5, 9), (3,))
        elif name == "tokens one off":
            play(
                Open(1, "r1", text),
                Bind(1, "full", 0, (5, 9), False),
                Bind(1, "full", 2, (3,), True),
                Row(1, 8, text.slice(7, 9)),
                out={1: (7,)},
            )
        elif name == "swapped ids":
            shared(play, text, 8, (9, 5), (3,))
        elif name == "id handed out twice":
            shared(play, text, 4, (5,), (9, 3))
        elif name == "lost copy":
            shared(play, prompt(12), 10, (5, 9), (3,))
        elif name == "two shared writes":
            first, second = prompt(12), prompt(10)
            second.extend(prompt(2, 900))
            play(
                Open(1, "b", first),
                Bind(1, "full", 0, (5, 9), False),
                Bind(1, "full", 2, (3,), True),
                Open(2, "c", second),
                Bind(2, "full", 0, (5, 9, 3), False),
                row(1, first, 8),
                row(2, second, 8),
                out={1: (7,), 2: (7,)},
            )
        elif name == "no settle":  # planned one ahead, but says it knew the result
            play(Bind(0, "full", 3, (4,), True))
            play(Row(0, 10, Seq([7, 21, 22]), drafts=2, emits=3), out={0: (8,)})
            play(Row(0, 13, Seq([LATE])), out={0: (9,)})
    assert fault.value.rule == rule and fault.value.step is not None


def test_shift_moves_labels_and_taints_what_reads_them() -> None:
    play, text = (
        Play(Layout((Pool("kv", 32),), (Group("full", "kv"),), (Layer("full"),))),
        prompt(8),
    )
    play(
        Open(0, "a", text),
        Bind(0, "full", 0, tuple(range(8)), True),
        row(0, text, 0),
        out={0: (7,)},
    )
    short = prompt(2)
    short.extend(text, 5)
    kept = (Open(1, "b", short), Bind(1, "full", 0, (0, 1, 5, 6, 7), False))
    play(
        Close(0), *kept, Shift("full", ((5, 3),), -3), Cut(1, "full", 4, 5),
        Bind(1, "full", 4, (9,), True), row(1, short, 4), out={1: (7,)},
    )  # fmt: skip
    assert play.tags.taint == {"moved": 1}
    with pytest.raises(TagFault, match="slot position"):
        play(Close(1), Open(2, "c", short), Bind(2, "full", 0, (0, 1, 6, 5, 9), False),
             row(2, short, 4), out={2: (7,)})  # fmt: skip


def test_shared_or_double_shift_faults() -> None:
    play, text = Play(FULL), prompt(6)
    cold(play, 0, text, (0, 1))
    with pytest.raises(TagFault, match="shifted twice"):
        play(Shift("full", ((0, 2),), 1), Shift("full", ((1, 1),), 1))
    play = Play(FULL)
    cold(play, 0, text, (0, 1))
    with pytest.raises(TagFault, match="shared shift"):
        play(Open(1, "b", text), Bind(1, "full", 0, (0,), False), Shift("full", ((0, 2),), 1))


def test_round_trip_through_a_host_pool() -> None:
    play, text = Play(FULL), prompt(8)
    cold(play, 0, text, (5, 9))
    play(Copy("full", "kv", "ram", ((20, 0, 4), (36, 4, 4))), Close(0))
    play(
        Open(1, "b", text),
        Bind(1, "full", 0, (7, 8), True),
        Copy("full", "ram", "kv", ((0, 28, 4), (4, 32, 3))),
        row(1, text, 7),
        out={1: (7,)},
    )
    assert not play.tags.taint


def test_lora_zeros_and_hidden_are_counted_by_cause() -> None:
    play, text = Play(FULL), prompt(10)
    cold(play, 0, text, (5, 9, 2))
    play(
        Open(1, "b", text, "style"), Bind(1, "full", 0, (5, 9), False),
        Bind(1, "full", 2, (3,), True), row(1, text, 8), out={1: (7,)},
    )  # fmt: skip
    assert play.tags.taint == {"lora": 2}
    play(
        Open(2, "c", text), Bind(2, "full", 0, (6, 7, 8), True), Zero("full", ((24, 8),)),
        row(2, text, 8), out={2: (7,)},
    )  # fmt: skip
    assert play.tags.taint == {"lora": 2, "zeros": 2}
    play(
        Open(3, "d", text), Bind(3, "full", 0, (5, 9), False), Bind(3, "full", 2, (11,), True),
        row(3, text, 8, spans=Spans((8,), (8,), (5,))), out={3: (7,)},
    )  # fmt: skip
    assert play.tags.taint == {"lora": 2, "zeros": 2, "hidden": 2}
    # taint spreads: who reads the zeros' successor is tainted, too
    play(row(2, Seq([*text.tokens(), 7]), 10), out={2: (9,)})
    assert play.tags.taint["zeros"] == 3 and play.tags.num_tainted == 7


def test_zeros_are_found_even_where_the_token_is_zero() -> None:
    play, content = Play(FULL), Seq([0, 0, 0, 5])
    play(
        Open(0, "a", content),
        Bind(0, "full", 0, (1,), True),
        Zero("full", ((4, 1),)),
        row(0, content, 1),
        out={0: (7,)},
    )
    assert play.tags.taint == {"zeros": 3}


def test_salts_count_where_they_are_given() -> None:
    for salts, taint in ((None, {}), ({"r0": "a", "r1": "b"}, {"salt": 2})):
        play, text = Play(FULL, salts=salts), prompt(10)
        cold(play, 0, text, (5, 9, 2))
        shared(play, text, 8, (5, 9), (3,))
        assert play.tags.taint == taint


def test_hidden_counts_against_the_cold_rule() -> None:
    play, text = Play(FULL), prompt(10)
    spans = Spans((0,), (0,), (6,))
    handoff = Handoff(0, "a", 10, 10, 0, 0, 0, cold=spans)
    play(Open(0, "a", text), Bind(0, "full", 0, (0, 1, 2), True), row(0, text, 0, spans=spans),
         handoff, out={0: (7,)})  # fmt: skip
    assert not play.tags.taint


def test_ring_rows_longer_than_the_ring_stage_what_they_see() -> None:
    play, text = Play(RING, every=True), prompt(20)
    play(Open(0, "a", text), Bind(0, "ring", 0, (3,), True), row(0, text, 0, 9, emits=0), out={})
    play(row(0, text, 9), out={0: (7,)})
    play(Row(0, 20, Seq([7, 1, 2, 3]), drafts=3, emits=4), out={0: (8,)})  # ring - window + 1
    play(Row(0, 21, Seq([8, 1, 2, 3, 4]), drafts=4, emits=5), out={0: (9,)})  # one too many
    with pytest.raises(TagFault, match="slot position"):
        play(Row(0, 22, Seq([9])), out={0: (9,)})


def test_states_load_save_and_faults() -> None:
    play, text = Play(STATE), prompt(8)
    first = StateUse("state", NULL, ((4, 2), (8, 3)))
    play(Open(0, "a", text), Bind(0, "full", 0, (0, 1), True), Bind(0, "state", 0, (2, 3), True),
         row(0, text, 0, states=(first,)), out={0: (7,)})  # fmt: skip
    other = prompt(4)
    other.extend(prompt(2, 700))
    play(Open(1, "b", other), Bind(1, "full", 0, (0,), False), Bind(1, "full", 1, (5,), True),
         row(1, other, 4, states=(StateUse("state", 2, ((6, 4),)),)), out={1: (7,)})  # fmt: skip
    assert not play.tags.taint
    with pytest.raises(TagFault, match="state position"):
        play(row(1, Seq([*other.tokens(), 7]), 6, states=(StateUse("state", 3, ()),)), out={})
    play = Play(STATE)
    with pytest.raises(TagFault, match="void state"):
        play(Open(0, "a", text), Bind(0, "full", 0, (0, 1), True),
             row(0, text, 0, states=(StateUse("state", 6),)), out={})  # fmt: skip


def test_load_gives_what_a_cold_run_would_hold() -> None:
    play, text = Play(FULL), prompt(10)
    play(Open(0, "a", text), Bind(0, "full", 0, (4, 5, 6), True), Load(0, "full", 0, 8),
         row(0, text, 8), out={0: (7,)})  # fmt: skip
    assert play.tags.num_tokens == 2 and not play.tags.taint
    with pytest.raises(TagFault, match="hole"):
        play(Bind(0, "full", 2, (NULL,), False), Load(0, "full", 7, 10))


def test_async_drafts_settle() -> None:
    """Planned one Step ahead with two drafts; one is rejected: planned 13, real 12."""
    play, text = Play(STATE, every=True), prompt(10)
    play(Open(0, "a", text), Bind(0, "full", 0, (0, 1, 2, 3, 4), True),
         row(0, text, 0, states=(StateUse("state", NULL, ((10, 0),)),)))  # fmt: skip
    late = Seq([LATE, LATE, LATE])
    saves = ((11, 1), (12, 2), (13, 3))
    play(Row(0, 10, late, 2, 3, None, (StateUse("state", 0, saves),)), known=-1)
    play.result(0, (row(0, text, 0),), {0: ((7,), (21, 22))})
    again = ((14, 4), (15, 5), (16, 6))
    play(Row(0, 13, late, 2, 3, None, (StateUse("state", FOLLOW, again),)), known=0)
    play.result(1, (Row(0, 10, late, 2),), {0: ((21, 30), (31, 32))})  # 21 accepted, 22 not
    of = play.tags.tables.open[0]
    assert of.content.tokens(10) == [7, 21, 30]
    assert of.saves[1] == {13: 4, 14: 5, 15: 6}  # the row really started at 12
    assert play.tags.num_tokens == 10 + 3 + 3 and not play.tags.taint


def test_close_and_reopen_keep_contents_and_counts() -> None:
    play, text = Play(FULL), prompt(10)
    cold(play, 0, text, (5, 9, 2))
    play(Close(0))
    assert not play.tags.tables.held["kv"].any()
    again = Seq([*text.tokens(), 7])
    play(
        Open(0, "a", again), Bind(0, "full", 0, (5, 9, 2), False), row(0, again, 10), out={0: (8,)}
    )
    assert not play.tags.taint
    with pytest.raises(TagFault, match="open twice"):
        play(Open(0, "a", again))
