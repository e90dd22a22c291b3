"""The rule book's examples by hand; the number in a name is the rule book's section."""

from __future__ import annotations

import pytest

from handoff.adapter import load
from handoff.errors import HandoffError, Refused, Unsupported
from handoff.index.spans import LATE, Seq
from handoff.types import Bind, Copy, Cut, Image, Load, Open, Request

from .play import FULL, FULL64, MAMBA64, REPLAY64, SWA32, Play, words

EAGLE = {"method": "eagle", "k": 2, "drafts": "none"}


# -- 1: the six questions -----------------------------------------------------------------------


def test_1_a_look_up_changes_nothing() -> None:
    play = Play()
    play.serve(words(1, 33))
    before = play.engine.observe()
    match = play.engine.probe(Request("x", Seq.of(words(1, 40)), 1))
    assert (match.raw_tokens, match.hit_tokens) == (32, 32)
    assert play.engine.observe() == before


def test_1_blocks_are_shared_in_place_and_write_starts_behind_the_hit() -> None:
    play = Play()
    play.serve(words(1, 33))
    answer = play.serve(words(1, 33))
    group = answer.groups[0]
    assert (answer.hit_tokens, answer.start, answer.known_tokens) == (32, 32, 33)
    assert list(group.table) == [1, 2, 3] and (group.write, group.fresh) == (32, 2)
    binds = [op for op in play.steps[-1].ops if isinstance(op, Bind)]
    assert [(b.column, b.ids, b.fresh) for b in binds] == [(0, (1, 2), False), (2, (3,), True)]
    assert not play.ops(Copy)


# -- 2: sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "scheduler_block", "hash_block", "alignment", "fine"),
    [
        ({"groups": [FULL]}, 16, 16, 16, False),
        ({"groups": [FULL], "dcp": 2}, 32, 32, 32, False),
        ({"groups": [{"type": "full", "block_size": 32}, SWA32]}, 32, 16, 32, False),
        ({"groups": [FULL64, MAMBA64]}, 64, 64, 64, False),
        ({"groups": [FULL64, MAMBA64], "prefix_match_unit": 16}, 64, 16, 16, True),
        ({"groups": [FULL64, {**SWA32, "block_size": 48}], "caching": False}, 192, 192, 192, False),
    ],
)
def test_2_sizes(
    config: dict, scheduler_block: int, hash_block: int, alignment: int, fine: bool
) -> None:
    sizes = Play(**config).engine.sizes
    assert sizes.scheduler_block == scheduler_block
    assert sizes.hash_block == hash_block
    assert (sizes.alignment, sizes.fine_grained) == (alignment, fine)


def test_2_one_group_refuses_another_unit() -> None:
    with pytest.raises(Unsupported, match="prefix_match_unit 8"):
        Play(prefix_match_unit=8)


# -- 3: keys ------------------------------------------------------------------------------------


def test_3_salt_and_lora_separate_and_find_themselves() -> None:
    play = Play(num_blocks=40)
    play.serve(words(1, 33))
    for more in ({"salt": "s"}, {"lora": "l"}, {"salt": "s", "lora": "l"}):
        assert play.serve(words(1, 33), **more).hit_tokens == 0
        assert play.serve(words(1, 33), **more).hit_tokens == 32
    assert play.serve(words(1, 33), salt="").hit_tokens == 32  # an empty salt is none


@pytest.mark.parametrize(
    ("image", "hit"),
    [
        (Image("A", 20, 8), 32),
        (Image("A", 21, 8), 16),
        (Image("B", 20, 8), 16),
        (Image("B", 40, 4), 16),
        (Image("A", 10, 8), 0),
    ],
)
def test_3_items_enter_with_identifier_and_offset(image: Image, hit: int) -> None:
    play = Play()
    play.serve(words(1, 50), images=(Image("A", 20, 8),))
    assert play.serve(words(1, 33), images=(image,)).hit_tokens == hit


def test_3_prompt_embeddings_hide_the_token_ids() -> None:
    play = Play()
    play.serve(words(1, 33), options={"prompt_embeds": "e"})
    assert play.serve(words(1, 33), options={"prompt_embeds": "e"}).hit_tokens == 32
    assert play.serve(words(1, 33)).hit_tokens == 0


def test_3_outputs_are_keyed_like_prompts() -> None:
    play = Play()
    play.serve(words(1, 30), says=words(2, 3))
    assert play.serve([*words(1, 30), *words(2, 10)]).hit_tokens == 32


