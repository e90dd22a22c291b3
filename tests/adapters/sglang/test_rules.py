"""The rule book by hand: a test a rule, its number in the name, numbers to check by eye."""

from __future__ import annotations

from typing import Any

import pytest

from handoff.adapter import load, make_options
from handoff.conformance.contract import check_adapter
from handoff.errors import BadInput, Refused, Unsupported
from handoff.index.spans import Seq
from handoff.types import Bind, Copy, Cut, Deduction, Request

from .play import Play, words


def table(play: Play, name: str) -> list[int]:
    """The table of a request's first group right after admission."""
    return list(play.handoff(name).groups[0].table)


def lost(play: Play, name: str) -> list[tuple[str, int]]:
    """Reasons and tokens of a request's deductions."""
    return [(d.reason, d.tokens) for d in play.handoff(name).deductions]


def free(play: Play, count: int) -> list[int]:
    """The next free blocks."""
    return [int(block) for block in play.cache.slots.ids()[:count]]


# -- 2 matching ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "options", "hit"),
    [
        (100, {}, 99),
        (100, {"page_size": 16}, 96),
        (100, {"page_size": 64}, 64),
        (100, {"speculative_algorithm": "EAGLE"}, 98),
        (100, {"page_size": 16, "speculative_algorithm": "EAGLE"}, 96),
        (97, {"page_size": 16}, 96),
        (97, {"page_size": 16, "speculative_algorithm": "EAGLE"}, 80),
        (96, {"page_size": 16}, 80),
        (64, {"page_size": 64}, 0),
        (1, {}, 0),
    ],
)
def test_rule_2_the_worked_full_hit_table(length: int, options: Any, hit: int) -> None:
    play = Play(**options)
    play.serve(words(1, length))
    assert play.serve(words(1, length)).hit_tokens == hit


def test_rule_2_1_the_last_token_is_always_computed_and_splits_the_stored_span() -> None:
    play = Play()
    play.serve(words(1, 10))
    assert play.bounds() == [(0, 10)]
    handoff = play.serve(words(1, 10))
    assert handoff.raw_tokens == 10
    assert handoff.deductions == (
        Deduction("last_token", 9, 10, "2.1", None, "the last token is always computed"),
    )
    assert play.bounds() == [(0, 9), (9, 10)]


def test_rule_2_1_input_logprobs_end_the_key() -> None:
    play = Play()
    play.serve(words(1, 20))
    options = {"return_logprob": True, "logprob_start_len": 5}
    handoff = play.serve(words(1, 20) + words(2, 3), options=options)
    assert handoff.hit_tokens == 5
    assert [(d.reason, d.tokens) for d in handoff.deductions] == [("disabled", 15)]


def test_rule_2_2_whole_pages_only() -> None:
    play = Play(page_size=16)
    play.serve(words(1, 100))
    handoff = play.serve(words(1, 40) + words(2, 30))
    assert (handoff.raw_tokens, handoff.hit_tokens) == (40, 32)
    assert [(d.reason, d.start, d.stop) for d in handoff.deductions] == [("alignment", 32, 40)]


def test_rule_2_3_a_split_cuts_locked_spans_too_and_copies_the_lock() -> None:
    play = Play(chunked_prefill_size=64)
    play.submit(words(1, 20), 8)
    play.tick()
    assert [node.lock for node in play.tree.nodes()] == [1]
    play.submit(words(1, 12) + words(2, 5), 8)
    play.tick()
    locks = {(node.start, node.stop): node.lock for node in play.tree.nodes()}
    assert locks == {(0, 12): 2, (12, 20): 1, (12, 17): 1}


