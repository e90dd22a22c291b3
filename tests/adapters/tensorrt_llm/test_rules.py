"""The rule book, rule by rule, on blocks of 4 tokens; numbers a reader can check by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from handoff.adapters.tensorrt_llm.blocks import HOST, PRIMARY, NoFreeBlock
from handoff.adapters.tensorrt_llm.buckets import BucketOrder
from handoff.adapters.tensorrt_llm.budget import fit_token_budget
from handoff.adapters.tensorrt_llm.engine import Engine
from handoff.adapters.tensorrt_llm.keys import PLAIN, Extra, Item, bucket_hash, item_entries
from handoff.adapters.tensorrt_llm.microbatch import MicroBatchScheduler, chunk_cost, plan_chunks
from handoff.adapters.tensorrt_llm.options import Options
from handoff.adapters.tensorrt_llm.request import LlmRequest, Retention, RetentionRange

from handoff.adapter import load, make_options
from handoff.errors import BadInput, Refused, Unsupported
from handoff.index.spans import Seq
from handoff.types import Image, Request

from .bench import Bench, answer, options, run_all

HEAD = list(range(1, 9))  # two whole blocks


def plain(prompt_len: int, **values: Any) -> LlmRequest:
    request = LlmRequest("r", Seq.of(range(prompt_len)), 4, 4)
    for name, value in values.items():
        setattr(request, name, value)
    return request


# -- 1 options ------------------------------------------------------------------------------


def test_rule_1_defaults_are_upstreams() -> None:
    chosen = Options()
    assert chosen.tokens_per_block == 32
    assert chosen.enable_block_reuse and chosen.enable_partial_reuse
    assert chosen.copy_on_partial_reuse and chosen.enable_prefix_aware_scheduling
    assert not chosen.enable_chunked_prefill and chosen.max_num_tokens == 8192
    assert chosen.offload_min_priority == 30
    assert chosen.windows == (chosen.max_seq_len,)


@pytest.mark.parametrize(
    "values",
    [
        {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        {"capacity_scheduler_policy": "STATIC_BATCH"},
        {"use_kv_cache_manager_v2": True},
        {"max_beam_width": 2},
        {"max_draft_len": 2, "max_attention_window": (18, 64)},
    ],
)
def test_rule_1_what_is_left_out_says_so(values: dict[str, Any]) -> None:
    with pytest.raises(Unsupported):
        options(**values)


def test_rule_1_a_request_with_beams_is_refused() -> None:
    beams = Request("r", Seq.of(HEAD), 2, options={"beam_width": 2})
    with pytest.raises(Unsupported, match="beam_width"):
        Engine(options()).submit(beams, 0.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"blocks_in_primary_pool": -1}, "blocks_in_primary_pool"),
        ({"blocks_in_primary_pool": {16: 8}}, "lacks window 64"),
        ({"blocks_in_primary_pool": {64: 8, 16: 8, 32: 8}}, "no attention window 32"),
        ({"blocks_in_secondary_pool": {32: 8}}, "no attention window 32"),
        ({"max_attention_window": (0,)}, "max_attention_window"),
    ],
)
def test_rule_1_pools_name_the_windows_of_the_model(values: dict[str, Any], message: str) -> None:
    given = {"max_seq_len": 64, "max_attention_window": (16, 64), **values}
    with pytest.raises(BadInput, match=message):
        make_options(load("tensorrt_llm"), given)


def test_rule_1_a_pool_longer_than_the_sequence_is_the_longest_windows() -> None:
    chosen = options(max_attention_window=(16, 100), blocks_in_primary_pool={16: 4, 100: 9})
    assert chosen.windows == (64, 16)  # no sequence is longer than 64
    assert chosen.pool_blocks(64) == (9, 0) and chosen.pool_blocks(16) == (4, 0)


def test_rule_1_without_reuse_nothing_is_walked_or_stored() -> None:
    bench = Bench(enable_block_reuse=False)
    bench.serve([*HEAD, 9])
    again = bench.request([*HEAD, 9])
    (admission,) = bench.add(again)
    assert admission.hit == 0 and again.position == 0 and not bench.manager.tree.root.children


# -- 2 structures ---------------------------------------------------------------------------


def test_rule_2_lora_0_and_salts_are_keys_of_their_own() -> None:
    bench = Bench()
    bench.serve([*HEAD, 9])
    for values, hit in (({}, 8), ({"lora_id": 0}, 0), ({"salt": 7}, 0)):
        (admission,) = bench.add(bench.request([*HEAD, 9], **values))
        assert admission.hit == hit, values


def test_rule_2_an_item_enters_every_block_it_overlaps() -> None:
    item = Item("cat", ((2, 5), (9, 3)))  # positions 2..6 and 9..11
    assert item_entries([item], 0, 4) == (("cat", 0),)
    assert item_entries([item], 4, 8) == (("cat", 2),)
    assert item_entries([item], 8, 12) == (("cat", 5),)
    assert item_entries([item], 12, 16) == ()


def test_rule_2_pruning_cascades_but_stops_at_a_sibling() -> None:
    bench = Bench(blocks_in_primary_pool=4)
    bench.serve(HEAD)
    root = bench.manager.tree.root
    (first,) = root.children.values()
    (second,) = first.children.values()
    bench.manager.tree.detach(first.values[64], 64)
    assert root.children, "a node without a value stays above its child"
    bench.manager.tree.detach(second.values[64], 64)
    assert not root.children


# -- 3 look-up keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_len", "lengths"), [(8, [4, 3]), (9, [4, 4, 0]), (10, [4, 4, 1]), (1, [0]), (2, [1])]
)
def test_rule_3_keys_of_all_tokens_but_the_last(prompt_len: int, lengths: list[int]) -> None:
    assert [key.length for key in plain(prompt_len).lookup_keys(64)] == lengths


# -- 4 walk ---------------------------------------------------------------------------------


def test_rule_4_1b_an_equal_short_block_hits_without_partial_reuse() -> None:
    bench = Bench(enable_partial_reuse=False)
    bench.serve([*HEAD, 9, 10], [50])  # the end stores 8 + (9, 10): the output was never written
    (admission,) = bench.add(bench.request([*HEAD, 9, 10, 11]))
    assert admission.hit == 10, "not a multiple of the block"


def test_rule_4_1d_no_sibling_is_tried_behind_a_missing_value() -> None:
    bench = Bench()
    bench.serve([*HEAD, 9])
    (first,) = bench.manager.tree.root.children.values()
    bench.manager.tree.detach(first.values[64], 64)
    bench.serve([1, 2, 3, 40], [41])
    (admission,) = bench.add(bench.request([*HEAD, 9]))
    assert admission.hit == 0


def test_rule_4_2_the_longest_sibling_wins() -> None:
    bench = Bench()
    bench.serve([1, 2, 30, 31, 32])
    bench.serve([1, 2, 3, 40, 41])
    bench.take()
    (admission,) = bench.add(bench.request([1, 2, 3, 4, 5]))
    assert admission.hit == 3
    assert [fact.data[-1] for fact in bench.take() if fact.kind in ("copy", "take")] == [3]


@pytest.mark.parametrize(("copies", "hit"), [(True, 7), (False, 4)])
def test_rule_4_2_without_copies_only_an_idle_leaf_serves_in_part(copies: bool, hit: int) -> None:
    bench = Bench(copy_on_partial_reuse=copies)
    bench.serve([*HEAD, 9, 10, 11, 12, 13])  # block 5..8 has a successor: no leaf
    (admission,) = bench.add(bench.request([1, 2, 3, 4, 5, 6, 7, 70, 71]))
    assert admission.hit == hit


# -- 5 adding a batch -----------------------------------------------------------------------


def test_rule_5_a_partial_match_on_a_block_in_use_is_copied() -> None:
    bench = Bench()
    running = bench.request([*HEAD, 9])
    bench.add(running)
    bench.prefill(running)
    bench.take()
    second = bench.request([1, 2, 3, 4, 5, 6, 70, 71])
    bench.add(second)
    assert bench.facts("copy") == [(1, 3, 2)]
    assert bench.ids(second) == [0, 3] and second.position == 6


def test_rule_5_the_last_of_a_batch_takes_an_idle_leaf_over() -> None:
    bench = Bench()
    bench.serve([1, 2, 3, 4, 5, 6], [7])
    bench.take()
    first, second = bench.request([1, 2, 3, 4, 5, 10]), bench.request([1, 2, 3, 4, 5, 20])
    bench.add(first, second)
    facts = bench.take()
    assert [(f.kind, f.data) for f in facts] == [("copy", (1, 2, 1)), ("take", (1, 1))]
    assert bench.ids(first) == [0, 2] and bench.ids(second) == [0, 1]


def test_rule_5_a_whole_match_in_the_batch_forbids_the_take_over() -> None:
    bench = Bench()
    bench.serve([*HEAD, 9])
    part, whole = bench.request([1, 2, 3, 4, 5, 6, 7, 10]), bench.request([*HEAD, 9])
    bench.add(part, whole)
    assert bench.ids(whole)[:2] == [0, 1] and bench.ids(part)[1] not in (0, 1)


def test_rule_5_a_batch_cannot_evict_what_a_member_matched() -> None:
    bench = Bench(blocks_in_primary_pool=5)
    bench.serve(HEAD)  # blocks 0 and 1 are next to be taken
    newcomer, heir = bench.request(range(100, 108)), bench.request([*HEAD, 9])
    bench.add(newcomer, heir)
    assert heir.prepopulated == 8
    with pytest.raises(NoFreeBlock):
        bench.add(bench.request(range(200, 204)))


def test_rule_5_4_beams_share_all_but_a_short_last_block() -> None:
    bench = Bench()
    bench.serve([*HEAD, 9, 10, 11])
    beams = bench.request([*HEAD, 9, 10, 11], beam_width=2)
    (admission,) = bench.add(beams)
    assert admission.hit == 8
    tables = bench.manager.sequence(beams)[0].tables(2)
    assert tables[0][:2] == tables[1][:2] == [0, 1] and tables[0][2] != tables[1][2]
    assert beams.missed == 1 and beams.alloc == 2
    assert bench.window.refs.counts[0] == 2, "one reference per beam"


# -- 6 free blocks, host --------------------------------------------------------------------


def test_rule_6_a_victim_moves_to_host_and_comes_back() -> None:
    bench = Bench(blocks_in_primary_pool=3, blocks_in_secondary_pool=2)
    bench.serve([*HEAD, 9])
    bench.take()
    bench.serve(range(100, 109))  # takes all three blocks
    facts = bench.take()
    # The tail goes to host first and is lost there when the third block needs its place.
    assert [f.data for f in facts if f.kind == "offload"] == [(2, 3), (1, 4), (0, 2)]
    assert [f.data for f in facts if f.kind == "evict"] == [(2, 1)]
    back = bench.request([*HEAD, 9])
    (admission,) = bench.add(back)
    assert admission.hit == 8 and admission.windows[0].from_host == 8
    assert [kind for kind in (f.kind for f in bench.take()) if kind == "onboard"] == ["onboard"] * 2
    assert bench.ids(back)[:2] == [0, 1], "the id stays, the slot moves"


def test_rule_6_a_low_priority_is_lost_instead() -> None:
    bench = Bench(blocks_in_primary_pool=2, blocks_in_secondary_pool=2)
    low = Retention((RetentionRange(0, None, 29),), 29)
    bench.serve(HEAD, retention=low)
    bench.take()
    bench.serve(range(100, 108))
    facts = [fact.kind for fact in bench.take()]
    assert "offload" not in facts and facts.count("evict") == 2


# -- 7 queues -------------------------------------------------------------------------------


def test_rule_7_release_is_last_block_first_and_strangers_to_the_front() -> None:
    bench = Bench(blocks_in_primary_pool=6)
    one, two = bench.request([*HEAD, 9]), bench.request([*HEAD, 9])
    bench.add(one, two)  # the second stores nothing: its slots are taken
    for request in (one, two):
        bench.prefill(request)
    bench.manager.remove_sequence(one)
    bench.manager.remove_sequence(two)
    # one: tail block 2 is stored (token 9), then 1, 0; two: 5, 4, 3 are duplicates.
    assert bench.window.policy.queues(PRIMARY) == {35: [3, 4, 5, 2, 1, 0]}


def test_rule_7_retention_counts_where_a_block_starts() -> None:
    spans = Retention((RetentionRange(3, 6, 80), RetentionRange(8, None, 50, 10.0)))
    assert spans.per_block(4, 4) == [(None, None), (80, None), (50, 10.0), (50, 10.0)]


def test_rule_7_an_expired_priority_goes_behind_everybody() -> None:
    bench = Bench(blocks_in_primary_pool=4)
    bench.serve([1, 2, 3, 4, 5], retention=Retention((RetentionRange(0, 4, 80, 10.0),)))
    assert bench.window.policy.queues(PRIMARY) == {35: [2, 3, 1], 80: [0]}
    bench.manager.set_now(9.0)
    bench.manager.refresh_blocks()
    assert 80 in bench.window.policy.queues(PRIMARY)
    bench.manager.set_now(10.0)
    bench.manager.refresh_blocks()
    assert bench.window.policy.queues(PRIMARY) == {35: [2, 3, 1, 0]}


def test_rule_7_pinned_blocks_are_held_till_unpinned() -> None:
    bench = Bench(blocks_in_primary_pool=4)
    request = bench.request([*HEAD, 9])
    bench.add(request)
    bench.prefill(request)
    pinned = bench.manager.store_pinned(request)
    bench.manager.remove_sequence(request)
    assert pinned == [0, 1, 2] and bench.manager.free_blocks() == [1]
    bench.manager.unpin_blocks_by_id(pinned)
    assert bench.manager.free_blocks() == [4]


# -- 8 windows ------------------------------------------------------------------------------


def test_rule_8_blocks_leave_a_window_while_decoding_only() -> None:
    bench = Bench(max_attention_window=(8,))
    request = bench.request(range(1, 14), 4)
    bench.add(request)
    bench.prefill(request)
    bench.take()
    assert bench.manager.free_blocks() == [12]
    bench.manager.add_token(request)  # 14 tokens: 14 >= 8 + 4, then 10 < 12
    assert bench.facts("detach_front") == [(0, 0)]
    assert bench.ids(request) == [0, 1, 2, 3], "the id stays in the reported list"


def test_rule_8_the_hit_is_the_minimum_over_the_windows() -> None:
    sizes = {"blocks_in_primary_pool": {64: 16, 8: 5}}
    bench = Bench(max_attention_window=(64, 8), enable_partial_reuse=False, **sizes)
    bench.serve(range(1, 18))
    bench.serve(range(100, 108))  # the small pool loses two blocks, the large one none
    (admission,) = bench.add(bench.request(range(1, 18)))
    large, small = admission.windows
    assert (large.matched, small.matched, admission.hit) == (16, 12, 12)


def test_rule_8_a_sliding_window_needs_the_last_w_tokens_only() -> None:
    bench = Bench(max_attention_window=(8,), enable_partial_reuse=False)
    bench.serve(range(1, 18))
    first = next(iter(bench.manager.tree.root.children.values()))
    bench.manager.tree.detach(first.values[8], 8)
    again = bench.request(range(1, 18))
    (admission,) = bench.add(again)
    assert admission.hit == 16 and bench.ids(again)[0] == -1, "the hole is only traversed"


# -- 9 estimate, capacity, deferral ---------------------------------------------------------


def test_rule_9_the_estimate_counts_whole_blocks_but_never_the_last_token() -> None:
    bench = Bench(tokens_per_block=4)
    bench.serve(HEAD)
    request = bench.request(HEAD, 8)
    assert bench.estimator.probe_prefix_match_length(request) == 8
    assert bench.estimator.remaining_to_completion(request) == [4], "idle blocks count as free"
    assert request.estimate == 4
    (admission,) = bench.add(request)
    assert admission.hit == 7, "the truth is token granular"


def test_rule_9_identical_prompts_are_not_computed_side_by_side() -> None:
    engine = Engine(options())
    for name in ("a", "b"):
        engine.submit(Request(name, Seq.of([*HEAD, 9]), 2), 0.0)
    step = engine.step(0.0)
    assert step is not None and [h.request for h in step.handoffs] == ["a"]
    assert engine.last is not None
    assert [request.id for request in engine.last.capacity.deferred] == ["b"]
    answer(engine, step)
    step = engine.step(0.0)
    assert step is not None and [(h.request, h.hit_tokens) for h in step.handoffs] == [("b", 8)]


def test_rule_9_the_first_that_does_not_fit_stops_the_line() -> None:
    engine = Engine(options(blocks_in_primary_pool=6, enable_block_reuse=False))
    handoffs = []
    for name, length in (("a", 12), ("b", 12), ("c", 3)):
        engine.submit(Request(name, Seq.of(range(length)), 1), 0.0)
    step = engine.step(0.0)
    assert step is not None
    handoffs += [handoff.request for handoff in step.handoffs]
    assert handoffs == ["a"], "a and b need 4 blocks each; c would fit but waits behind b"


# -- 10 micro-batch -------------------------------------------------------------------------


def test_rule_10_reuse_lowers_the_cost_of_the_chunk_that_ends_the_prompt() -> None:
    request = plain(32, estimate=16)
    assert [chunk_cost(request, chunk) for chunk in (8, 15, 16, 32)] == [8, 15, 16, 16]
    request.position = 4  # not the first chunk
    assert chunk_cost(request, 28) == 28


@pytest.mark.parametrize(
    ("policy", "chunks"),
    [("FIRST_COME_FIRST_SERVED", [15, 0]), ("EQUAL_PROGRESS", [10, 5])],
)
def test_rule_10_policies_share_the_capacity(policy: str, chunks: list[int]) -> None:
    requests = [plain(25), plain(25)]
    plan_chunks(requests, policy, 5, 15, None)
    assert [request.chunk for request in requests] == chunks


def test_rule_10_drafts_keep_to_the_last_unit() -> None:
    request = plain(27, drafts=5)
    plan_chunks([request], "FIRST_COME_FIRST_SERVED", 5, 30, None)
    assert (request.chunk, request.drafts) == (27, 3)


def test_rule_10_unfinished_chunks_come_first_then_by_lora() -> None:
    requests = [plain(8), plain(20)]
    requests[0].extra = Extra(lora=3)
    batch = MicroBatchScheduler(20, 8, "FIRST_COME_FIRST_SERVED", 4).schedule(requests)
    assert [(request.prompt_len, request.chunk) for request in batch.context] == [(20, 12), (8, 8)]
    assert batch.charged == 20


# -- 11 position, budget --------------------------------------------------------------------


def test_rule_11_the_chunk_window_is_shifted_not_shortened() -> None:
    request = plain(40, chunk=10)
    request.set_prepopulated(7)
    assert (request.position, request.chunk) == (7, 9), "7 + 9 is a block boundary"
    last = plain(18, chunk=18)
    last.set_prepopulated(9)
    assert (last.position, last.chunk) == (9, 9)


def test_rule_11_the_correction_shortens_from_the_back_and_drops_nothing() -> None:
    first, second = plain(24, chunk=24), plain(16, chunk=16)
    assert fit_token_budget([first, second], [], 30, 4, chunked=True) == 12
    assert (first.chunk, second.chunk) == (24, 4), "the floor is one block"
    assert fit_token_budget([first, second], [], 20, 4, chunked=False) == 0


# -- 11b what becomes reusable --------------------------------------------------------------


def test_rule_11b_a_finished_prompt_stores_its_last_block_a_chunk_does_not() -> None:
    bench = Bench()
    request = bench.request(range(1, 13))
    bench.add(request)
    bench.take()
    request.position = 8
    bench.manager.store_context(request)
    assert bench.facts("store") == [(0, 0, 4)]
    bench.prefill(request)
    assert bench.facts("store") == [(1, 1, 4), (2, 2, 4)]


def test_rule_11b_the_last_generated_token_was_never_written() -> None:
    bench = Bench()
    bench.serve(HEAD, [50, 51, 52])
    assert (0, 2) not in bench.facts("store")
    (admission,) = bench.add(bench.request([*HEAD, 50, 51, 52, 53]))
    assert admission.hit == 10


def test_rule_11b_a_short_and_a_long_sibling_both_remain() -> None:
    bench = Bench(enable_partial_reuse=False)
    bench.serve([1, 2], [3])
    bench.serve([1, 2, 3, 4], [5])
    assert sorted(key.length for key in bench.manager.tree.root.children) == [2, 4]


def test_rule_11b_rewinding_gives_an_emptied_block_to_the_front() -> None:
    bench = Bench(blocks_in_primary_pool=6)
    request = bench.request(HEAD, 8)
    bench.add(request)
    bench.prefill(request)
    for _ in range(3):
        bench.manager.add_token(request)
    assert bench.ids(request) == [0, 1, 2]
    bench.manager.rewind(request, 3)
    assert bench.ids(request) == [0, 1]
    assert bench.window.policy.queues(PRIMARY)[35][0] == 2


# -- 11c full hit ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_len", "partial", "hit"), [(9, True, 8), (9, False, 8), (8, True, 7), (8, False, 4)]
)
def test_rule_11c_at_least_one_token_is_computed(prompt_len: int, partial: bool, hit: int) -> None:
    engine = Engine(options(enable_partial_reuse=partial))
    prompt = list(range(1, prompt_len + 1))
    run_all(engine, {"first": (prompt, 4)})
    handoff = run_all(engine, {"again": (prompt, 1)})["again"]
    assert handoff.hit_tokens == hit and handoff.start == hit
    reasons = [deduction.reason for deduction in handoff.deductions]
    whole = ["last_token"] + ([] if hit == prompt_len - 1 else ["alignment"])
    assert reasons == whole and handoff.raw_tokens == prompt_len


def test_rule_11c_one_token_never_hits() -> None:
    bench = Bench()
    bench.serve([1], [2, 3])
    (admission,) = bench.add(bench.request([1]))
    assert admission.hit == 0


# -- 11d drafts -----------------------------------------------------------------------------


def test_rule_11d_drafts_take_nothing_from_a_match() -> None:
    for drafts in (0, 3):
        engine = Engine(options(max_draft_len=drafts))
        run_all(engine, {"first": ([*HEAD, 9], 1)})
        assert run_all(engine, {"again": ([*HEAD, 9], 1)})["again"].hit_tokens == 8


# -- 13 ties --------------------------------------------------------------------------------


def test_rule_13_the_map_lists_the_newest_bucket_first() -> None:
    order: BucketOrder[int] = BucketOrder(lambda number: number)
    for number in (1, 2, 14):  # 13 buckets: 14 shares the bucket of 1
        order.insert(number)
    assert order.ranked() == [2, 14, 1]
    order.erase(2)
    order.insert(2)
    assert order.ranked() == [2, 14, 1]


def test_rule_13_growth_inserts_again_in_list_order() -> None:
    order: BucketOrder[int] = BucketOrder(lambda number: number)
    for number in range(14):  # the fourteenth makes 29 buckets
        order.insert(number)
    assert order.ranked() == [13, *range(13)]


def test_rule_13_hash_starts_from_the_length_and_mixes_salt_tokens_lora() -> None:
    tokens = Seq.of([5])
    # mix32(5): ((5 >> 16) ^ 5) * 0x45D9F3B twice, then the high half folded in.
    value = 5
    for _ in range(2):
        value = (((value >> 16) ^ value) * 0x45D9F3B) % 2**32
    value ^= value >> 16
    expected = 1 ^ (((value + 0x9E3779B9) % 2**32 + (1 << 6) + (1 >> 2)) % 2**64)
    assert bucket_hash(tokens, 0, 1, PLAIN) == expected
    assert len({bucket_hash(tokens, 0, 1, e) for e in (PLAIN, Extra(0), Extra(None, 0))}) == 3


def test_rule_13_a_tie_goes_to_the_first_in_the_map() -> None:
    bench = Bench()
    bench.serve([1, 2, 30, 31, 32])
    bench.serve([1, 2, 40, 41, 42])
    bench.take()
    bench.add(bench.request([1, 2, 50, 51]))
    ((count, _, tokens),) = bench.facts("tie")
    assert (count, tokens) == (2, 2)


# -- engine ---------------------------------------------------------------------------------


def test_the_handoff_carries_estimate_truth_and_what_the_budget_left() -> None:
    engine = Engine(
        options(enable_chunked_prefill=True, max_num_tokens=12, enable_partial_reuse=False)
    )
    run_all(engine, {"warm": (range(1, 18), 1)})
    engine.intrude(
        Seq.of(range(100, 160)), hold=False
    )  # 15 of 16 blocks: all but the first cached one
    engine.submit(Request("late", Seq.of(range(1, 18)), 1), 0.0)
    step = engine.step(0.0)
    assert step is not None
    (handoff,) = step.handoffs
    assert (handoff.estimate_tokens, handoff.hit_tokens, handoff.budget_tokens) == (16, 4, 12)


@pytest.mark.parametrize(
    ("values", "prompt_len", "max_tokens"),
    [
        ({}, 60, 8),  # longer than max_seq_len
        ({"max_num_tokens": 10}, 12, 1),  # no chunk may split it
        ({"blocks_in_primary_pool": 2}, 12, 1),  # never enough blocks
        ({"max_num_tokens": 3, "enable_chunked_prefill": True}, 12, 1),  # no chunk reaches a block
    ],
)
def test_what_can_never_be_scheduled_is_refused(
    values: dict[str, Any], prompt_len: int, max_tokens: int
) -> None:
    with pytest.raises(Refused):
        Engine(options(**values)).submit(Request("r", Seq.of(range(prompt_len)), max_tokens), 0.0)


def test_images_isolate_the_blocks_they_cover() -> None:
    engine = Engine(options())
    prompt = Seq.of([*HEAD, 9])
    for name, identifier in (("a", "cat"), ("b", "dog")):
        image = Image(identifier, 4, 4)
        engine.submit(Request(name, prompt, 1, images=(image,)), 0.0)
        step = engine.step(0.0)
        assert step is not None
        (handoff,) = step.handoffs
        answer(engine, step)
    assert handoff.hit_tokens == 4


def test_observe_shows_both_levels() -> None:
    engine = Engine(options(blocks_in_secondary_pool=2))
    seen = SimpleNamespace(**engine.observe())
    assert seen.queues[64] == ({35: list(range(16))}, {35: [16, 17]})
    assert (PRIMARY, HOST) == (0, 1)