def test_3_real_hashes_of_a_recorded_vector() -> None:
    engine = Play(groups=[{"type": "full", "block_size": 4}]).engine
    prompt = Seq.of(range(1000, 1013))  # 13 tokens: three complete blocks
    hashes = engine.block_hashes(Request("r", prompt, 1))
    assert len(hashes) == 3
    assert hashes[0].hex().startswith("63dba3bfc8235753fca2ec71e462bd17")
    assert hashes[1] != engine.block_hashes(Request("r", prompt, 1, salt="s"))[1]
    with pytest.raises(Unsupported, match="tensor's bytes"):
        engine.block_hashes(Request("r", prompt, 1, options={"prompt_embeds": "e"}))


# -- 4: the pool --------------------------------------------------------------------------------


def test_4_freed_tail_first_unkeyed_in_front() -> None:
    play = Play(num_blocks=8)
    assert list(play.serve(words(1, 33)).groups[0].table) == [1, 2, 3]
    assert play.queue == [3, 4, 5, 6, 7, 2, 1]


def test_4_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    play = Play(num_blocks=12)
    play.serve(words(1, 80))
    play.serve(words(2, 120))
    assert play.events("evict")[0].ids == (5, 4)
    assert play.serve(words(1, 80)).hit_tokens == 48


def test_4_duplicates_are_kept_and_the_first_is_hit() -> None:
    play = Play()
    for _ in range(2):
        play.submit(words(1, 32))  # 31 tokens may be hit: the second block is computed twice
    play.finish()
    tables = [list(play.handoff(name).groups[0].table) for name in ("r1", "r2")]
    assert tables == [[1, 2], [1, 3]]
    assert list(play.serve(words(1, 40)).groups[0].table[:2]) == [1, 2]


def test_4_a_hit_moves_to_the_back_only_when_it_is_freed() -> None:
    play = Play(num_blocks=8)
    play.serve(words(1, 33))
    play.submit(words(1, 33), 2)
    play.turn()
    assert play.queue == [4, 5, 6, 7]
    play.finish()
    assert play.queue == [3, 4, 5, 6, 7, 2, 1]


# -- 5 and 16: hit lengths ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "first", "second", "hit"),
    [
        ({}, 32, 32, 16),
        ({}, 33, 33, 32),
        ({}, 40, 31, 16),
        ({"spec": EAGLE}, 33, 33, 16),
        ({"spec": EAGLE}, 49, 48, 16),
        ({"spec": EAGLE}, 97, 96, 64),
        ({"spec": {**EAGLE, "drop": False}}, 33, 33, 32),
        ({"spec": EAGLE, "groups": [FULL, SWA32], "retention": None}, 97, 96, 80),
        ({}, 15, 15, 0),
    ],
)
def test_16_hits_by_hand(config: dict, first: int, second: int, hit: int) -> None:
    play = Play(**config)
    play.serve(words(1, first))
    assert play.serve(words(1, second)).hit_tokens == hit


def test_16_the_next_turn_hits_what_was_computed() -> None:
    play = Play()
    play.serve(words(1, 40), says=words(2, 10))
    answer = play.serve([*words(1, 40), *words(2, 10), *words(3, 20)])
    assert (answer.hit_tokens, answer.known_tokens - answer.start) == (48, 22)


def test_5_deductions_tell_cap_floor_and_drop_in_order() -> None:
    play = Play(spec=EAGLE)
    play.serve(words(1, 49))
    answer = play.serve(words(1, 48))
    told = [(d.reason, d.start, d.stop) for d in answer.deductions]
    assert told == [("last_token", 47, 48), ("alignment", 32, 47), ("draft", 16, 32)]


def test_5_a_window_needs_its_last_blocks_only() -> None:
    play = Play(groups=[{**SWA32}], retention=None)
    play.serve(words(1, 97))
    answer = play.serve(words(1, 97))
    assert answer.hit_tokens == 96
    assert list(answer.groups[0].table)[:4] == [-1, -1, -1, -1]


def test_5_the_shorter_group_limits_a_hybrid_hit() -> None:
    play = Play(groups=[FULL, SWA32])  # retention 0: only the end of a prompt is kept
    play.serve(words(1, 120))
    answer = play.serve([*words(1, 100), *words(2, 20)])
    assert answer.hit_tokens == 0
    assert [(d.reason, d.group) for d in answer.deductions] == [("group", "swa")]
    assert [g.matched for g in answer.groups] == [96, 0]