def test_rule_2_5_deeper_nodes_are_newer_after_a_match() -> None:
    play = Play()
    play.serve(words(1, 10) + words(2, 10))
    play.serve(words(1, 10) + words(3, 10))
    play.hit(words(1, 10) + words(2, 10))  # a probe refreshes nothing
    times = {(n.start, n.seq[n.start] // 10_000): n.time for n in play.tree.nodes()}
    assert times[10, 2] < times[0, 1] < times[10, 3]


def test_rule_12_force_miss_inserts_but_never_hits() -> None:
    play = Play(radix_force_miss=True)
    play.serve(words(1, 20))
    handoff = play.serve(words(1, 20))
    assert handoff.hit_tokens == 0 and handoff.raw_tokens == 20
    assert {d.reason for d in handoff.deductions} == {"last_token", "disabled"}


# -- 3 insertion -----------------------------------------------------------------------------


def test_rule_3_generated_tokens_are_reusable_only_after_the_finish() -> None:
    play = Play()
    says = words(9, 5)
    name = play.submit(words(1, 10), says=says)
    play.tick()
    assert play.hit(words(1, 10) + says) == 10
    play.tick()
    assert play.hit(words(1, 10) + says) == 10
    play.run()
    assert play.hit(words(1, 10) + says) == 14  # the last output was sampled, never computed
    assert play.handoff(name).hit_tokens == 0


def test_rule_3_a_chunk_is_reusable_one_step_after_it_ran() -> None:
    play = Play(chunked_prefill_size=8)
    play.submit(words(1, 20))
    play.tick()
    assert play.hit(words(1, 20)) == 0
    play.tick()
    assert play.hit(words(1, 20)) == 8


def test_rule_3_3_duplicates_go_back_and_the_row_names_the_trees_copy() -> None:
    play = Play()
    play.submit(words(1, 10), 4)
    play.submit(words(1, 10), 4)
    play.tick()
    assert table(play, "r1") == list(range(1, 11))
    assert table(play, "r2") == list(range(11, 21))
    play.tick()
    moved = [op for op in play.ops(Bind) if isinstance(op, Bind) and not op.fresh]
    assert moved == [Bind(2, "full", 0, tuple(range(1, 11)), False)]
    assert int(play.cache.slots.ids()[-1]) == 20  # freed slots join the end of the queue


def test_rule_3_5_the_prompt_is_cut_off_from_the_outputs() -> None:
    play = Play(page_size=4)
    play.serve(words(1, 10), 7)  # 16 positions with KV; the prompt's whole pages end at 8
    assert play.bounds() == [(0, 8), (8, 16)]
    assert [node.priority for node in sorted(play.tree.nodes(), key=lambda n: n.start)] == [1, 0]


def test_rule_3_the_partial_page_is_never_stored() -> None:
    play = Play(page_size=16)
    play.serve(words(1, 40))
    assert play.bounds() == [(0, 32)]
    assert free(play, 1) == [3]  # the third page came back, to the front


# -- 4 chunks --------------------------------------------------------------------------------


def test_rule_4_chunks_end_on_pages_and_one_request_is_in_mid_prompt() -> None:
    play = Play(page_size=4, chunked_prefill_size=12)
    play.submit(words(1, 30))
    play.submit(words(2, 30))
    play.run()
    rows = [[(row.seq, row.start, len(row.tokens)) for row in step.rows] for step in play.steps]
    assert rows[:5] == [
        [(1, 0, 12)],
        [(1, 12, 12)],
        [(1, 24, 6), (2, 0, 4)],
        [(2, 4, 12)],
        [(2, 16, 12)],
    ]


def test_rule_4_cached_tokens_are_those_of_the_first_admission() -> None:
    counters = load("sglang").counters  # type: ignore[attr-defined]
    play = Play()
    play.serve(words(1, 10))
    handoff = play.serve(words(1, 10))
    assert counters(handoff) == {"log_hit_tokens": 9, "log_input_tokens": 1, "cached_tokens": 9}


# -- 5 slots, decode, retraction -------------------------------------------------------------


def test_rule_5_single_slots_are_a_queue_and_pages_a_stack() -> None:
    play = Play(disable_radix_cache=True, max_total_tokens=40)
    play.serve(words(1, 10))
    assert free(play, 3) == [11, 12, 13] and free(play, 40)[-1] == 10
    play = Play(disable_radix_cache=True, max_total_tokens=40, page_size=4)
    play.serve(words(1, 10))
    assert free(play, 4) == [1, 2, 3, 4]


def test_rule_5_stop_tokens_leave_one_more_position_under_overlap() -> None:
    for overlap, kept in ((False, 13), (True, 14)):
        play = Play(disable_overlap_schedule=not overlap)
        says = [*words(9, 3), 7]
        play.submit(words(1, 10), says=[*says, *words(8, 4)], options={"stop_token_ids": [7]})
        play.run()
        assert play.hit(words(1, 10) + says + words(3, 5)) == kept


def test_rule_5_a_length_stop_skips_the_extra_step() -> None:
    play = Play(disable_overlap_schedule=False)
    play.serve(words(1, 10), 3)
    assert sum(len(step.rows) for step in play.steps) == 3


def test_rule_5_the_request_with_fewest_outputs_goes_back() -> None:
    play = Play(max_total_tokens=48, init_new_token_ratio=0.05)
    play.submit(words(1, 10), 18)
    play.submit(words(2, 12), 18)
    play.run()
    victims = [event.request for event in play.events("preempt")]
    assert victims == ["r2"]  # it started one step later
    handoffs = [h for step in play.steps for h in step.handoffs if h.request == "r2"]
    assert [h.attempt for h in handoffs] == [0, 1]
    assert handoffs[1].known_tokens > 12 and handoffs[1].prompt_tokens == 12


DRAFTS = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}


# slots at most: 10 prompt tokens, outputs but for the last one; a verify step takes 8 ahead of 10
@pytest.mark.parametrize(("page", "drafts", "fits"), [(1, {}, 15), (4, {}, 15), (1, DRAFTS, 8)])
def test_rule_5_a_request_that_outgrows_the_pool_is_refused(
    page: int, drafts: Any, fits: int
) -> None:
    play = Play(max_total_tokens=24, page_size=page, clip_max_new_tokens_estimation=4, **drafts)
    with pytest.raises(Refused, match=f"its prompt and {fits + 1} outputs take .* max_total"):
        play.submit(words(1, 10), fits + 1)
    with pytest.raises(Refused, match="max_total_tokens"):
        play.engine.submit(Request("huge", Seq.of(words(1, 10)), 4294967295), 0.0)
    play.submit(words(1, 10), fits)
    play.run()


def test_rule_5_an_urgent_request_takes_the_place_of_a_less_urgent_one() -> None:
    play = Play(enable_priority_scheduling=True, max_running_requests=1)
    play.submit(words(1, 10), 8)
    play.tick()
    play.submit(words(2, 10), 2, priority=10)
    play.tick()
    assert not play.events("preempt")  # more than 10 apart is needed
    play.submit(words(3, 10), 2, priority=11)
    play.tick()
    assert [event.request for event in play.events("preempt")] == ["r1"]


def test_rule_5_an_abort_inserts_nothing() -> None:
    play = Play()
    name = play.submit(words(1, 10), 5)
    play.plan()
    play.engine.abort(name, 0.0)
    play.answer()
    assert play.hit(words(1, 10)) == 0 and play.cache.slots.num_free == 16384


# -- 6 eviction and queue --------------------------------------------------------------------


def fill(play: Play) -> None:
    """Three branches of 8 behind a common head of 8: a, b, c in order of arrival."""
    for branch in (2, 3, 4):
        play.serve(words(1, 8) + words(branch, 8))


def survivors(play: Play) -> list[int]:
    """Branches that are still stored."""
    return [b for b in (2, 3, 4) if play.hit(words(1, 8) + words(b, 8) + [5]) == 16]


def test_rule_6_leaves_go_before_their_parents_and_whole() -> None:
    play = Play()
    fill(play)
    play.cache.room.evict(3)
    assert survivors(play) == [3, 4]  # the whole leaf of 8
    play.cache.room.evict(20)
    assert play.bounds() == []  # two leaves, then the head that became one


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("lru", [2, 4]),
        ("mru", [3, 4]),
        ("fifo", [3, 4]),
        ("filo", [2, 3]),
        ("lfu", [2, 4]),
        ("slru", [2, 4]),
        ("priority", [2, 3]),
    ],
)
def test_rule_6_policies(policy: str, left: list[int]) -> None:
    play = Play(radix_eviction_policy=policy)
    for branch, priority in ((2, 3), (3, 2), (4, 1)):
        play.serve(words(1, 8) + words(branch, 8), priority=priority)
    play.serve(words(1, 8) + words(2, 8), priority=3)  # branch 2 again: newest, counted twice
    node = next(n for n in play.tree.nodes() if n.seq[n.start] == words(2, 8)[7])
    assert node.length == 1  # the last token of branch 2 is a leaf of its own now
    play.cache.room.evict(2 if policy == "mru" else 1)
    assert survivors(play) == left


