"""The rule book's rules on examples a reader can check by hand; numbers are RULES sections."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from handoff.adapters.llamacpp.batches import Work, consecutive, equal
from handoff.adapters.llamacpp.cells import Cells
from handoff.adapters.llamacpp.decision import group_questions
from handoff.adapters.llamacpp.files import file_bytes
from handoff.adapters.llamacpp.options import Options
from handoff.adapters.llamacpp.reuse import find_chunks
from handoff.adapters.llamacpp.shift import plan_shift

from handoff.adapter import load, make_options
from handoff.errors import BadInput, Refused, Unsupported
from handoff.index.spans import Seq
from handoff.types import NULL, Image

from .serving import HYBRID, ONE, RECURRENT, SMALL, WINDOW, Server, text

FOUR = {**SMALL, "parallel": 4, "ctx_size": 4096, "cache_ram": 0}
TWO = {**SMALL, "parallel": 2, "ctx_size": 2048, "cache_ram": 0}


# -- 1 sizes -----------------------------------------------------------------------------------


def test_rule_1_auto_is_four_unified_slots() -> None:
    auto, four = Options(), Options(parallel=4)
    assert (auto.num_slots, auto.unified, auto.streams) == (4, True, 1)
    assert (four.num_slots, four.unified, four.streams) == (4, False, 4)


def test_rule_1_contexts_are_rounded_up_to_256() -> None:
    assert Options(ctx_size=1000).slot_limit == 1024
    assert Options(ctx_size=1000, parallel=3).slot_limit == 512  # ceil256(1024 // 3)
    assert Options(ctx_size=1024, kv_unified_per_slot=200).slot_limit == 200
    assert Options(ctx_size=4096, n_ctx_train=512).slot_limit == 512


def test_rule_1_batches_are_bounded_by_the_context() -> None:
    options = Options(ctx_size=256)
    assert (options.batch, options.micro_batch) == (256, 256)


def test_rule_1_window_caches_shift_only_if_both_have_equally_many_cells() -> None:
    base = {"memory": "window", "n_swa": 64, "parallel": 1, "ubatch_size": 32}
    assert not Options(**base, ctx_size=1024).can_shift
    assert Options(**base, ctx_size=256).can_shift
    assert Options(**base, ctx_size=1024, swa_full=True).can_shift


def test_rule_1_a_window_belongs_to_a_window_memory() -> None:
    for wrong in ({"memory": "window"}, {"n_swa": 64}, {"memory": "hybrid", "n_swa": 64}):
        with pytest.raises(BadInput, match="n_swa"):
            make_options(load("llamacpp"), wrong)


# -- 2 slot choice -----------------------------------------------------------------------------


def test_rule_2_fresh_slots_are_taken_from_the_highest_id_down() -> None:
    server = Server(FOUR)
    assert [server.serve(text(k, 10)).slot for k in range(4)] == [3, 2, 1, 0]
    assert server.serve(text(9, 10)).slot == 3  # the least recently ended


def test_rule_2_a_similarity_equal_to_the_threshold_is_refused() -> None:
    server = Server(FOUR, slot_prompt_similarity=0.5)
    server.serve(text(1, 20))
    assert server.serve(text(1, 10) + text(2, 10)).slot == 2
    server = Server(FOUR, slot_prompt_similarity=0.5)
    server.serve(text(1, 20))
    assert server.serve(text(1, 11) + text(2, 9)).slot == 3


def test_rule_2_a_tie_keeps_the_lower_slot() -> None:
    server = Server(FOUR)
    server.together([server.request(text(1, 20)), server.request(text(1, 20))])
    assert server.lengths == [0, 0, 21, 21]
    assert server.serve(text(1, 20)).slot == 2


def test_rule_2_threshold_0_means_least_recently_used_only() -> None:
    server = Server(FOUR, slot_prompt_similarity=0.0)
    server.serve(text(1, 20))
    assert server.serve(text(1, 20)).slot == 2


def test_rule_2_a_named_slot_is_taken_whatever_it_holds() -> None:
    server = Server(FOUR)
    server.serve(text(1, 20))
    report = server.serve(text(1, 20), id_slot=1)
    assert (report.slot, report.hit) == (1, 0)
    assert server.handoffs["r2"].elsewhere == 20


def test_rule_2_requests_wait_in_order_for_a_slot() -> None:
    server = Server(SMALL, ONE)
    first, second, third = server.together(server.request(text(k, 10)) for k in range(3))
    assert [first.slot, second.slot, third.slot] == [0, 0, 0]
    assert server.lengths == [11]
    assert [line[1] for line in server.lines("new")] == [0, 0, 0]


def test_rule_2_default_server_keeps_one_slot_and_moves_the_rest_to_ram() -> None:
    server = Server(SMALL, ctx_size=4096)
    server.serve(text(1, 50))
    server.serve(text(2, 50))
    assert server.lengths == [0, 0, 51, 0]
    assert server.engine.observe()["ram"] == [51]
    report = server.serve([*text(1, 50), *text(3, 5)])
    assert (report.slot, report.hit) == (1, 50)
    assert server.lines("pc_load") == [("pc_load", None, 0.98, 0.909)]
    assert server.handoffs["r3"].external_tokens == {"host": 50}


# -- 3 hit length ------------------------------------------------------------------------------


def test_rule_3_common_prefix_token_by_token() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40))
    report = server.serve([*text(1, 17), *text(2, 20)])
    assert (report.hit, report.num_prompt - report.hit) == (17, 20)
    assert server.handoffs["r2"].deductions == ()


def test_rule_3_1_a_request_may_refuse_its_cache() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40))
    assert server.serve(text(1, 40), cache_prompt=False).hit == 0
    (lost,) = server.handoffs["r2"].deductions
    assert (lost.reason, lost.start, lost.stop) == ("disabled", 0, 40)


def test_rule_3_9_a_full_match_computes_the_last_token() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40))
    assert server.serve(text(1, 40)).hit == 39
    (lost,) = server.handoffs["r2"].deductions
    assert (lost.reason, lost.start, lost.stop, lost.rule) == ("last_token", 39, 40, "3.9")
    assert server.lines("full") == [("full", 0)]


def test_rule_3_7_a_cached_one_token_prompt_is_a_reset() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 1))
    assert server.serve(text(1, 1)).hit == 0
    assert server.lines("reset") == [("reset", 0)]


def test_rule_3_0_a_prompt_as_long_as_the_slot_is_refused_and_changes_nothing() -> None:
    server = Server(SMALL, ONE, ctx_size=256)
    server.serve(text(1, 40))
    with pytest.raises(Refused):
        server.engine.submit(server.request(text(2, 256)), 0.0)
    report = server.serve(text(1, 256))
    assert report.error == "exceed_context_size_error"
    assert server.lengths == [41]
    assert server.serve(text(1, 255)).error is None


# -- 4 chunk reuse -----------------------------------------------------------------------------


def _chunks(cached: str, prompt: str, hit: int, smallest: int) -> list[tuple[int, int, int]]:
    found = find_chunks(Seq(map(ord, cached)), len(cached), Seq(map(ord, prompt)), hit, smallest)
    return [(chunk.source, chunk.target, chunk.length) for chunk in found]


def test_rule_4_only_deletions_are_healed() -> None:
    assert _chunks("headCUTtail", "headtail!", 4, 4) == [(7, 4, 4)]
    assert _chunks("headCUTtail", "headNEWtail", 4, 4) == []  # the prompt is never skipped
    assert _chunks("headtail", "headNEWtail", 4, 4) == []


def test_rule_4_the_smallest_chunk_counts_to_the_end() -> None:
    assert _chunks("abXcd", "abcd", 2, 2) == [(3, 2, 2)]
    assert _chunks("abXcd", "abcd", 2, 3) == []


def test_rule_4_two_deletions_give_two_chunks() -> None:
    assert _chunks("a11bb22cc", "abbcc", 1, 2) == [(3, 1, 2), (7, 3, 2)]


def test_rule_4_moved_tokens_count_as_hit_and_are_shifted() -> None:
    server = Server(SMALL, ONE, cache_reuse=16)
    server.serve([*text(1, 30), *text(2, 10), *text(3, 40)])
    report = server.serve([*text(1, 30), *text(3, 40), *text(4, 5)])
    assert report.hit == 70
    assert server.lines("shift") == [("shift", 0, 40, 40, 30)]
    handoff = server.handoffs["r2"]
    assert (handoff.raw_tokens, handoff.moved_spans) == (30, ((30, 70),))
    assert server.tainted["r2"] == ("moved",)
    assert handoff.unsound == ()


# -- 5 checkpoints -----------------------------------------------------------------------------

BATCH = {"batch_size": 64, "ubatch_size": 32}


def test_rule_5_1_a_prompt_is_cut_before_its_last_36_and_4_tokens() -> None:
    server = Server(WINDOW, ONE, BATCH)
    assert server.serve(text(1, 112)).chunks == [0, 64, 76, 108]
    assert server.lines("ck+") == [("ck+", 0, 1, 0, 75, 76), ("ck+", 0, 2, 0, 107, 108)]


def test_rule_5_3_a_window_hit_is_one_less_than_its_checkpoint() -> None:
    server = Server(WINDOW, ONE, BATCH)
    server.serve(text(1, 400), 300)  # the outputs push the prompt's end out of the ring
    report = server.serve(text(1, 400))
    assert report.hit == 395  # the checkpoint at 396 is resumed at its last position
    (lost,) = server.handoffs["r2"].deductions
    assert (lost.reason, lost.group, lost.rule) == ("group", "window", "5.3")


def test_rule_5_3_a_recurrent_hit_is_its_checkpoint() -> None:
    for memory in (HYBRID, RECURRENT):
        server = Server(memory, ONE)
        server.serve(text(1, 200))
        assert server.serve(text(1, 200)).hit == 196


def test_rule_5_3_without_a_checkpoint_everything_is_computed() -> None:
    server = Server(HYBRID, ONE, ctx_checkpoints=0)
    server.serve(text(1, 200))
    assert server.serve(text(1, 200)).hit == 0
    assert server.lines("reset") == [("reset", 0)]
    assert server.serve([*text(1, 200), *text(902, 1), *text(3, 9)]).hit == 201


def test_rule_7_a_window_hit_not_longer_than_the_window_is_a_reset() -> None:
    server = Server(WINDOW, ONE, BATCH)
    server.serve(text(1, 60))
    assert server.serve([*text(1, 20), *text(2, 30)]).hit == 0


def test_rule_3_7_a_reset_says_why() -> None:
    notes = []
    for memory, shared, more in (
        (WINDOW, 20, {}),
        (WINDOW, 200, {}),
        (HYBRID, 30, {}),
        (HYBRID, 30, {"ctx_checkpoints": 0}),
    ):
        server = Server(memory, ONE, BATCH, more)
        server.serve(text(1, 400), 200)
        report = server.serve([*text(1, shared), *text(2, 9)])
        assert report.hit == 0
        notes += [lost.note for lost in server.handoffs["r2"].deductions]
    fits = "none of the checkpoints at 364, 396 fits: all is computed again"
    assert notes[0] == f"a prefix not longer than the window of 64 needs a checkpoint, and {fits}"
    assert re.fullmatch(
        rf"the window's first position is \d+, one below 136 is needed, and {fits}", notes[1]
    )
    state = "the state stands at position 598, behind the common prefix, and"
    assert notes[2:] == [
        f"{state} {fits}",
        f"{state} there is no checkpoint: all is computed again",
    ]


def test_rule_2_the_matcher_says_why_the_slot_and_what_it_drops() -> None:
    server = Server(TWO)
    server.serve(text(1, 100))
    server.serve([*text(1, 20), *text(2, 30)])
    server.serve([*text(1, 20), *text(3, 380)])
    unlike = "(least recently used, no list is more than 0.1 similar)"
    prefix = "then its longest common prefix"
    assert [server.handoffs[name].matcher for name in ("r1", "r2", "r3")] == [
        f"slot 1 {unlike}, {prefix}",
        f"slot 1 (similarity 0.400), {prefix}; 81 tokens of its list are dropped",
        f"slot 0 {unlike}, {prefix}",
    ]
    server = Server(TWO, slot_prompt_similarity=0.0)
    server.serve(text(1, 100))
    assert server.handoffs["r1"].matcher == f"slot 1 (least recently used, -sps is 0), {prefix}"


def test_rule_5_2_the_list_keeps_the_newest_checkpoints() -> None:
    server = Server(WINDOW, ONE, BATCH, ctx_checkpoints=2, checkpoint_min_step=0)
    server.serve(text(1, 112))
    server.serve([*text(1, 112), *text(901, 1), *text(2, 80)])
    assert server.engine.observe()["checkpoints"] == [[157, 189]]
    assert [line[-1] for line in server.lines("ck-old")] == [76, 108]


def test_rule_5_4_user_messages_start_checkpoints() -> None:
    server = Server(HYBRID, ONE)
    report = server.serve(text(1, 300), user_starts=(100, 200))
    assert report.chunks == [0, 100, 200, 296]
    assert [line[-1] for line in server.lines("ck+")] == [100, 200, 296]


# -- 6 batches ---------------------------------------------------------------------------------


def _shape(batches: list[list[Work]]) -> list[list[tuple[int, int, int]]]:
    return [[(work.slot, work.start, work.count) for work in batch] for batch in batches]


def test_rule_6_unified_micro_batches_are_consecutive_runs() -> None:
    work = [Work(0, 9, 1), Work(1, 0, 40), Work(2, 0, 30)]
    assert _shape(list(consecutive(work, 32))) == [
        [(0, 9, 1), (1, 0, 31)],
        [(1, 31, 9), (2, 0, 23)],
        [(2, 23, 7)],
    ]


def test_rule_6_other_micro_batches_are_equal_and_follow_slot_ids() -> None:
    work = [Work(0, 9, 1), Work(1, 0, 40), Work(3, 0, 5)]
    assert _shape(list(equal(work, 32, in_order=True))) == [
        [(0, 9, 1), (1, 0, 1)],
        [(1, 1, 32)],
        [(1, 33, 7)],
        [(3, 0, 5)],
    ]


def test_rule_6_prompts_share_a_batch_in_slot_order() -> None:
    server = Server(FOUR, BATCH)
    server.together([server.request(text(1, 70), 1), server.request(text(2, 20), 1)])
    assert server.lines("rm") == [("rm", 2, 0), ("rm", 3, 0), ("rm", 3, 44)]


# -- 7 window cells ----------------------------------------------------------------------------


def _write(cells: Cells, seq: int, start: int, count: int) -> list[int]:
    found = cells.find(cells.stream(seq), count)
    assert found is not None
    cells.write(found, [(seq, start, count)])
    return found


def test_rule_7_masked_cells_are_overwritten_and_the_range_stays_whole() -> None:
    cells = Cells(8, 1, 1, window=4)
    assert _write(cells, 0, 0, 6) == [0, 1, 2, 3, 4, 5]
    assert _write(cells, 0, 6, 4) == [6, 7, 0, 1]  # 0 and 1 are masked for position 6
    assert (cells.pos_min(0), cells.pos_max(0)) == (2, 9)
    assert cells.tables[0] == [NULL, NULL, 2, 3, 4, 5, 6, 7, 0, 1]


def test_rule_7_what_lies_below_an_overwritten_position_is_removed() -> None:
    cells = Cells(8, 1, 1, window=2)
    _write(cells, 0, 0, 6)
    cells.head[0] = 2  # as after a removal and a shift: the walk meets position 2 before 0 and 1
    assert cells.find(0, 1) == [2]
    (purge,) = cells.write([2], [(0, 6, 1)])
    assert (purge.start, purge.stop, purge.logged) == (0, 3, (0, 2))
    assert (cells.pos_min(0), cells.used[0]) == (3, 4)


def test_rule_7_a_search_starts_at_0_when_the_head_is_far_ahead() -> None:
    cells = Cells(16, 1, 2)
    _write(cells, 0, 0, 8)
    cells.remove(0, 2)
    cells.head[0] = 9
    assert cells.find(0, 4) == [9, 10, 11, 12]  # 9 > 2 + 2 * 4 is false
    assert cells.find(0, 3) == [2, 3, 4]  # 9 > 2 + 2 * 3: the first free cells from 0 on


def test_rule_7_removing_lowers_the_head_and_a_shift_sets_it_to_0() -> None:
    cells = Cells(16, 1, 1)
    _write(cells, 0, 0, 8)
    cells.remove(0, 2, 4)
    assert cells.head[0] == 2
    assert cells.shift(0, 4, 8, -2) == [4, 5, 6, 7]
    assert cells.tables[0] == [0, 1, 4, 5, 6, 7]
    assert cells.head[0] == 0


def test_rule_7_a_copy_takes_only_what_can_still_be_seen() -> None:
    cells = Cells(16, 1, 2, window=4)
    _write(cells, 0, 0, 10)
    assert cells.saved(0) == ([6, 7, 8, 9], [6, 7, 8, 9])
    restored = cells.restore(1, [6, 7, 8, 9])
    assert restored is not None and restored[0] == [10, 11, 12, 13]
    assert (cells.pos_min(1), cells.pos_max(1)) == (6, 9)


def test_rule_7_pmin_is_0_until_the_ring_wraps() -> None:
    server = Server(WINDOW, ONE, BATCH)  # 256 cells
    lows = [low for low, _ in server.serve(text(1, 400)).mem]
    assert lows == [-1, 0, 0, 0, 0, 64, 108, 140]


# -- 8 RAM prompt cache ------------------------------------------------------------------------


def test_rule_8_4_state_and_file_bytes() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 137))
    memory = server.engine.server.memory
    assert memory.num_bytes(0) == 12 + 4 * 1 + 16 + 24 * 2 + 138 * (12 + 128)
    assert file_bytes(138, memory.num_bytes(0)) == 12 + 4 * 142 + memory.num_bytes(0) - 8


def test_rule_8_1_a_slot_is_saved_when_less_than_half_would_be_kept() -> None:
    ram = {**ONE, "cache_ram": 8}
    server = Server(SMALL, ram)
    server.serve(text(1, 99), 2)  # the list is 100 long
    server.serve([*text(1, 50), *text(2, 1)])  # keeps 50 / 100, not below one half
    assert server.engine.observe()["ram"] == []
    server = Server(SMALL, ram)
    server.serve(text(1, 99), 2)
    server.serve([*text(1, 49), *text(2, 1)])
    assert server.engine.observe()["ram"] == [100]


def test_rule_8_1_prefixes_of_a_saved_list_are_dropped() -> None:
    server = Server(SMALL, ONE, cache_ram=8)
    for prompt in (text(1, 30), text(2, 90), [*text(1, 30), *text(901, 1), *text(3, 60)]):
        server.serve(prompt)
    assert server.engine.observe()["ram"] == [91]  # the first entry was moved into the slot
    server = Server(SMALL, TWO, cache_ram=8)
    server.serve(text(1, 30))
    server.serve(text(2, 90))  # the other slot's 31 tokens are saved
    server.serve([*text(1, 30), *text(901, 1), *text(3, 60)])
    server.serve(text(4, 90), id_slot=1)
    assert ("pc_obs", None, 31) in server.lines("pc_obs")


def test_rule_8_2_less_than_a_quarter_is_not_loaded() -> None:
    for shared, loaded in ((25, True), (24, False)):
        server = Server(SMALL, ONE, cache_ram=8)
        server.serve(text(1, 99))
        server.serve(text(2, 50))
        report = server.serve([*text(1, shared), *text(3, 10)])
        assert report.hit == (shared if loaded else 0)


def test_rule_8_2_an_entry_is_moved_not_copied() -> None:
    server = Server(SMALL, ONE, cache_ram=8)
    server.serve(text(1, 60))
    server.serve(text(2, 60))
    server.serve([*text(1, 60), *text(3, 5)])
    assert server.engine.observe()["ram"] == [61]  # that of the second prompt


def test_rule_8_3_the_oldest_go_first() -> None:
    server = Server(SMALL, ONE, ctx_size=256, cache_ram=-1)
    for k in range(4):
        server.serve(text(k, 99))
    assert server.engine.observe()["ram"] == [100, 100]
    assert server.lines("pc_tok") == [("pc_tok", None, 100)]


# -- 9 children and decisions ------------------------------------------------------------------


@pytest.mark.parametrize("unified", [False, True])
def test_rule_9_children_start_from_the_parents_prompt_and_are_cleared(unified: bool) -> None:
    server = Server(FOUR, kv_unified=unified)
    server.serve(text(1, 50), 5, n_cmpl=3)
    assert server.lines("child", "clear") == [
        ("child", 3, 0),
        ("child", 3, 1),
        ("clear", 0, 54),
        ("clear", 1, 54),
    ]
    assert server.lengths == [0, 0, 0, 54]
    assert server.handoffs["r1#2"].hit_tokens == 50


def test_rule_9_a_parent_waits_until_there_are_slots_for_all() -> None:
    server = Server(FOUR)
    long, family = server.request(text(1, 20), 9), server.request(text(2, 20), 3, n_cmpl=4)
    server.together([long, family])
    assert server.lines("stop")[0][1] == 3
    assert [line[1] for line in server.lines("child")] == [2, 2, 2]
    with pytest.raises(Refused):
        server.engine.submit(server.request(text(3, 5), 1, n_cmpl=5), 0.0)


def test_rule_9_decisions_are_grouped_by_their_common_head() -> None:
    prompts = [Seq(map(ord, word)) for word in ("headAA", "headBB", "headC", "other")]
    assert group_questions(prompts[:3], 4) == [([0, 1, 2], 4)]
    assert group_questions(prompts, 4) == [([0], 0), ([1], 0), ([2], 0), ([3], 0)]
    assert group_questions(prompts, 2) == [([0, 1], 4), ([2], 0), ([3], 0)]
    same = [Seq(map(ord, "head")), Seq(map(ord, "head"))]
    assert group_questions(same, 2) == [([0, 1], 3)]  # a token is left to compute


# -- 10 ends, limits, isolation ----------------------------------------------------------------


def test_rule_10_the_last_sampled_token_is_not_in_the_list() -> None:
    server = Server(SMALL, ONE)
    assert server.serve(text(1, 40), 7).kept == 46
    assert server.serve([*text(1, 40), *text(901, 6), *text(2, 3)]).hit == 46


def test_rule_10_a_cancelled_request_keeps_what_it_fed_back() -> None:
    server = Server(SMALL, ONE)
    name = server.play.submit(server.request(text(1, 40), 50))
    server.play.until(lambda: server.lengths[0] == 45)
    server.engine.abort(name, 0.0)
    server.play.finish()
    assert server.lengths == [45]
    assert server.serve([*text(1, 40), *text(901, 9)]).hit == 45


def test_rule_10_a_name_with_a_hash_can_be_cancelled() -> None:
    server = Server(SMALL, ONE)
    request = replace(server.request(text(1, 40), 50), id="a#1")
    server.play.submit(request)
    server.play.until(lambda: server.lengths[0] == 45)
    server.engine.abort("a#1", 0.0)
    server.play.finish()
    assert server.lengths == [45]


def test_rule_10_generation_stops_at_the_limit_without_a_context_shift() -> None:
    server = Server(SMALL, ONE, ctx_size=256)
    report = server.serve(text(1, 250), 99)
    assert (report.kept, report.num_outputs, report.truncated) == (255, 6, True)


def test_rule_10_a_context_shift_discards_half_of_what_is_not_kept() -> None:
    assert plan_shift(255, 93, 256, 1, 0, False) == (1, 254, 127)
    assert plan_shift(255, 150, 256, 300, 100, False) == (252, 3, 2)
    assert plan_shift(255, 93, 256, -1, 0, True) == (94, 161, 80)


def test_rule_10_later_hits_see_the_shifted_list() -> None:
    server = Server(SMALL, ONE, ctx_size=256, context_shift=True)
    report = server.serve(text(1, 93), 200, n_keep=1)
    assert (report.kept, report.truncated) == (165, True)
    shifted = [*text(1, 1), *text(901, 164, 164 - 129)]
    assert server.serve(shifted[:30]).hit == 29
    assert server.tainted["r2"] == ("moved",)


def test_rule_10_a_full_pool_clears_idle_slots_from_the_lowest_id() -> None:
    server = Server(SMALL, parallel=4, kv_unified=True, ctx_size=512, cache_ram=0)
    server.serve(text(1, 200), id_slot=0)
    server.serve(text(2, 200), id_slot=2)
    server.serve(text(3, 250), id_slot=1)
    assert server.lines("purge_slot") == [("purge_slot", 0, 201)]
    assert server.lengths == [0, 251, 201, 0]


def test_rule_10_a_pool_too_full_for_one_token_fails_every_running_request() -> None:
    server = Server(SMALL, parallel=2, kv_unified=True, ctx_size=256, cache_ram=0)
    reports = server.together([server.request(text(k, 100), 60) for k in (1, 2)])
    assert [report.error for report in reports] == ["server_error", "server_error"]
    assert server.lengths == [0, 0]


def test_rule_10_other_adapters_empty_the_slot_but_none_does_not() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40), lora_name="A")
    assert server.serve(text(1, 40), lora_name="B").hit == 0
    (lost,) = server.handoffs["r2"].deductions
    assert (lost.reason, lost.start, lost.stop) == ("isolation", 0, 40)
    assert server.serve(text(1, 40)).hit == 39


def test_rule_10_a_slot_emptied_under_a_child_is_no_loss_of_the_next_request() -> None:
    server = Server(TWO)
    for slot in (0, 1):
        server.serve(text(1, 40), id_slot=slot, lora_name="A")
    server.serve(text(1, 40), 2, n_cmpl=2, lora_name="B", id_slot=1)
    server.serve(text(5, 30), id_slot=0, lora_name="B")
    assert [server.handoffs[name].raw_tokens for name in ("r3", "r4")] == [40, 0]
    assert server.handoffs["r4"].deductions == ()


@pytest.mark.parametrize("ram", [0, 8])
def test_rule_10_a_probe_knows_that_other_adapters_empty_the_slot(ram: int) -> None:
    server = Server(SMALL, ONE, cache_ram=ram)
    server.serve(text(1, 40), lora_name="A")
    if ram:
        server.serve(text(2, 40), lora_name="A")
    for lora, hit in (("B", 0), ("A", 39), (None, 39)):
        match = server.engine.probe(server.request(text(1, 40), lora_name=lora))
        assert (match.raw_tokens, match.hit_tokens) == (40, hit)
        assert ("isolation" in {lost.reason for lost in match.deductions}) is (hit == 0)
    assert server.serve(text(1, 40), lora_name="B").hit == 0


def test_rule_10_slot_files_restore_a_list_without_checkpoints() -> None:
    server = Server(WINDOW, ONE, BATCH)
    server.serve(text(1, 200))
    server.engine.act("slot_save", {"id_slot": 0, "file": "f"}, 0.0)
    server.serve(text(2, 50))
    server.engine.act("slot_restore", {"id_slot": 0, "file": "f"}, 0.0)
    assert server.lengths == [201]
    report = server.serve([*text(1, 200), *text(901, 1), *text(3, 5)])
    assert report.hit == 0  # always a reset: one position short
    with pytest.raises(Unsupported):
        server.engine.act("reset_prefix_cache", {}, 0.0)


# -- 11 unsound hits ---------------------------------------------------------------------------


def test_rule_11_1_a_checkpoint_of_another_text_is_restored() -> None:
    server = Server(RECURRENT, ONE, BATCH, cache_reuse=8)
    server.serve([*text(1, 40), *text(2, 20), *text(3, 80)])
    report = server.serve([*text(1, 40), *text(3, 80)])
    assert report.hit == 104  # the state at 104 saw the deleted paragraph
    assert server.handoffs["r2"].unsound == ("11.1",)
    assert server.tainted["r2"]


def test_rule_11_2_a_state_is_used_after_its_text_was_cut() -> None:
    server = Server(HYBRID, ONE, BATCH, cache_reuse=8)
    server.serve([*text(1, 40), *text(2, 20), *text(3, 30)], 1)
    report = server.serve([*text(1, 40), *text(3, 30), *text(4, 9)])
    assert report.hit == 70
    assert server.handoffs["r2"].unsound == ("11.2",)
    assert "moved" in server.tainted["r2"] or "state" in server.tainted["r2"]


def test_rule_11_3_a_window_position_was_overwritten() -> None:
    server = Server(WINDOW, ONE, BATCH, ctx_size=256, swa_full=True, cache_reuse=8)
    server.serve([*text(1, 20), *text(2, 20), *text(3, 160)], 1)
    server.serve([*text(1, 20), *text(3, 160), *text(4, 70)], 1)
    # the shift sent the head to 0: 20 + 24 + 6 positions were overwritten, lowest first
    assert server.engine.server.memory.pos_min(0) == 50
    report = server.serve([*text(1, 20), *text(3, 50), *text(5, 9)])
    assert report.hit == 70
    assert server.handoffs["r3"].unsound == ("11.3",)
    assert "hidden" in server.tainted["r3"]


def test_rule_11_4_naming_a_running_slot_swaps_its_text() -> None:
    server = Server(SMALL, parallel=2, ctx_size=2048)
    server.serve(text(1, 74), id_slot=1)
    server.serve(text(2, 90), id_slot=1)
    long = server.play.submit(server.request(text(7, 80), 40, id_slot=0))
    server.play.until(lambda: server.lengths[0] == 81)
    server.play.submit(server.request([*text(1, 74), *text(9, 3)], id_slot=0))
    server.play.finish()
    assert ("", "11.4") in server.unsound
    assert server.play.reports[long].kept == 80 + 40 - 1 - (81 - 75)


def test_rule_11_4_a_swap_in_mid_prompt_is_left_out() -> None:
    server = Server(SMALL, BATCH, parallel=2, ctx_size=2048)
    server.serve(text(1, 74), id_slot=1)
    server.serve(text(2, 90), id_slot=1)
    server.play.submit(server.request(text(7, 400), 10, id_slot=0))
    server.play.until(lambda: server.lengths[0] == 128)
    server.play.submit(server.request([*text(1, 74), *text(9, 3)], id_slot=0))
    with pytest.raises(Unsupported, match="while its prompt is computed"):
        server.play.finish()


def test_images_are_left_out() -> None:
    server = Server(SMALL, ONE)
    request = replace(server.request(text(1, 40)), images=(Image("cat", 3, 8),))
    with pytest.raises(Unsupported, match="multimodal"):
        server.engine.submit(request, 0.0)


def test_rule_11_5_a_request_without_adapters_hits_what_adapters_computed() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40), lora_name="A")
    assert server.serve([*text(1, 40), *text(2, 5)]).hit == 40
    assert server.handoffs["r2"].unsound == ("11.5",)
    assert server.tainted["r2"] == ("lora",)


def test_rule_5_3_a_second_generation_checkpoint_lacks_a_window_position() -> None:
    """A checkpoint is tested for the common prefix, not for the shorter hit it leads to."""
    server = Server(WINDOW, ONE, BATCH)
    server.serve(text(1, 166), 300)
    assert server.serve([*text(1, 165), *text(2, 7)], 300).hit == 161  # from the one at 162
    report = server.serve([*text(1, 163), *text(3, 9)])
    assert report.hit == 160  # from the one at 161, which holds 98 .. 160; position 97 is missing
    assert server.lines("ck<") == [("ck<", 0, 98, 160, 161, 160)]
    assert server.handoffs["r3"].unsound == ("5.3",)
    assert server.tainted["r3"] == ("hidden",)


def test_rule_9_children_of_a_refused_parent_do_not_wait_forever() -> None:
    server = Server(SMALL, parallel=3, ctx_size=768, cache_ram=0)
    with pytest.raises(Refused):
        server.engine.submit(server.request(text(1, 256), 1, n_cmpl=2), 0.0)
    assert server.serve(text(2, 20)).error is None
    assert server.engine.observe()["busy"] == []
    assert server.lengths.count(0) == 2


@pytest.mark.parametrize(
    "asked",
    [
        {"id_slot": "x"},
        {"id_slot": 1.5},
        {"n_cmpl": [2]},
        {"n_cmpl": 0},
        {"n_cache_reuse": "much"},
        {"n_keep": None},
        {"stop_tokens": 5},
        {"user_starts": "a"},
        {"lora": 3},
        {"lora": [{"id": 1}]},
        {"lora": [1]},
    ],
    ids=str,
)
def test_request_options_of_a_wrong_type_name_the_request(asked: dict[str, object]) -> None:
    server = Server(SMALL, ONE)
    name = next(iter(asked))
    with pytest.raises(BadInput, match=f"r1: option {name}"):
        server.engine.submit(server.request(text(1, 40), **asked), 0.0)
    assert server.serve(text(2, 20)).error is None


def test_a_described_adapter_counts_by_its_name() -> None:
    server = Server(SMALL, ONE)
    server.serve(text(1, 40), lora_name="A", lora={"name": "A", "path": "/a"})
    assert server.serve([*text(1, 40), *text(2, 5)], lora=[{"id": "A", "scale": 1.0}]).hit == 40


@pytest.mark.parametrize(
    ("action", "options", "said"),
    [
        ("slot_erase", {}, "id_slot"),
        ("slot_erase", {"id_slot": "x"}, "id_slot"),
        ("slot_save", {"id_slot": 0}, "file"),
        ("slot_save", {"id_slot": 0, "file": 3}, "file"),
        ("slot_restore", {"id_slot": 7, "file": "a"}, "no slot 7 of 1"),
    ],
)
def test_rule_10_actions_of_a_wrong_form_are_refused(
    action: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises((BadInput, Refused), match=f"{action}: .*{said}"):
        Server(SMALL, ONE).engine.act(action, options, 0.0)


def test_rule_1_a_context_holds_256_sequences() -> None:
    adapter = load("llamacpp")
    make_options(adapter, {"parallel": 256})
    with pytest.raises(BadInput, match="option parallel"):
        make_options(adapter, {"parallel": 257})
