"""Steps, drafts, states, loads by hand; the number in a name is the rule book's section."""

from __future__ import annotations

import pytest

from handoff.adapter import load
from handoff.errors import HandoffError, Refused, Unsupported
from handoff.index.spans import LATE, Seq
from handoff.types import Load, Open, Request

from .play import FULL64, MAMBA64, REPLAY64, SWA32, Play, words

EAGLE = {"method": "eagle", "k": 2, "drafts": "none"}


# -- 6: a step ----------------------------------------------------------------------------------


def test_6_keys_appear_before_the_forward_pass() -> None:
    play = Play()
    for _ in range(2):
        play.submit(words(1, 33))
    step = play.plan()
    assert step is not None and [h.hit_tokens for h in step.handoffs] == [0, 32]


def test_6_the_budget_cuts_chunks_and_running_requests_come_first() -> None:
    play = Play(budget=40)
    play.submit(words(1, 64), 3)
    play.submit(words(2, 30), 2)
    play.finish()
    assert play.rows("r1")[:3] == [(0, 40), (40, 24), (64, 1)]
    assert play.rows("r2")[:2] == [(0, 16), (16, 14)]


def test_6_a_head_that_does_not_fit_blocks_the_queue() -> None:
    play = Play(num_blocks=12)
    play.submit(words(1, 100), 3)
    play.submit(words(2, 100), 1)
    play.submit(words(3, 16), 1)
    play.turn()
    assert [h.request for h in play.steps[0].handoffs] == ["r1"]
    assert [e.request for e in play.events("defer")] == ["r2"]
    play.finish()
    assert play.handoffs("r2") and play.handoffs("r3")


def test_6_preemption_takes_the_last_and_blocks_admission() -> None:
    play = Play(num_blocks=12)
    play.submit(words(1, 78), 30)
    play.submit(words(2, 78), 30)
    play.finish()
    assert [e.request for e in play.events("preempt")] == ["r2"]
    first, again = play.handoffs("r2")
    assert (first.attempt, again.attempt, again.hit_tokens) == (0, 1, 64)
    assert len(play.env.emitted["r2"]) == 30


def test_6_watermark_holds_blocks_back_while_something_runs() -> None:
    play = Play(num_blocks=32, watermark=0.2)
    play.submit(words(1, 320), 3)  # 20 of 31 blocks; 6 must stay free
    play.submit(words(2, 96), 1)
    play.turn()
    assert [h.request for h in play.steps[0].handoffs] == ["r1"]


def test_6_without_chunking_a_long_prompt_waits() -> None:
    adapter = load("vllm")
    options = adapter.options(
        max_num_batched_tokens=64, enable_chunked_prefill=False, async_scheduling=False
    )
    engine = adapter.engine(options)
    engine.submit(Request("a", Seq.of(words(1, 65)), 1), 0.0)
    assert engine.step(0.0) is None


def test_6_the_threshold_may_cut_even_without_chunking() -> None:
    adapter = load("vllm")
    options = adapter.options(
        max_num_batched_tokens=64, enable_chunked_prefill=False, long_prefill_token_threshold=40
    )
    engine = adapter.engine(options)
    for name in ("a", "b"):
        engine.submit(Request(name, Seq.of(words(1, 65)), 1), 0.0)
    step = engine.step(0.0)
    assert step is not None and [len(row.tokens) for row in step.rows] == [40]


def test_6_a_lora_too_many_is_passed_over() -> None:
    adapter = load("vllm")
    engine = adapter.engine(adapter.options(max_loras=1))
    for name, lora in (("a", "x"), ("b", "y"), ("c", "x")):
        engine.submit(Request(name, Seq.of(words(1, 20)), 2, lora=lora), 0.0)
    step = engine.step(0.0)
    assert step is not None and [h.request for h in step.handoffs] == ["a", "c"]


def test_6_only_the_loras_of_this_step_count() -> None:
    adapter = load("vllm")
    engine = adapter.engine(adapter.options(max_loras=1, async_scheduling=True))
    engine.submit(Request("a", Seq.of(words(1, 20)), 1, lora="x"), 0.0)
    engine.submit(Request("b", Seq.of(words(1, 20)), 1, lora="y"), 0.0)
    told = [[h.request for h in engine.step(0.0).handoffs] for _ in range(2)]
    assert told == [["a"], ["b"]]  # a only waits for its output


def test_6_what_can_never_fit_is_refused() -> None:
    play = Play(num_blocks=12, max_model_len=2048)
    with pytest.raises(Refused, match="needs 12 blocks, the pool has 11"):
        play.submit(words(1, 180))
    with pytest.raises(Refused, match="max_model_len is 2,048"):
        play.submit(words(1, 2049))


def test_6_a_window_model_may_generate_more_than_the_pool_holds() -> None:
    play = Play(groups=[SWA32], num_blocks=9)
    play.submit(words(1, 40), 300)
    play.finish()
    assert len(play.env.emitted["r1"]) == 300
    with pytest.raises(Refused, match="needs 10 blocks, the pool has 8"):
        play.submit(words(1, 160), 1)