def test_rule_6_tlru_spares_what_the_next_prompt_needs() -> None:
    play = Play(radix_eviction_policy="tlru", tlru_threshold=4)
    play.serve(words(1, 8) + words(2, 2))
    play.serve(words(1, 8) + words(3, 20))
    play.cache.room.evict(1)
    # keep = deepest - 4: the short branch starts at 8 >= 6 and may go, the long one at 8 < 24
    assert play.hit(words(1, 8) + words(2, 2) + [5]) == 8
    assert play.hit(words(1, 8) + words(3, 20) + [5]) == 28


def test_rule_6_isolation_is_by_salt_and_by_concatenated_keys() -> None:
    play = Play()
    play.serve(words(1, 20), salt="a")
    assert play.hit(words(1, 20), salt="b") == play.hit(words(1, 20)) == 0
    play.serve(words(1, 20), lora="b", options={"extra_key": "a"})
    assert play.hit(words(1, 20), options={"extra_key": "ab"}) == 19
    assert play.hit(words(1, 20), lora="ab") == 19
    assert play.hit(words(1, 20), lora="b") == 0


def test_rule_6_fcfs_never_looks_but_touches_the_queue() -> None:
    play = Play(max_running_requests=1)
    for branch in (2, 3):
        play.serve(words(1, 8) + words(branch, 8))
    times = {n.seq[n.start]: n.time for n in play.tree.nodes()}
    play.submit(words(5, 5), 60)
    play.submit(words(1, 8) + words(2, 8), 2)
    for _ in range(2):
        play.tick()
    assert {n.seq[n.start]: n.time for n in play.tree.nodes() if n.seq[n.start] in times} == times