def test_5_chunked_local_needs_the_current_chunk() -> None:
    local = {"type": "local", "chunk": 64, "block_size": 16}
    play = Play(groups=[FULL, local])
    play.serve(words(1, 100))
    answer = play.serve(words(1, 100))
    assert answer.hit_tokens == 96
    assert list(answer.groups[1].table)[:4] == [-1] * 4


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


def test_6_a_lora_too_many_is_passed_over() -> None:
    adapter = load("vllm")
    engine = adapter.engine(adapter.options(max_loras=1))
    for name, lora in (("a", "x"), ("b", "y"), ("c", "x")):
        engine.submit(Request(name, Seq.of(words(1, 20)), 2, lora=lora), 0.0)
    step = engine.step(0.0)
    assert step is not None and [h.request for h in step.handoffs] == ["a", "c"]


def test_6_what_can_never_fit_is_refused() -> None:
    play = Play(num_blocks=12, max_model_len=2048)
    with pytest.raises(Refused, match="needs 12 blocks, the pool has 11"):
        play.submit(words(1, 180))
    with pytest.raises(Refused, match="max_model_len is 2,048"):
        play.submit(words(1, 2049))


# -- 7: windows and retention -------------------------------------------------------------------


def test_7_the_second_sibling_makes_a_junction_the_third_hits() -> None:
    play = Play(groups=[FULL, SWA32])
    hits = [play.serve([*words(1, 100), *words(n, 20)]).hit_tokens for n in (2, 3, 4)]
    assert hits == [0, 0, 96]


def test_7_dense_retention_hits_at_once() -> None:
    play = Play(groups=[FULL, SWA32], retention=None)
    hits = [play.serve([*words(1, 100), *words(n, 20)]).hit_tokens for n in (2, 3)]
    assert hits == [0, 96]


def test_7_blocks_leave_the_window_while_the_request_runs() -> None:
    play = Play(groups=[SWA32], num_blocks=40)
    play.submit(words(1, 90), 3)
    play.turn()
    play.turn()
    (cut,) = play.ops(Cut)
    assert (cut.first, cut.last) == (0, 3)  # 90 - 32 + 1 = 59 tokens are behind the window
    assert play.queue[:3] == [3, 2, 1]  # unkeyed under retention 0


def test_7_asynchronous_decode_blocks_get_keys_with_their_output() -> None:
    play = Play(scheduler="async")
    play.submit(words(1, 30), 8)
    told = []
    for _ in range(4):
        play.turn()
        told.append(max((e.tokens for e in play.events("insert")), default=0))
    assert told == [16, 16, 32, 32]  # token 32 is computed in the third step, keyed at its output


# -- 8: fine-grained hits -----------------------------------------------------------------------


def test_8_a_hit_inside_a_block_is_copied_on_write() -> None:
    play = Play(groups=[FULL64, MAMBA64], prefix_match_unit=16)
    play.serve(words(1, 118))
    answer = play.serve([*words(1, 112), *words(2, 8)])
    assert (answer.hit_tokens, answer.unit) == (112, 16)
    assert all(group.copied and group.copied[0][2] == 48 for group in answer.groups)
    step = next(s for s in play.steps if answer in s.handoffs)
    assert [op.group for op in step.ops if isinstance(op, Copy)] == ["full", "mamba"]


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
    play = Play(budget=100, max_num_seqs=20, spec={"method": "draft_model", "k": 2})
    assert play.engine.sizes.token_budget == 80


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


def test_7_r_swa_keeps_the_prompt_and_a_window_of_the_output() -> None:
    play = Play(groups=[{**SWA32, "type": "rswa"}])
    play.submit(words(1, 40), 60)
    play.finish()
    cuts = [(op.first, op.last) for op in play.ops(Cut) if isinstance(op, Cut)]
    assert cuts == [(3, 4)]  # columns 0 to 2 hold the prompt; 98 - 32 = 66 tokens are behind
    assert play.steps[-1].rows[0].spans is not None
    assert play.steps[-1].rows[0].spans.visible == (64,)


def test_6_a_window_model_may_generate_more_than_the_pool_holds() -> None:
    play = Play(groups=[SWA32], num_blocks=9)
    play.submit(words(1, 40), 300)
    play.finish()
    assert len(play.env.emitted["r1"]) == 300
    with pytest.raises(Refused, match="needs 10 blocks, the pool has 8"):
        play.submit(words(1, 160), 1)