# -- 9: speculation -----------------------------------------------------------------------------


def test_9_one_token_left_is_padded_with_rejected_drafts() -> None:
    play = Play(spec={**EAGLE, "drop": False})
    play.serve(words(1, 33))
    play.submit(words(1, 33), 2)
    step = play.plan()
    assert step is not None
    (row,) = step.rows
    assert (row.start, len(row.tokens), row.drafts, row.emits) == (32, 3, 2, 3)
    assert row.tokens.tokens(1) == [LATE, LATE]


def test_9_accepted_drafts_move_further_and_rejected_ones_back() -> None:
    play = Play(acceptance=1.0, spec=EAGLE)
    play.submit(words(1, 20), 8)
    play.finish()
    assert play.rows("r1") == [(0, 20), (20, 3), (23, 3), (26, 3)]
    play = Play(acceptance=0.0, spec=EAGLE)
    play.submit(words(1, 20), 4)
    play.finish()
    assert play.rows("r1") == [(0, 20), (20, 3), (21, 3), (22, 3)]


def test_9_multi_module_mtp_keeps_the_last_chunk_long() -> None:
    play = Play(budget=46, spec={"method": "mtp", "k": 3, "modules": 3, "drafts": "none"})
    play.submit(words(1, 47), 1)
    play.finish()
    assert play.rows("r1") == [(0, 44), (44, 3)]


def test_9_a_draft_model_costs_a_slot_a_sequence() -> None:
    play = Play(budget=40, spec={"method": "draft_model", "k": 2})
    play.submit(words(1, 20))
    play.submit(words(2, 30))
    play.submit(words(3, 30))
    step = play.plan()
    assert step is not None and [len(row.tokens) for row in step.rows] == [20, 18]


def test_9_a_placeholder_that_does_not_fit_the_chunk_is_no_padding() -> None:
    mamba = {"type": "mamba", "block_size": 8, "spec_blocks": 2}
    spec = {"method": "ngram", "k": 2, "drafts": "none"}
    play = Play(groups=[{"type": "full", "block_size": 8}, mamba], prefix_match_unit=2, spec=spec)
    play.serve(words(1, 7))
    play.serve(words(1, 7))  # from 6 on: with two placeholders it would end behind the block
    assert play.rows("r2") == [(6, 1)]


# -- 10: Mamba ----------------------------------------------------------------------------------


def test_10_prefill_stops_where_a_repeat_could_go_on() -> None:
    play = Play(groups=[FULL64, MAMBA64])
    play.serve(words(1, 150))
    assert play.rows("r1") == [(0, 128), (128, 22)]
    assert play.serve(words(1, 150)).hit_tokens == 128


def test_10_a_state_of_this_step_cannot_be_hit_in_it() -> None:
    play = Play(groups=[FULL64, MAMBA64])
    play.submit(words(1, 150))
    play.submit(words(1, 150))
    step = play.plan()
    assert step is not None and [h.request for h in step.handoffs] == ["r1"]
    assert [e.request for e in play.events("defer")] == ["r2"]


def test_10_a_state_keyed_with_an_output_can_be_hit_at_once() -> None:
    play = Play(groups=[FULL64, MAMBA64], retention=None, scheduler="async")
    play.submit(words(1, 60), says=words(2, 12))
    while not any(e.tokens == 64 and e.group == "mamba" for e in play.events("insert")):
        play.turn()
    play.submit([*words(1, 60), *words(2, 4), *words(3, 9)], name="next")
    step = play.plan()
    assert step is not None and [h.hit_tokens for h in step.handoffs] == [64]


def test_10_rows_load_and_save_states() -> None:
    play = Play(groups=[FULL64, MAMBA64])
    play.serve(words(1, 150), 2)
    uses = [row.states[0] for step in play.steps for row in step.rows]
    assert uses[0].load == -1 and uses[0].saves[0][0] == 128
    assert uses[1].load == uses[0].saves[0][1] and uses[1].saves[0][0] == 150


# -- 11: bounded replay -------------------------------------------------------------------------


def test_11_a_hit_is_replayed_by_one_window() -> None:
    play = Play(groups=[FULL64, REPLAY64])
    play.serve(words(1, 300))
    answer = play.serve(words(1, 300))
    assert (answer.hit_tokens, answer.start) == (256, 192)
    assert [g.write for g in answer.groups] == [256, 192]
    assert answer.spans is not None and answer.spans.visible == (0, 192)
    assert play.tags.taint.keys() == {"hidden"}  # an approximation, and the tags say which


def test_11_a_hit_of_at_most_a_window_is_given_up() -> None:
    play = Play(groups=[FULL64, REPLAY64])
    play.serve(words(1, 100))
    answer = play.serve(words(1, 100))
    assert (answer.hit_tokens, answer.start) == (0, 0)
    assert [(d.reason, d.start, d.stop) for d in answer.deductions] == [("group", 0, 64)]


# -- 12: connectors -----------------------------------------------------------------------------