def test_rule_6_longest_prefix_first() -> None:
    play = Play(schedule_policy="lpm")
    play.serve(words(1, 50))
    play.submit(words(2, 60), 2)
    play.submit(words(1, 40) + words(3, 5), 2)
    play.submit(words(1, 50) + words(4, 5), 2)
    play.tick()
    assert [h.request for h in play.steps[-1].handoffs] == ["r4", "r3", "r2"]


def test_rule_6_equal_new_prompts_wait_for_the_first() -> None:
    for policy, batch in (("lpm", ["r1", "r3", "r2"]), ("fcfs", ["r1", "r2", "r3"])):
        play = Play(schedule_policy=policy)
        play.submit(words(1, 40), 2)
        play.submit(words(1, 40), 2)
        play.submit(words(2, 40), 2)
        play.tick()
        assert [h.request for h in play.steps[-1].handoffs] == batch


def test_rule_6_heavier_subtrees_first() -> None:
    play = Play(schedule_policy="dfs-weight")
    play.serve(words(1, 40))
    play.serve(words(2, 40))
    for stream, own in ((1, 5), (2, 6), (2, 7)):
        play.submit(words(stream, 40) + words(own, 5), 2)
    play.tick()
    assert [h.request for h in play.steps[-1].handoffs] == ["r4", "r5", "r3"]


def test_rule_6_longest_output_first() -> None:
    play = Play(schedule_policy="lof")
    play.submit(words(1, 5), 2)
    play.submit(words(2, 5), 9)
    play.tick()
    assert [h.request for h in play.steps[-1].handoffs] == ["r2", "r1"]


