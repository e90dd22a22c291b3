"""Mechanisms that no plain row shows: stages, rings, replay, zeros, shifts, host pools, loads."""

from __future__ import annotations

import pytest
import torch

from handoff.engine.truth import TruthCheck
from handoff.errors import Unsupported
from handoff.index.spans import Seq
from handoff.store.faults import TagFault
from handoff.types import (
    Bind,
    Close,
    Copy,
    Cut,
    Group,
    Layer,
    Layout,
    Load,
    Open,
    Pool,
    Row,
    Shift,
    Spans,
    Zero,
)
from tests.truth.play import Play, handoff, opened, text

torch.set_num_threads(1)

YOCO = Layout(
    (Pool("kv", 64), Pool("ring", 8)),
    (
        Group("producer", "kv", 4),
        Group("consumer", "ring", 20, window=16, ring=True, columns=1),
    ),
    (
        Layer("producer"),
        Layer("producer"),
        Layer("consumer", stage=1),
        Layer("producer", stage=1, reads=1),
        Layer("consumer", stage=1),
    ),
)
FULL = Layout(
    (Pool("kv", 64), Pool("ram", 64, "host")), (Group("full", "kv", 4),), (Layer("full"),) * 3
)
CELLS = Layout((Pool("kv", 96),), (Group("full", "kv", 1),), (Layer("full"),) * 2)
MIXED = Layout(
    (Pool("kv", 64), Pool("w", 64)),
    (Group("full", "kv", 4), Group("window", "w", 4, window=8)),
    (Layer("window"), Layer("full"), Layer("window")),
)


def consumer_rule(length: int, keep: int = 16) -> Spans:
    edge = length - keep
    return Spans((0, edge), (0, edge), (0, edge))


def prefill_yoco(play: Play, seq: int, length: int, cuts: tuple[int, ...], first: int) -> Spans:
    """A prompt in chunks; the consumer stage computes its last 16 positions only."""
    rule = consumer_rule(length)
    ids = tuple(range(first, first + 16))
    play(
        *opened(seq, text(length), producer=ids, consumer=(seq,)),
        handoff(seq, length, cold=rule),
        play_row(play, seq, text(length), 0, cuts[0], rule),
    )
    for start, stop in zip(cuts, (*cuts[1:], length)):
        play(play_row(play, seq, text(length), start, stop, rule))
    return rule


def play_row(play: Play, seq: int, content: Seq, start: int, stop: int, rule: Spans) -> Row:
    edge = min(max(start, rule.compute[1]), stop)
    spans = Spans((start, edge), (start, edge), rule.visible)
    return Row(seq, start, content.slice(start, stop), 0, int(stop == len(content)), spans)


@pytest.mark.parametrize("cuts", [(20,), (30,), (9, 26, 33)])
def test_consumer_stage_in_chunks_and_decode(cuts: tuple[int, ...]) -> None:
    play = Play(YOCO)
    rule = prefill_yoco(play, 0, 41, cuts, 0)
    play.decode(0, 8, rule)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 9
    assert play.truth.approximate.rows == 9 and play.truth.approximate.max_error > 1e-3


def test_a_row_longer_than_the_ring_stages_what_it_sees() -> None:
    layout = Layout(
        (Pool("ring", 4),),
        (Group("ring", "ring", 10, window=8, ring=True, columns=1),),
        (Layer("ring"),) * 3 + (Layer("ring", reads=1),),
    )
    play = Play(layout)
    play(*opened(0, text(40), ring=(2,)), handoff(0, 40), play_first(play, 0, text(40), 6))
    play(play.row(0, 6, 31, emits=0))
    play(play.row(0, 31))
    play.decode(0, 12)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 13, play.truth.worst


def play_first(play: Play, seq: int, content: Seq, stop: int) -> Row:
    return Row(seq, 0, content.slice(0, stop), emits=int(stop == len(content)))


def test_fork_with_a_cloned_ring_and_a_partial_block() -> None:
    play = Play(YOCO)
    rule = prefill_yoco(play, 0, 41, (30,), 0)
    play.decode(0, 3, rule)
    known = play.content(0)
    shared = Seq([*known.tokens(0, 43), 999])  # shares 43 computed positions: 10 blocks and 3
    play(
        Open(1, "r1", shared),
        Bind(1, "producer", 0, tuple(range(10)), False),
        Bind(1, "producer", 10, tuple(range(32, 36)), True),
        Copy("producer", "kv", "kv", ((40, 32 * 4, 3),)),
        Bind(1, "consumer", 0, (1,), True),
        Copy("consumer", "ring", "ring", ((0, 20, 20),)),
        handoff(1, 44, 43, 43, cold=rule),
        row_of_fork(shared, rule),
    )
    play.decode(1, 4, rule)
    play.decode(0, 2, rule)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 1 + 3 + 1 + 4 + 2, play.truth.worst


def row_of_fork(content: Seq, rule: Spans) -> Row:
    return Row(1, 43, content.slice(43, 44), spans=Spans((43, 43), (43, 43), rule.visible))