def test_12_a_synchronous_load_counts_as_computed() -> None:
    play = Play(connector="sync")
    play.serve(words(1, 40))
    answer = play.serve(words(1, 80), options={"external_tokens": 80})
    assert (answer.hit_tokens, answer.external_tokens) == (79, {"connector": 47})
    (load_op,) = play.ops(Load)
    assert isinstance(load_op, Load) and (load_op.start, load_op.stop) == (32, 79)


def test_12_an_asynchronous_load_delays_the_first_row_only() -> None:
    play = Play(connector="async")
    play.submit(words(1, 80), options={"external_tokens": 64})
    step = play.plan()
    assert step is not None and not step.rows and not step.handoffs
    (load_op,) = play.ops(Load)
    assert isinstance(load_op, Load) and load_op.transfer is not None
    play.answer()
    assert play.plan() is not None  # still waiting: an empty Step, so that arrivals can be told
    play.answer(arrived=[load_op.transfer])
    step = play.plan()
    assert step is not None and [(r.start, len(r.tokens)) for r in step.rows] == [(64, 16)]
    assert step.handoffs[0].hit_tokens == 64


def test_12_an_abort_leaves_the_window_only_as_far_as_outputs_are_known() -> None:
    play = Play(connector="sync", groups=[SWA32], retention=None, num_blocks=20)
    play.submit(words(1, 90), 2)
    play.plan()
    play.engine.abort("r1", 0.0)  # nothing is processed yet: freed from the end, at once
    assert play.queue[0] == 6 and play.queue[-5:] == [5, 4, 3, 2, 1]


def test_12_abort_during_a_load_frees_when_the_load_ends() -> None:
    play = Play(connector="async", num_blocks=20)
    play.submit(words(1, 80), options={"external_tokens": 64})
    play.plan()
    play.engine.abort("r1", 0.0)
    assert len(play.queue) == 15
    play.answer(arrived=[0])
    assert len(play.queue) == 19


# -- 13: life cycle -----------------------------------------------------------------------------


def test_13_abort_frees_at_once_and_keeps_keys() -> None:
    play = Play(num_blocks=12)
    play.submit(words(1, 33), 9)
    play.turn()
    play.engine.abort("r1", 0.0)
    assert play.queue == [3, 4, 5, 6, 7, 8, 9, 10, 11, 2, 1]
    assert play.serve(words(1, 33)).hit_tokens == 32


def test_13_reset_is_refused_while_blocks_are_held() -> None:
    play = Play()
    play.submit(words(1, 33), 9)
    play.turn()
    assert play.engine.reset() is False
    assert play.engine.reset(running=True) is True
    play.finish()
    again = play.handoffs("r1")[1]
    assert (again.attempt, again.hit_tokens, again.known_tokens) == (1, 0, 34)
    play.engine.act("reset_prefix_cache", {}, 0.0)
    assert not play.engine.observe()["keyed"]
    with pytest.raises(Unsupported, match="knows no action"):
        play.engine.act("flush_cache", {}, 0.0)


def test_13_a_forced_reset_fails_while_a_load_holds_blocks() -> None:
    play = Play(connector="async")
    play.submit(words(1, 80), options={"external_tokens": 64})
    play.plan()
    assert play.engine.reset() is False
    with pytest.raises(HandoffError, match="a KV load holds blocks"):
        play.engine.reset(running=True)


@pytest.mark.parametrize("options", [{"skip_reading_prefix_cache": True}, {"prompt_logprobs": 0}])
def test_13_skip_reading_looks_nothing_up_but_inserts(options: dict) -> None:
    play = Play()
    play.serve(words(1, 33), options=options)
    answer = play.serve(words(1, 33), options=options)
    assert answer.hit_tokens == 0
    assert [(d.reason, d.start, d.stop) for d in answer.deductions] == [("disabled", 0, 32)]
    assert play.serve(words(1, 33)).hit_tokens == 32
    assert play.engine.stats.prefix_cache.as_list() == [1, 33, 32, 0, 0, 0]


def test_13_sequences_are_reopened_after_a_preemption() -> None:
    play = Play(num_blocks=12)
    play.submit(words(1, 78), 30)
    play.submit(words(2, 78), 30)
    play.finish()
    opened = [op for op in play.ops(Open) if isinstance(op, Open) and op.request == "r2"]
    assert [len(op.tokens) for op in opened] == [78, 81]
    assert len({op.seq for op in opened}) == 2


# -- 15: options --------------------------------------------------------------------------------


def test_15_defaults() -> None:
    options = load("vllm").options()
    values = options.model_dump()
    assert values["block_size"] == 16 and values["enable_prefix_caching"] is True
    assert values["prefix_cache_retention_interval"] == 0
    assert values["max_num_batched_tokens"] == 2048 and values["max_num_seqs"] == 128
    assert values["scheduler_reserve_full_isl"] is True and values["watermark"] == 0.0
    assert load("vllm").engine(options).depth == 2
    assert load("vllm").budget(1600, options) == {"num_gpu_blocks": 101}
    assert load("vllm").describe(options) == "block 16, async"