def test_rule_6_admission_leaves_room_for_the_outputs() -> None:
    play = Play(max_total_tokens=40)
    play.submit(words(1, 10), 10)
    play.submit(words(2, 9), 9)  # 9 + 9 + 1 is not less than 40 - (10 + 1 + 10)
    play.tick()
    assert [h.request for h in play.steps[-1].handoffs] == ["r1"]
    with pytest.raises(Refused, match="wait for ever"):
        play.submit(words(3, 30), 9)


# -- 7 windows -------------------------------------------------------------------------------

SWA: dict[str, Any] = {"attention": "swa", "sliding_window_size": 8}


def test_rule_7_window_kv_before_the_last_window_is_not_stored() -> None:
    play = Play(**SWA)
    play.serve(words(1, 30), 2)
    # freed up to (30 - 1) - 8 = 21; the live part of 9 is cut so that its tail has exactly 8
    nodes = sorted((n.start, n.stop, n.window is not None) for n in play.tree.nodes())
    assert nodes == [(0, 21, False), (21, 22, True), (22, 30, True), (30, 31, True)]


def test_rule_7_a_hit_needs_a_live_window_before_its_end() -> None:
    play = Play(**SWA)
    play.serve(words(1, 30), 2)
    assert play.hit([*words(1, 30), 5]) == 30
    assert play.hit(words(1, 25) + words(2, 5)) == 0  # only 4 live tokens before 25


def test_rule_7_the_branch_point_gets_a_window_of_its_own() -> None:
    play = Play(**SWA)
    play.serve(words(1, 30), 2)
    handoff = play.serve(words(1, 20) + words(2, 12), 2)
    assert handoff.hit_tokens == 0 and handoff.raw_tokens == 20
    assert [(d.reason, d.tokens, d.group) for d in handoff.deductions] == [("group", 20, "swa")]
    assert [group.matched for group in handoff.groups] == [20, 0]
    assert play.serve(words(1, 20) + words(3, 12)).hit_tokens == 20


def test_rule_7_a_short_live_path_needs_no_full_window() -> None:
    play = Play(**SWA)
    play.serve(words(1, 6))
    assert play.hit([*words(1, 6), 5]) == 6


def test_rule_7_decode_gives_windows_back_at_intervals() -> None:
    play = Play(**SWA, swa_eviction_interval=4)
    play.serve(words(1, 10), 30)
    cuts = [op for op in play.ops(Cut) if isinstance(op, Cut) and op.group == "swa"]
    assert cuts[0] == Cut(1, "swa", 0, 1)  # at the prefill's end: (10 - 1) - 8
    assert [op.last - op.first for op in cuts[2:-1]] == [4] * (len(cuts) - 3)


def test_rule_7_pure_swa_stores_prefills_only() -> None:
    play = Play(attention="pure_swa", sliding_window_size=8)
    play.serve(words(1, 20), says=words(9, 6))
    assert play.hit(words(1, 20) + words(9, 6)) == 20


def test_rule_7_bounded_replay_recomputes_the_last_window() -> None:
    play = Play(**SWA, enable_decoder_swa_bounded_replay=True)
    play.serve(words(1, 30))
    handoff = play.serve(words(1, 30))
    assert handoff.hit_tokens <= 30 - 8
    assert play.hit(words(1, 8)) == 0


RING: dict[str, Any] = {"attention": "swa_ring", "sliding_window_size": 8}


def test_rule_7_encoder_replay_runs_cached_tokens_again_for_the_ring() -> None:
    play = Play(**RING, enable_encoder_swa_bounded_replay=True, page_size=2)
    play.serve(words(1, 400))
    handoff = play.serve(words(1, 300) + words(2, 20))
    assert (handoff.hit_tokens, handoff.start) == (300, 300 - 128)
    assert handoff.spans == ((172,), (300, 172), (0, 172))  # full KV is written from 300 on
    row = play.steps[-1].rows[0] if play.steps[-1].rows else play.steps[-2].rows[0]
    assert (row.start, len(row.tokens)) == (172, 148)
    assert play.tags.taint["hidden"] > 0  # the first replayed rows see less than a cold run