def test_replay_is_tainted_and_its_error_measured() -> None:
    """A window group lost its blocks: 6 of 20 hit tokens are computed again, seeing less."""
    play, content = Play(MIXED), text(30)
    play(
        *opened(0, content, full=tuple(range(8)), window=tuple(range(8))),
        play_first(play, 0, content, 30),
    )
    again = text(24)
    play(
        Close(0),
        Open(1, "r1", again),
        Bind(1, "full", 0, (0, 1, 2, 3, 4), False),
        Bind(1, "full", 5, (20, 21), True),
        Bind(1, "window", 3, (20, 21, 22, 23), True),
        handoff(1, 24, 20, 14),
        replay_row(again),
    )
    truth = play.truth
    assert truth.tags is not None and truth.tags.taint == {"hidden": 10}
    play.decode(1, 2)
    assert truth.tags.taint == {"hidden": 12}
    verdict = truth.verdict()
    assert verdict.ok and verdict.rows == 1  # the cold request; the three others have no twin
    assert truth.approximate.rows == 3 and 1e-6 < truth.approximate.max_error < 2


def replay_row(content: Seq) -> Row:
    return Row(1, 14, content.slice(14, 24), spans=Spans((14,), (20, 14), (0, 14)))


def test_zeros_are_attended_and_tainted() -> None:
    play, content = Play(FULL), text(10)
    play(
        *opened(0, content, full=(3, 4, 5)), Zero("full", ((12, 8),)),
        handoff(0, 10, 8, 8), row_at(content, 8),
    )  # fmt: skip
    truth = play.truth
    assert truth.tags is not None and truth.tags.taint == {"zeros": 2}
    truth.finish()
    assert truth.rows == 0 and truth.approximate.max_error > 1e-3


def row_at(content: Seq, start: int, seq: int = 0) -> Row:
    return Row(seq, start, content.slice(start, len(content)))


def test_moved_chunk_is_rotated_to_its_new_position() -> None:
    play, content = Play(CELLS), text(30)
    play(*opened(0, content, full=tuple(range(30))), play_first(play, 0, content, 30))
    short = content.slice(0, 10)
    short.extend(content, 16, 30)
    short.append(77)
    play(
        Close(0),
        Open(1, "r1", short),
        Bind(1, "full", 0, (*range(10), *range(16, 30)), False),
        Shift("full", ((16, 14),), -6),
        Bind(1, "full", 24, (60, 61, 62, 63), True),
        handoff(1, 25, 24, 24),
        row_at(short, 24, 1),
    )
    truth = play.truth
    assert truth.tags is not None and truth.tags.taint == {"moved": 1}
    truth.finish()
    assert truth.rows == 1 and truth.moved_keys == 25 and truth.ok
    assert truth.approximate.rows == 1 and truth.approximate.max_error > 1e-3


def test_ram_round_trip_into_other_blocks() -> None:
    play, content = Play(FULL), text(12)
    play(*opened(0, content, full=(5, 9, 2)), play_first(play, 0, content, 12))
    play(Copy("full", "kv", "ram", ((20, 40, 4), (36, 0, 4), (8, 8, 4))), Close(0))
    again = Seq([*content.tokens(), 12, 13])
    play(
        *opened(1, again, full=(5, 9, 2, 30)),
        Copy("full", "ram", "kv", ((40, 20, 4), (0, 36, 4), (8, 8, 4))),
        handoff(1, 14, 12, 12),
        row_at(again, 12, 1),
    )
    play.decode(1, 2)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 4


@pytest.mark.parametrize("layout", [FULL, MIXED], ids=["full", "window"])
def test_load_gives_what_a_cold_run_would_hold(layout: Layout) -> None:
    play, content = Play(layout), text(21)
    tables = {group.name: tuple(range(8)) for group in layout.groups}
    loads = [Load(0, name, 0, 20) for name in tables]
    play(*opened(0, content, **tables), *loads, handoff(0, 21, 20, 20), row_at(content, 20))
    play.decode(0, 3)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 4


def test_chunked_local_attention_cuts_rows() -> None:
    layout = Layout((Pool("kv", 32),), (Group("local", "kv", 4, local=8),), (Layer("local"),) * 2)
    play, content = Play(layout), text(29)
    play(*opened(0, content, local=tuple(range(10))), play_first(play, 0, content, 13))
    play(Cut(0, "local", 0, 2), play.row(0, 13))
    play.decode(0, 5)
    verdict = play.truth.verdict()
    assert verdict.ok and verdict.rows == 6


def test_a_void_slot_poisons_the_logits_even_without_tags() -> None:
    play, content = Play(FULL, check_tags=False), text(10)
    play(*opened(0, content, full=(3, 4, 5)), handoff(0, 10, 8, 8), row_at(content, 8))
    verdict = play.truth.verdict()
    assert not verdict.ok and verdict.max_error == float("inf")
    with pytest.raises(TagFault, match="void slot"):
        play = Play(FULL)
        play(*opened(0, content, full=(3, 4, 5)), handoff(0, 10, 8, 8), row_at(content, 8))


def test_compressed_kv_is_refused() -> None:
    layout = Layout((Pool("kv", 8),), (Group("c4", "kv", 4, ratio=4),), (Layer("c4"),))
    with pytest.raises(Unsupported, match="one slot for 4 positions"):
        TruthCheck(layout)
