"""Every prompt position gets one class; expected partitions are worked by hand (block 16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.index.spans import VIRTUAL, Seq
from handoff.ledger.costs import Costs
from handoff.ledger.seen import isolation
from handoff.model.presets import preset
from handoff.types import Request, Row

from .play import LABEL, LAYOUT, Play, kinds, lost

A = 100  # a stream of ids 100, 101, ...


def ids(length: int, start: int = A) -> Seq:
    return Seq.of(range(start, start + length))


def forked(shared: int, private: int, name: int) -> Seq:
    seq = ids(shared)
    for token in range(private):
        seq.append(10_000 * name + token)
    return seq


def served(
    play: Play, name: str, prompt: Seq, inserted: int | None = None, **answer: object
) -> int:
    """One request from submission to the close after its first token; findable up to a block."""
    play.submit(name, prompt)
    seq = play.admit(name, prompt, **answer)
    play.done(**{f"s{seq}": (7,)})
    play.insert(seq, len(prompt) // 16 * 16 if inserted is None else inserted)
    play.close(seq)
    play.done()
    return seq


def test_the_first_prompt_is_fresh_and_its_repeat_is_reused() -> None:
    play = Play()
    served(play, "a", ids(40))
    repeat = [lost("last_token", 31, 32), lost("alignment", 16, 31)]
    served(play, "b", ids(32), raw_tokens=32, hit_tokens=16, start=16, deductions=tuple(repeat))
    a, b = play.entries()
    assert kinds(a) == [("fresh", 0, 40)] and a.computed_tokens == 40
    assert kinds(b) == [("reused", 0, 16), ("alignment", 16, 31), ("last_token", 31, 32)]
    assert b.shared_tokens == 32 and b.computed_tokens == 16 and b.output_tokens == 1


def test_what_no_whole_block_covers_is_alignment_stored_or_not() -> None:
    play = Play()
    served(play, "a", forked(34, 1, 1))
    served(play, "b", forked(34, 2, 2), hit_tokens=32)
    assert kinds(play.entries()[1]) == [
        ("reused", 0, 32),
        ("alignment", 32, 34),
        ("fresh", 34, 36),
    ]


def test_whole_blocks_that_never_became_findable_are_not_stored() -> None:
    play = Play()
    served(play, "a", ids(64), inserted=16)
    served(play, "b", ids(70), hit_tokens=16)
    assert kinds(play.entries()[1])[1:] == [("not_stored", 16, 64), ("fresh", 64, 70)]


def test_without_any_insert_the_cache_is_off() -> None:
    play = Play()
    play.submit("a", ids(64))
    play.admit("a", ids(64))
    play.done(s0=(7,))
    play.submit("b", ids(64))
    play.admit("b", ids(64))
    play.done(s1=(7,))
    assert play.entries()[1].lost == {"disabled": 64}


def test_what_was_findable_once_and_is_gone_was_evicted() -> None:
    play = Play()
    served(play, "a", ids(64))
    served(play, "b", ids(64), hit_tokens=16)
    served(play, "c", ids(64), hit_tokens=16, elsewhere=48)
    _, b, c = play.entries()
    assert b.lost == {"evicted": 48}
    assert kinds(c)[1:] == [("slot_choice", 16, 48), ("evicted", 48, 64)]


def test_another_tenant_keeps_whole_blocks_and_the_rest_is_alignment() -> None:
    play = Play()
    play.submit("a", ids(100), salt="A")
    play.admit("a", ids(100))
    play.done(s0=(7,))
    play.insert(0, 96)
    play.submit("b", forked(100, 10, 1), salt="B")
    play.admit("b", forked(100, 10, 1))
    play.done(s1=(7,))
    assert kinds(play.entries()[1]) == [
        ("isolation", 0, 96),
        ("alignment", 96, 100),
        ("fresh", 100, 110),
    ]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (("salt", "lora"), {"isolation": 64}),
        (("lora",), {"evicted": 64}),
        (("salt",), {"isolation": 64}),
    ],
)
def test_a_key_that_the_framework_ignores_isolates_nothing(
    keys: tuple[str, ...], wanted: dict[str, int]
) -> None:
    play = Play(label=replace(LABEL, isolation_keys=keys))
    play.submit("a", ids(64), salt="A")
    play.admit("a", ids(64))
    play.done(s0=(7,))
    play.insert(0, 64)
    play.submit("b", ids(64), salt="B")
    play.admit("b", ids(64))
    play.done(s1=(7,))
    assert play.entries()[1].lost == wanted


def test_request_options_isolate_like_the_key_they_stand_for() -> None:
    one = Request("a", ids(1), 1, options={"extra_key": "A", "lora_id": 3, "id_slot": 1})
    other = Request("b", ids(1), 1, options={"extra_key": "B", "lora_id": 3})
    assert isolation(one, None) != isolation(other, None)
    assert isolation(one, None, ("lora",)) == isolation(other, None, ("lora",))
    assert isolation(one, None, ("lora",)) != isolation(None, None, ("lora",))
    assert isolation(None, "A") != isolation(None, None)


def test_the_last_output_has_no_kv_and_the_others_have() -> None:
    play = Play()
    prompt = ids(20)
    play.submit("a", prompt)
    seq = play.admit("a", prompt)
    play.done(s0=(7,))
    for token in (8, 9):
        play.row(seq, len(play.text[seq]) - 1, len(play.text[seq]))
        play.done(s0=(token,))
    turn = ids(20)
    for token in (7, 8, 9, 10):
        turn.append(token)
    play.submit("b", turn)
    play.insert(seq, 16)
    play.admit("b", turn, unit=1, hit_tokens=16)  # a still runs: it enters the trees on demand
    play.done(s1=(7,))
    a, b = play.entries()
    assert b.shared_tokens == 22 and kinds(b)[1:] == [("not_stored", 16, 22), ("fresh", 22, 24)]
    assert a.output_tokens == 3 and a.computed_tokens == 20


def test_two_requests_of_one_step_share_what_is_being_computed() -> None:
    play = Play()
    for name, private in (("a", 1), ("b", 2)):
        play.submit(name, forked(48, 16, private))
    play.admit("a", forked(48, 16, 1))
    play.insert(0, 64)
    play.admit("b", forked(48, 16, 2), hit_tokens=48)
    play.done(s0=(7,), s1=(7,))
    assert kinds(play.entries()[1]) == [("reused", 0, 48), ("fresh", 48, 64)]


def test_own_inserts_are_no_eviction() -> None:
    play = Play()
    served(play, "a", ids(64), inserted=32)
    play.submit("b", ids(64))
    play.admit("b", ids(64), hit_tokens=32)
    play.insert(1, 64)  # in the very Step that admits it
    play.done(s1=(7,))
    assert play.entries()[1].lost == {"not_stored": 32}


def test_moved_chunks_and_replay_are_part_of_the_hit() -> None:
    play = Play()
    served(play, "a", ids(100))
    served(
        play,
        "b",
        forked(40, 60, 1),
        raw_tokens=40,
        hit_tokens=70,
        start=64,
        moved_spans=((40, 70),),
        unit=1,
    )
    b = play.entries()[1]
    assert kinds(b) == [
        ("reused", 0, 40),
        ("moved", 40, 64),
        ("replay", 64, 70),
        ("fresh", 70, 100),
    ]
    assert b.shared_tokens == 40


def test_a_preempted_request_computes_again_in_an_account_of_its_own() -> None:
    play = Play()
    prompt = ids(48)
    play.submit("a", prompt)
    seq = play.admit("a", prompt, stop=32)
    play.done()
    play.row(seq, 32, 48)
    play.done(s0=(7,))
    play.row(seq, 48, 49)
    play.done(s0=(8,))
    play.close(seq)
    play.done()
    known = play.text[seq]
    again = play.admit("a", known, attempt=1, hit_tokens=16, prompt_tokens=48)
    play.done(s1=(9,))
    play.close(again)
    play.done()
    first, second = play.entries()
    assert (first.computed_tokens, first.recomputed_tokens, first.output_tokens) == (48, 0, 3)
    assert (second.attempt, second.computed_tokens, second.recomputed_tokens) == (1, 0, 49 - 16)
    assert not second.counted


def test_a_preemption_in_mid_prompt_charges_each_position_once() -> None:
    play = Play()
    prompt = ids(48)
    play.submit("a", prompt)
    seq = play.admit("a", prompt, stop=32)
    play.done()
    play.close(seq)
    play.done()
    play.admit("a", prompt, attempt=1)
    play.done(s1=(7,))
    first, second = play.entries()
    assert first.computed_tokens == 48 and second.recomputed_tokens == 32


def test_rejected_drafts_are_overhead() -> None:
    play = Play()
    play.submit("a", ids(16))
    seq = play.admit("a", ids(16))
    play.done(s0=(7,))
    play.row(seq, 16, 17, drafts=3)
    play.done(s0=(900, 5))  # one of three accepted
    play.row(seq, 18, 19)
    play.done()  # an extra step: nobody wanted its result
    entry = play.entries()[0]
    assert entry.overhead_tokens == 2 + 1 and entry.output_tokens == 3


def test_refused_and_aborted_requests_are_counted_beside() -> None:
    play = Play()
    request = Request("big", ids(5000), 1)
    play.books.submit(request)
    play.books.refused(request, "longer than the pool")
    play.submit("late", ids(16))
    play.admit("late", ids(16))
    play.done(s0=(7,))
    play.books.refused(Request("late", ids(16), 1), "stuck")
    big, late = play.entries()
    assert big.status == "refused: longer than the pool" and big.prompt_tokens == 5000
    assert late.status == "aborted" and not late.counted


def test_a_hundred_thousand_virtual_tokens_cost_no_more_than_forty() -> None:
    play = Play()
    prompt = Seq.virtual(VIRTUAL, 100_000)
    served(play, "a", prompt)
    served(
        play,
        "b",
        prompt,
        raw_tokens=100_000,
        hit_tokens=99_984,
        start=99_984,
        deductions=(lost("last_token", 99_999, 100_000), lost("alignment", 99_984, 99_999)),
    )
    assert play.entries()[1].lost == {"alignment": 15, "last_token": 1}


def test_reused_tokens_that_descend_from_an_approximation_are_counted() -> None:
    asked = []

    def tainted(seq: int, stop: int) -> int:
        asked.append((seq, stop))
        return min(stop, 10)

    play = Play(tainted=tainted)
    served(play, "a", ids(64))
    served(
        play,
        "b",
        ids(64),
        raw_tokens=64,
        hit_tokens=48,
        start=48,
        deductions=(lost("last_token", 63, 64), lost("alignment", 48, 63)),
    )
    assert asked == [(0, 0), (1, 48)]
    assert [entry.tainted_tokens for entry in play.entries()] == [0, 10]


def test_the_last_prompt_row_pays_for_its_logits_also_with_drafts_behind_it() -> None:
    costs = Costs(preset("llama-3.1-8b"), LAYOUT)
    play = Play(costs=costs)
    play.submit("a", ids(1))
    seq = play.admit("a", ids(1))
    play.rows[-1] = Row(seq, 0, Seq.of([A, 900, 901]), 2, 3)  # padded with drafts
    play.done(s0=(7,))
    entry = play.entries()[0]
    assert entry.spent_flops == entry.cold_flops and entry.overhead_tokens == 2