def test_rule_7_encoder_replay_is_charged_to_the_chunk() -> None:
    play = Play(
        **RING, enable_encoder_swa_bounded_replay=True, page_size=2, chunked_prefill_size=256
    )
    play.serve(words(1, 200))
    play.submit(words(1, 200) + words(2, 20), 2)
    play.submit(words(3, 200), 2)
    play.tick()
    rows = {row.seq: len(row.tokens) for row in play.steps[-1].rows}
    assert list(rows.values()) == [128 + 20, 256 - 20 - 128]


def test_rule_7_decoder_replay_with_a_ring_shortens_the_hit() -> None:
    play = Play(**RING, enable_decoder_swa_bounded_replay=True)
    play.serve(words(1, 30))
    handoff = play.serve(words(1, 30))
    assert (handoff.hit_tokens, handoff.start) == (22, 22)
    assert [(d.reason, d.group, d.tokens) for d in handoff.deductions] == [
        ("last_token", None, 1),
        ("group", "ring", 7),
    ]


def test_rule_7_request_window_rows() -> None:
    from handoff.adapters.sglang.window import replay_len, window_layout

    assert [replay_len(hit) for hit in (0, 2, 100, 128, 130)] == [0, 2, 100, 128, 128]
    layout = window_layout(4, 8, 48, 2, [1, 1, 1], [2, 3, 4], None)
    assert layout.write_loc == [8, 9, 10] and layout.lengths == [3, 4, 4]
    assert layout.indices == [[8, 3, 2, -1], [9, 8, 3, 2], [10, 9, 8, 3]]
    assert layout.history_src[:4] == [48, 48, 8, 9] and layout.history_valid[:4] == [0, 0, 1, 1]
    layout = window_layout(2, 4, 9, 1, [0] * 6, list(range(6)), None)
    assert layout.commit == [0, 0, 1, 1, 1, 1]
    floored = window_layout(4, 8, 48, 1, [1], [5], [4])
    assert floored.lengths == [2] and floored.history_valid == [0, 0, 0, 1]


# -- 8 states --------------------------------------------------------------------------------


def test_rule_8_a_hit_ends_where_a_state_was_stored() -> None:
    play = Play(attention="mamba", chunked_prefill_size=16)
    play.serve(words(1, 40))
    assert play.hit(words(1, 40)) == 32  # the last chunk end below 40
    assert play.hit([*words(1, 40), 5]) == 40
    handoff = play.serve(words(1, 30) + words(2, 5))
    assert (handoff.raw_tokens, handoff.hit_tokens) == (30, 16)
    assert [(d.reason, d.group) for d in handoff.deductions] == [("group", "state")]


def test_rule_8_the_matched_state_is_copied_on_use() -> None:
    play = Play(attention="mamba")
    play.serve(words(1, 20))
    stored = next(node.state for node in play.tree.nodes())
    handoff = play.serve(words(1, 20) + words(2, 5))
    assert handoff.groups[1].copied == ((stored, handoff.groups[1].table[0], 20),)
    assert Copy("state", "state", "state", ((stored, handoff.groups[1].table[0], 1),)) in (
        play.ops(Copy)
    )


def test_rule_8_an_inner_node_only_loses_its_state() -> None:
    play = Play(attention="mamba", chunked_prefill_size=16)
    play.serve(words(1, 40))
    play.cache.room.evict(0, states=1)
    assert play.bounds() == [(0, 16), (16, 32), (32, 40)]
    assert play.hit(words(1, 20)) == 0 and play.hit(words(1, 35)) == 32


# -- 9 EAGLE ---------------------------------------------------------------------------------


def test_rule_9_keys_are_pairs() -> None:
    play = Play(speculative_algorithm="EAGLE")
    play.serve(words(1, 384), says=words(9, 64))
    name = play.submit(words(1, 384) + words(9, 64) + words(2, 40), 2)
    play.run()
    assert play.handoff(name).hit_tokens == 446
    assert lost(play, name) == [("draft", 1)]


def test_rule_9_verify_rows_reach_ahead_and_commit_what_was_accepted() -> None:
    play = Play(speculative_algorithm="EAGLE", speculative_num_steps=3)
    play.serve(words(1, 20), 9)
    rows = [row for step in play.steps for row in step.rows if row.drafts]
    assert [(row.start, len(row.tokens), row.emits) for row in rows] == [(20, 4, 4), (24, 4, 4)]
    assert play.cache.slots.num_free + play.tree.evictable == 16384


# -- 10 HiCache ------------------------------------------------------------------------------


def test_rule_10_evicted_prefixes_come_back_from_the_host() -> None:
    play = Play(enable_hierarchical_cache=True)
    play.serve(words(1, 40))
    play.engine.cache.host.acknowledge()
    play.cache.room.evict(1000)
    assert play.cache.tree.evictable == 0 and play.hit(words(1, 40)) == 39
    handoff = play.serve(words(1, 40))
    assert handoff.hit_tokens == 39 and handoff.external_tokens == {"host": 39}
    assert [c.src_pool for c in play.ops(Copy) if isinstance(c, Copy)] == ["full", "host"]


def test_rule_10_less_than_ten_host_tokens_are_computed_again() -> None:
    play = Play(enable_hierarchical_cache=True)
    play.serve(words(1, 9))
    play.engine.cache.host.acknowledge()
    play.cache.room.evict(1000)
    handoff = play.serve([*words(1, 9), 5])
    assert handoff.hit_tokens == 0
    assert [(d.reason, d.tokens) for d in handoff.deductions] == [("tier", 9)]


def test_rule_10_selective_copies_on_the_second_hit_and_write_back_on_eviction() -> None:
    for policy, after_one, after_two in (
        ("write_through", 1, 1),
        ("write_through_selective", 0, 1),
        ("write_back", 0, 0),
    ):
        play = Play(enable_hierarchical_cache=True, hicache_write_policy=policy)
        play.serve(words(1, 20))
        assert len(play.ops(Copy)) == after_one
        play.serve(words(1, 20) + words(2, 5))
        assert any(n.host is not None and n.start == 0 for n in play.tree.nodes()) == after_two
        play.engine.cache.host.acknowledge()
        play.cache.room.evict(5)
        assert any(n.host is not None for n in play.tree.nodes()) == (policy != "off")


def test_rule_10_an_insert_revives_host_only_nodes() -> None:
    play = Play(enable_hierarchical_cache=True, load_back_threshold=1000)
    play.serve(words(1, 40))
    play.engine.cache.host.acknowledge()
    play.cache.room.evict(1000)
    assert play.serve([*words(1, 40), 5]).hit_tokens == 0
    assert play.cache.tree.evictable == 41 and play.cache.slots.num_free == 16384 - 41


# -- 11 encoder, radix off; options ------------------------------------------------------------


def test_rule_11_the_encoder_part_is_deducted_once() -> None:
    from handoff.adapters.sglang.window import deduct_encoder

    done = deduct_encoder([0, 33, 0], [21, 6, 4], [5, 30, 0], list(range(1, 32)))
    assert done.prefix_lens == [0, 3, 0] and done.extend_lens == [16, 6, 4]
    assert done.encoder_loc == [1, 2, 3, 4, 5] and done.cached == [False, True, True]
    assert done.kept == [(5, 21), (33, 39), (0, 4)]
    with pytest.raises(AssertionError, match="inside the encoder part"):
        deduct_encoder([3], [5], [5], list(range(5)))


def test_rule_11_without_the_radix_cache_nothing_is_kept() -> None:
    play = Play(disable_radix_cache=True, chunked_prefill_size=8)
    play.serve(words(1, 20), 3)
    assert play.serve(words(1, 20), 3).hit_tokens == 0
    assert play.cache.slots.num_free == 16384 and play.bounds() == []


def test_rule_12_options_carry_upstreams_defaults() -> None:
    options: Any = load("sglang").options()
    assert (options.page_size, options.chunked_prefill_size, options.max_prefill_tokens) == (
        1,
        8192,
        16384,
    )
    assert options.overlap and options.schedule_policy == "fcfs"
    assert options.radix_eviction_policy == "lru" and options.hicache_ratio == 2.0
    with pytest.raises(BadInput, match="page_size"):
        make_options(load("sglang"), {"page_sise": 1})
    with pytest.raises(BadInput, match="multiple of page_size"):
        make_options(load("sglang"), {"page_size": 16, "chunked_prefill_size": 20})
    with pytest.raises(BadInput, match="holds no page"):
        make_options(load("sglang"), {"page_size": 16, "max_total_tokens": 15})
    with pytest.raises(BadInput, match="exclude each other"):
        make_options(
            load("sglang"), {"enable_hierarchical_cache": True, "disable_radix_cache": True}
        )


@pytest.mark.parametrize(("drafts", "least"), [(None, 8), (2, 8), (4, 10)])
def test_rule_7_a_ring_holds_the_window_and_what_drafts_overwrite(
    drafts: int | None, least: int
) -> None:
    values: dict[str, Any] = {
        "attention": "swa_ring",
        "sliding_window_size": 8,
        "enable_encoder_swa_bounded_replay": True,
        "page_size": 2,
    }
    if drafts:
        values |= {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3}
        values |= {"speculative_num_draft_tokens": drafts, "disable_overlap_schedule": True}
    with pytest.raises(BadInput, match=f"{least} rows"):
        make_options(load("sglang"), {**values, "swa_ring_capacity": least - 1})
    check_adapter(load("sglang"), values={**values, "swa_ring_capacity": least}, seeds=range(2))


@pytest.mark.parametrize(
    "values",
    [
        {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3},
        {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 4,
            "disable_overlap_schedule": True,
        },
        {
            "attention": "swa_ring",
            "sliding_window_size": 8,
            "enable_decoder_swa_bounded_replay": True,
            "enable_hierarchical_cache": True,
        },
        {"attention": "mamba", "enable_hierarchical_cache": True},
        {
            "attention": "mamba",
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "disable_overlap_schedule": True,
        },
    ],
)
def test_what_is_left_out_says_so(values: dict[str, Any]) -> None:
    adapter = load("sglang")
    with pytest.raises(Unsupported, match="left out"):
        adapter.engine(make_options(adapter, values))


def test_flush_cache_forgets_everything() -> None:
    play = Play()
    play.serve(words(1, 20))
    play.engine.act("flush_cache", {}, 0.0)
    assert play.hit(words(1, 20)) == 0
    assert play.serve(words(1, 20)).hit_tokens == 0
    with pytest.raises(Unsupported, match="flush_cache"):
        play.engine.act("restart", {}, 0.0)


def test_serving_alone_agrees_with_the_scheduler() -> None:
    alone: Any = Play(max_total_tokens=256).engine
    play = Play(max_total_tokens=256)
    for stream, length in ((1, 100), (2, 100), (1, 60), (3, 120), (1, 100)):
        request = Request(f"x{length}", Seq.of(words(stream, length)), 1)
        assert alone.serve_alone(request).hit_tokens == (
            play.serve(words(stream, length)).hit_tokens
        )
    with pytest.raises(Refused):
        alone.serve_alone(Request("big", Seq.of(words(4, 300)), 1))


@pytest.mark.parametrize(
    "asked",
    [
        {"stop_token_ids": 5},
        {"stop_token_ids": [[1]]},
        {"return_logprob": True, "logprob_start_len": "x"},
        {"extra_key": {"a": 1}},
    ],
    ids=str,
)
def test_request_options_of_a_wrong_type_name_the_request(asked: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"r1: option {list(asked)[-1]}"):
        Play().submit(words(1, 10), 2, options=asked)
