"""The rule book's statements with numbers that can be checked by hand, one test a rule."""

from __future__ import annotations

import pytest
from handoff.adapters.deepinfer.flops import Estimator, pairs
from handoff.adapters.deepinfer.forks import ForkError
from handoff.adapters.deepinfer.images import IMAGE, IMAGE_PAD, fit_chunk
from handoff.adapters.deepinfer.metadata import DecodeTables, PromptTables, Rows
from handoff.adapters.deepinfer.models import PRESETS
from handoff.adapters.deepinfer.options import Options
from handoff.adapters.deepinfer.pool import Pool
from handoff.adapters.deepinfer.replay import kept, row_spans
from handoff.adapters.deepinfer.saving import saved
from handoff.adapters.deepinfer.scheduler import EngineError
from handoff.adapters.deepinfer.sequence import Grant, Sequence, Status
from handoff.adapters.deepinfer.varlen import Varlen, products

from handoff.adapter import load, make_options
from handoff.errors import BadInput, Refused
from handoff.index.spans import Seq
from handoff.types import Bind, Copy, Handoff, Load, Zero

from .rig import Rig

# -- 2.1 pool ---------------------------------------------------------------------------------


def test_2_1_ids_start_at_1_and_come_back_in_reverse() -> None:
    pool = Pool(6)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.release([1, 2, 3]) == [3, 2, 1]
    assert list(pool.free) == [4, 5, 3, 2, 1]


def test_2_1_verdicts() -> None:
    pool = Pool(6)
    pool.allocate(3)
    assert [pool.can_allocate(n) for n in (2, 3, 6)] == ["OK", "LATER", "NEVER"]


def test_2_1_shared_ids_stay_until_the_last_reference() -> None:
    pool = Pool(4)
    ids = pool.allocate(2)
    pool.share(ids)
    assert pool.release(ids) == []
    assert pool.release(ids) == [2, 1]


def test_2_1_a_free_id_cannot_be_pinned() -> None:
    with pytest.raises(AssertionError):
        Pool(4).share([2])


def test_2_1_usage_counts_id_0() -> None:
    pool = Pool(10)
    pool.allocate(8)  # (10 - 1) / 10 = 90 %
    assert not pool.above_watermark
    pool.allocate(1)
    assert pool.above_watermark


# -- 2.2 to 2.6 hits and forks ----------------------------------------------------------------


def test_2_2_a_load_is_private_and_starts_at_the_hit() -> None:
    rig = Rig()
    seq = rig.add("a", 10, hit=7)
    assert seq.table == [1, 2, 3]
    step = rig.step()
    assert (step.rows[0].start, len(step.rows[0].tokens)) == (7, 3)
    assert Load(0, "blocks", 0, 7) in step.ops
    assert step.handoffs[0].hit_tokens == 7 and step.handoffs[0].start == 7


def test_2_2_no_alignment_and_no_cap_but_a_full_hit_breaks_the_head() -> None:
    rig = Rig()
    rig.add("a", 10, hit=10)
    with pytest.raises(EngineError, match="head_has_nothing_to_run"):
        rig.step()


def test_2_6_a_full_hit_behind_other_work_only_stops_the_queue() -> None:
    rig = Rig()
    rig.add("a", 5)
    rig.add("b", 10, hit=10)
    assert [row.seq for row in rig.step().rows] == [1]
    assert [seq.id for seq in rig.engine.scheduler.waiting] == ["b"]


def test_2_3_a_bare_number_reads_what_nobody_filled() -> None:
    rig = Rig()
    seq = rig.engine.sequence_of(rig.request("a", 10))
    rig.engine.inject(seq, Grant(raw=6, hit=6, external=True))
    rig.engine.enqueue(seq)
    step = rig.step()
    assert step.rows[0].start == 6
    assert step.handoffs[0].unsound == ("2.3",)
    assert Zero("blocks", ((4, 4), (8, 2))) in step.ops
    assert rig.tags.taint["zeros"] == 4


def _running(rig: Rig, length: int, outputs: int = 9) -> Sequence:
    """A sequence that has decoded once: ``num`` = ``length`` + 1."""
    seq = rig.add("s", length, outputs)
    rig.step()
    rig.step()
    return seq


def test_2_4_a_complete_fork_goes_to_prompted_and_clones_its_last_block() -> None:
    rig = Rig()
    source = _running(rig, 9)  # 10 tokens ready, blocks 1 2 3
    fork = rig.engine.fork_seq("f", source, "x", 3)
    assert (fork.num_tokens, fork.table, list(rig.engine.scheduler.prompted)) == (
        10,
        [1, 2, 3],
        [fork],
    )
    step = rig.step()
    assert fork.table == [1, 2, 4]
    assert Copy("blocks", "blocks", "blocks", ((12, 16, 2),)) in step.ops
    assert step.handoffs[0].start == 10 and step.handoffs[0].known_tokens == 11


def test_2_4_the_last_block_is_cloned_even_when_full() -> None:
    rig = Rig()
    source = _running(rig, 7)  # 8 tokens ready: block 2 is full
    fork = rig.engine.fork_seq("f", source, "x", 3)
    assert fork.table == [1, 2]
    step = rig.step()
    copy = next(op for op in step.ops if isinstance(op, Copy))
    assert copy.runs == ((8, fork.table[1] * 4, 4),)
    assert fork.table[0] == 1 and len(fork.table) == 3  # and one more for position 8


def test_2_4_an_incomplete_private_fork_keeps_whole_blocks_only() -> None:
    rig = Rig(chunked_prefill=True, max_num_batched_tokens=6)
    source = rig.add("s", 14)
    rig.step()  # 6 of 14 ready
    fork = rig.engine.fork_seq("f", source, "_b", 2)
    assert rig.engine.scheduler.waiting[0] is fork and fork.num_tokens == 6
    step = rig.step()
    assert fork.branch == "b"
    assert fork.table[:1] == source.table[:1] and fork.table[1] != source.table[1]
    copies = [op for op in step.ops if isinstance(op, Copy)]
    assert copies == [
        Copy("blocks", "blocks", "blocks", ((source.table[1] * 4, fork.table[1] * 4, 2),))
    ]
    assert (step.rows[0].start, len(step.rows[0].tokens)) == (6, 6)


def test_2_4_sources_of_clones_are_released_in_the_same_step() -> None:
    rig = Rig()
    source = _running(rig, 9)
    rig.engine.fork_seq("f", source, "x", 3)
    assert rig.engine.blocks.counts.counts[3] == 2
    rig.step()
    assert rig.engine.blocks.counts.counts[3] == 1


def test_2_4_a_fork_without_underscore_shares_everything() -> None:
    rig = Rig(chunked_prefill=True, max_num_batched_tokens=6)
    source = rig.add("s", 14)
    rig.step()
    fork = rig.engine.fork_seq("f", source, "b", 2)
    step = rig.step()
    assert fork.table == source.table
    assert not [op for op in step.ops if isinstance(op, Copy)]


def test_2_4_nothing_ready_cannot_be_forked() -> None:
    rig = Rig()
    with pytest.raises(ForkError):
        rig.engine.fork_seq("f", rig.add("s", 5), "x", 1)


def test_2_4_the_last_token_can_be_replaced_and_the_valid_start_is_lost() -> None:
    rig = Rig(model="yoco16", num_states=6)
    source = rig.add("s", 30, 9, hit=20, vs=20)
    rig.step()
    rig.step()
    fork = rig.engine.fork_seq("f", source, "x", 1, replace_last=77)
    assert fork.tokens[-1] == 77 and fork.prompt_len == 32 and fork.valid_start == 0


def test_2_5_a_continuing_sequence_allocates_nothing() -> None:
    rig = Rig(chunked_prefill=True, max_num_batched_tokens=4)
    rig.add("a", 10)
    rig.step()
    free = rig.free
    rig.step()
    assert rig.free == free


def test_2_6_a_valid_start_beyond_the_first_row_is_an_error() -> None:
    rig = Rig(model="yoco16", num_states=4)
    seq = rig.add("a", 30, hit=10)
    seq.valid_start = 11
    with pytest.raises(EngineError, match="valid_start_above_start"):
        rig.step()


@pytest.mark.parametrize(
    ("length", "hit", "label"),
    [(10, 8, "workload_below_lookahead"), (10, 2, "hit_below_lookahead")],
)
def test_2_6_lookahead(length: int, hit: int, label: str) -> None:
    rig = Rig(lookahead_tokens=3)
    rig.add("a", length, hit=hit)
    with pytest.raises(EngineError, match=label):
        rig.step()


# -- 3 step type and prefill ------------------------------------------------------------------


def test_3_1_a_request_at_an_idle_engine_waits_for_its_turn() -> None:
    rig = Rig(prefill_interval=70, prefill_any_interval=100)
    rig.add("a", 5)
    rig.until_idle()
    assert rig.engine.scheduler.decode_step == 1
    rig.add("b", 5)
    steps = rig.until_idle()
    assert [bool(step.rows) for step in steps[:70]] == [False] * 69 + [True]


def test_3_1_above_90_percent_no_prefill_starts() -> None:
    rig = Rig()
    pins = rig.engine.hold(18)  # 19 of 20 ids are in use
    rig.add("a", 3)
    assert not rig.step().rows
    rig.engine.drop(pins[:1])
    assert rig.step().rows


def test_3_2_a_prompt_longer_than_the_limit_is_ignored() -> None:
    rig = Rig(max_model_len=8)
    seq = rig.add("a", 9)
    step = rig.step()
    assert seq.status is Status.FINISHED_IGNORED
    assert [event.kind for event in step.events] == ["refuse"]


def test_3_2_the_head_of_the_line_blocks() -> None:
    rig = Rig()
    first = rig.add("a", 5)
    first.schedulable = False
    rig.add("b", 5)
    assert not rig.step().rows
    first.schedulable = True
    assert len(rig.step().rows) == 2


def test_3_2_a_chunk_ends_the_step_and_goes_back_to_the_front() -> None:
    rig = Rig(chunked_prefill=True, max_num_batched_tokens=6)
    rig.add("a", 10)
    rig.add("b", 2)
    assert [(r.start, len(r.tokens), r.emits) for r in rig.step().rows] == [(0, 6, 0)]
    assert [seq.id for seq in rig.engine.scheduler.waiting] == ["a", "b"]
    assert [(r.start, len(r.tokens), r.emits) for r in rig.step().rows] == [(6, 4, 1), (0, 2, 1)]


def test_3_2_checkpoints_end_chunks() -> None:
    rig = Rig(chunked_prefill=True)
    rig.add("a", 10).checkpoints = [3, 7]
    assert [step.rows[0].stop for step in (rig.step(), rig.step(), rig.step())] == [3, 7, 10]


def test_3_2_the_sum_of_lengths_is_bounded() -> None:
    rig = Rig(prefill_max_sum_seqlen_k=4096)
    rig.engine.options = rig.engine.options.model_copy(update={"prefill_max_sum_seqlen_k": 12})
    rig.engine.scheduler.options = rig.engine.options
    rig.add("a", 8)
    rig.add("b", 5)
    assert len(rig.step().rows) == 1


def test_3_2_an_aborted_chunk_leaks_its_blocks() -> None:
    rig = Rig(chunked_prefill=True, max_num_batched_tokens=6)
    rig.add("a", 10)
    rig.step()
    rig.engine.abort_request("a")
    rig.until_idle()
    assert len(rig.free) == 19 - 3


def test_3_3_an_image_is_not_split() -> None:
    vocab = 4096
    ids = [5, 6, vocab + IMAGE, vocab + IMAGE_PAD, vocab + IMAGE_PAD, 7, 8]
    seq = Sequence("a", "a", Seq(ids), 7, 1)
    assert fit_chunk(seq, 4, room=9, vocab_size=vocab, first=True) == 5  # grown
    assert fit_chunk(seq, 4, room=4, vocab_size=vocab, first=True) == 2  # does not fit: shrunk
    assert fit_chunk(seq, 4, room=9, vocab_size=vocab, first=False) == 2
    assert fit_chunk(seq, 6, room=9, vocab_size=vocab, first=True) == 6


# -- 4 decode ---------------------------------------------------------------------------------


def test_4_finished_sequences_are_freed_one_decode_step_later() -> None:
    rig = Rig()
    rig.add("a", 5)
    rig.step()
    assert len(rig.free) == 17
    rig.step()
    assert rig.free[-2:] == [2, 1]


def test_4_at_finish_the_last_token_has_no_kv() -> None:
    rig = Rig()
    seq = rig.add("a", 5, 4)
    rig.until_idle()
    assert (seq.num_tokens, seq.length) == (8, 9)


def test_4_the_longest_output_is_preempted_and_loses_its_hit() -> None:
    rig = Rig(num_blocks=6)  # five blocks
    first = rig.add("a", 7, 9, hit=4)
    rig.step()
    rig.step()
    second = rig.add("b", 7, 9)
    rig.step()
    events = []
    while first.status is not Status.WAITING:
        events = [event.kind for event in rig.step().events]
    assert "preempt" in events and second.status is Status.RUNNING
    assert (first.num_tokens, first.attempt, first.grant.hit) == (0, 1, 0)
    rig.until_idle()
    assert first.num_outputs == second.num_outputs == 9


def test_4_stop_preempted_request_ends_it() -> None:
    rig = Rig(num_blocks=6, stop_preempted_request=True)
    rig.add("a", 7, 9)
    rig.step()
    rig.step()
    rig.add("b", 7, 9)
    ended = [event for step in rig.until_idle() for event in step.events if event.kind == "refuse"]
    assert [event.request for event in ended] == ["a"]


def test_4_a_free_block_is_demanded_even_if_none_is_needed() -> None:
    rig = Rig(num_blocks=3)  # two blocks
    seq = rig.add("a", 5, 2)  # both are taken, position 5 has room
    rig.step()
    rig.step()
    assert seq.status is Status.WAITING


def test_4_the_batch_is_ordered_by_length() -> None:
    rig = Rig()
    rig.add("a", 4, 9)
    rig.add("b", 9, 9)
    rig.step()
    assert [row.start for row in rig.step().rows] == [9, 4]


# -- 5 window ---------------------------------------------------------------------------------

SMALL = {"model": "yoco16", "num_states": 6, "block_size": 8, "use_nextn_decode": 0}


def test_5_ring_size() -> None:
    assert Options(model="yoco16", use_nextn_decode=0).ring_size == 17
    assert Options(model="yoco16", use_nextn_decode=3).ring_size == 20
    assert Options(model="yoco16", max_backtracking_tokens=8).ring_size == 24


def test_5_only_the_last_ring_of_rows_is_written() -> None:
    tables = PromptTables(Options(**SMALL), [Rows(20, 20, 20, (1, 2, 3), 1)])
    slots = tables.ring_writes()
    assert slots[:3].tolist() == [-1, -1, -1]
    assert slots[3:].tolist() == [17 + p % 17 for p in range(3, 20)]


def test_5_history_is_zeros_then_ring_cut_at_the_wrap() -> None:
    options = Options(**SMALL)
    assert PromptTables(options, [Rows(5, 25, 25, (1, 2, 3, 4), 2)]).history() == [
        (2, 4, 17, 0),
        (2, 0, 3, 13),
    ]
    assert PromptTables(options, [Rows(5, 8, 8, (1,), 2)]).history() == [
        (-1, 0, 13, 0),
        (2, 0, 3, 13),
    ]
    assert PromptTables(options, [Rows(5, 25, 25, (1, 2, 3, 4), 2, 20)]).history() == [
        (-1, 0, 16, 0)
    ]


def test_5_pivots_of_a_chunk() -> None:
    tables = PromptTables(Options(**SMALL), [Rows(3, 20, 20, (1, 2, 3), 1)])
    # rows 17, 18, 19 see history from 2, 3, 4 on; history starts at position 1
    assert tables.pivots().tolist() == [[1, 15, 16, 1], [2, 14, 16, 2], [3, 13, 16, 3]]


def test_5_decode_ignores_the_valid_start() -> None:
    tables = DecodeTables(Options(**SMALL), [Rows(1, 22, 22, (1, 2, 3), 1, 20)])
    assert tables.windows() == [(17 + 6, 16)]


def test_5_compressed_writes_and_loads() -> None:
    tables = PromptTables(Options(**SMALL), [Rows(3, 6, 6, (7,), 1), Rows(1, 1, 1, (9,), 2)])
    assert tables.compressed_writes(2).tolist() == [7 * 4 + 1, 7 * 4 + 2, -1]
    assert tables.compressed_loads(2) == [(7, 0, 3, 0), (-1, 0, 1, 3)]
    base, count = tables.visible(2)
    assert (base.tolist(), count.tolist()) == ([0, 0, 0, 3], [2, 2, 3, 0])


def test_5_decode_writes_compressed_kv_at_complete_tokens_only() -> None:
    tables = DecodeTables(Options(**SMALL), [Rows(2, 12, 12, (3, 5), 1)])
    assert tables.compressed_writes(2).tolist() == [-1, 5 * 4 + 1]


def test_5_a_fork_that_waits_sees_a_ring_that_its_source_overwrote() -> None:
    """Ring 17, window 16: the second decode step of the source takes the slot of position 5."""
    rig = Rig(**{**SMALL, "max_num_seqs": 1})
    source = rig.add("s", 20, 6)
    rig.step()
    rig.step()  # 21 ready; the fork will see positions 6 .. 20
    fork = rig.engine.fork_seq("f", source, "x", 2)
    steps = rig.until_idle()
    first = next(step for step in steps if any(row.seq == 1 for row in step.rows))
    # the source wrote up to position 24, hence the slots of 6 and 7 hold 23 and 24
    assert fork.grant.unsound == ("5",)
    assert [op for op in first.ops if isinstance(op, Zero)] == [
        Zero("producer_ring", ((2 * 17 + 6, 2),)),
        Zero("consumer_ring", ((2 * 17 + 6, 2),)),
    ]
    assert rig.tags.taint["zeros"] > 0


def test_5_a_fork_that_runs_at_once_is_sound() -> None:
    rig = Rig(**SMALL)
    source = rig.add("s", 20, 6)
    rig.step()
    rig.step()
    fork = rig.engine.fork_seq("f", source, "x", 2)
    rig.until_idle()
    assert fork.grant.unsound == () and not rig.tags.taint


# -- 6 bounded replay -------------------------------------------------------------------------

COMPACT = {**SMALL, "yoco_prefill_truncation_mode": "compact", "yoco_prefill_keep_tokens": 20}


def test_6_the_edge_counts_from_the_end_of_the_whole_prompt() -> None:
    options = Options(**COMPACT)
    assert kept(options, 50, 0, 50) == (30, 30)
    assert kept(options, 50, 0, 24) == (23, 30)  # placeholder
    assert kept(options, 50, 24, 48) == (6, 30)
    assert kept(options, 10, 0, 10) == (0, -10)


def test_6_spans_of_compact_mask_and_off() -> None:
    compact = row_spans(Options(**COMPACT), 50, 0, 50, 0)
    assert compact is not None
    assert (compact.compute, compact.write, compact.visible) == ((0, 30), (0, 0, 30), (0, 0, 30))
    placeholder = row_spans(Options(**COMPACT), 50, 0, 24, 0)
    assert placeholder is not None
    assert (placeholder.compute, placeholder.write[2], placeholder.visible[2]) == ((0, 23), 24, 24)
    masked = row_spans(Options(**{**COMPACT, "yoco_prefill_truncation_mode": "mask"}), 50, 0, 50, 0)
    assert masked is not None
    assert (masked.compute, masked.write, masked.visible) == ((0, 0), (0, 0, 0), (0, 0, 30))
    assert row_spans(Options(**SMALL), 50, 0, 50, 0) is None


def test_6_compact_tables_leave_rows_out() -> None:
    tables = PromptTables(Options(**COMPACT), [Rows(24, 24, 50, (1, 2, 3), 1)])
    compact = tables.compact()
    assert (compact.cu, compact.places.tolist()) == ([0, 1], [23])
    assert compact.pivots.tolist() == [[16, 0, 17, 0]]  # sees nothing
    assert compact.ring_writes.tolist() == [-1]


def test_6_a_keep_below_window_and_backtrack_is_refused() -> None:
    rows = [Rows(5, 5, 5, (1,), 1)]
    assert PromptTables(Options(**{**COMPACT, "yoco_prefill_keep_tokens": 16}), rows).refused
    assert not PromptTables(Options(**{**COMPACT, "yoco_prefill_keep_tokens": 17}), rows).refused


def test_6_context_parallel_slices_pair_from_both_ends() -> None:
    tables = PromptTables(Options(**{**COMPACT, "cp": 2}), [Rows(30, 30, 30, (1, 2, 3, 4), 1)])
    # slices of 8: rank 0 has [0, 8) and [24, 30), rank 1 [8, 16) and [16, 24); kept are [10, 30)
    assert tables.mirror_length([20]) == 10
    assert tables.contribution_length([10]) == 14


@pytest.mark.parametrize(
    ("hit", "producers", "consumers"), [(0, 60, 20), (10, 50, 20), (40, 20, 20), (50, 10, 10)]
)
def test_6_consumer_rows_are_saved_only_beyond_the_kept_tail(
    hit: int, producers: int, consumers: int
) -> None:
    options = Options(
        **{
            **COMPACT,
            "num_blocks": 20,
            "zos": False,
            "prefill_interval": 1,
            "outside_policy": "none",
        }
    )
    assert saved(options, 60, hit)[1:4] == [1, producers, consumers]


# -- 7 verification ---------------------------------------------------------------------------


def _drafting(rates: tuple[float, ...] | None, *, published: bool = True) -> Sequence:
    seq = Sequence("a", "a", Seq([1, 2]), 2, 9, drafts=(3, 4))
    seq.rates = seq.previous_rates = rates
    seq.published = published
    return seq


def test_7_without_a_curve_every_draft_is_verified() -> None:
    assert Varlen(()).rows([_drafting(None), _drafting((0.5, 0.2))]) == [3, 3]


def test_7_rates_are_running_products() -> None:
    assert products((0.5, 0.5, 0.5)) == (0.5, 0.25, 0.125)
    assert products(()) is None


def test_7_rows_maximise_expected_tokens_a_millisecond() -> None:
    batch = [_drafting((0.9, 0.1)), _drafting((0.8, 0.2))]
    # expected 2, 2.9, 3.7, 3.9, 4.0 over 1, 1.2, 1.4, 3, 3 ms: best is 3.7 / 1.4
    curve = ((2, 1.0), (3, 1.2), (4, 1.4), (6, 3.0))
    assert Varlen(curve).rows(batch) == [2, 2]


def test_7_missing_rates_count_as_certain_once_drafts_were_published() -> None:
    curve = ((1, 1.0), (3, 1.1))
    assert Varlen(curve).rows([_drafting(None)]) == [3]
    assert Varlen(curve).rows([_drafting(None, published=False)]) == [1]


def test_7_slope_needs_ten_samples() -> None:
    varlen = Varlen(((4, 1.0),))
    for _ in range(9):
        varlen.measured(4, 2, 3.0, 0.5)
    assert varlen.slope() == 0.0
    varlen.measured(4, 2, 3.0, 0.5)
    assert varlen.slope() == 0.5


def test_7_padding_is_rejected_after_prefill() -> None:
    rig = Rig(use_nextn_decode=2)
    seq = rig.add("a", 5, 8)
    rig.step()
    row = rig.step().rows[0]
    assert (row.drafts, row.tokens.tokens()[1:]) == (2, [4095, 4095])
    assert seq.num_outputs == 2


# -- 8 asynchronous scheduling ----------------------------------------------------------------


def test_8_results_come_one_step_late_and_rows_are_restated() -> None:
    rig = Rig(zos=True, use_nextn_decode=2)
    engine = rig.engine
    seq = rig.add("a", 9, 8)
    rig.step()
    first, second = engine.run_step(), engine.run_step()
    assert [(s.rows[0].start, len(s.rows[0].tokens)) for s in (first, second)] == [(9, 3), (12, 3)]
    assert second.known_through == 0 and seq.inflight == 6
    for step in (first, second):
        rig.env.plan(step)
    rig.env.complete(first)  # padding was rejected: one token
    assert (seq.num_tokens, seq.inflight) == (10, 3)


def test_8_no_planning_beside_a_prefill_in_flight() -> None:
    rig = Rig(zos=True)
    rig.engine.submit(rig.request("a", 5), 0.0)
    assert rig.engine.step(0.0) is not None
    assert rig.engine.step(0.0) is None


# -- 9 outside store --------------------------------------------------------------------------


def _served(rig: Rig, name: str, length: int, outputs: int = 1, first: int = 100) -> Handoff:
    rig.engine.submit(rig.request(name, length, outputs, first), 0.0)
    handoff = None
    while (step := rig.engine.step(0.0)) is not None:
        rig.env.plan(step)
        rig.env.complete(step)
        handoff = step.handoffs[0] if step.handoffs else handoff
    assert handoff is not None
    return handoff


def test_9_load_caps_at_the_last_token_and_floors_to_the_grain() -> None:
    rig = Rig(outside_policy="load", outside_grain=4)
    _served(rig, "a", 12)
    handoff = _served(rig, "b", 12)
    assert (handoff.raw_tokens, handoff.hit_tokens) == (12, 8)
    assert [(d.reason, d.start, d.stop) for d in handoff.deductions] == [
        ("last_token", 11, 12),
        ("alignment", 8, 11),
    ]
    assert handoff.external_tokens == {"outside": 8}


def test_9_anchor_rolls_back_and_hides_the_window() -> None:
    rig = Rig(
        **{**SMALL, "outside_policy": "anchor", "outside_grain": 4, "outside_rollback": 6},
    )
    _served(rig, "a", 32)
    handoff = _served(rig, "b", 40)
    assert (handoff.raw_tokens, handoff.hit_tokens) == (32, 26)
    assert [(d.reason, d.group) for d in handoff.deductions] == [("group", "producer_ring")]
    assert handoff.spans.visible == (0, 26, 26)


def test_9_share_pins_blocks_and_forks_them() -> None:
    rig = Rig(outside_policy="share", outside_grain=2)
    _served(rig, "a", 10)
    assert rig.engine.blocks.counts.counts[1:4] == [1, 1, 1]  # pinned by the store
    handoff = _served(rig, "b", 16)
    assert handoff.hit_tokens == 10 and handoff.groups[0].copied == ((3, 4, 2),)
    assert handoff.groups[0].table[:2] == (1, 2)


def test_9_share_drops_old_entries_to_make_room() -> None:
    rig = Rig(outside_policy="share", outside_grain=4, num_blocks=8)
    _served(rig, "a", 12)
    _served(rig, "b", 12, first=900)
    assert _served(rig, "c", 12).hit_tokens == 0  # "a" went for "b"


def test_9_5_pins_give_way_to_what_waits() -> None:
    rig = Rig(outside_policy="share", outside_grain=4, num_blocks=8)
    rig.engine.submit(rig.request("b", 12), 0.0)  # three blocks, pinned at its end
    rig.engine.submit(rig.request("c", 20, first=900), 0.0)  # five of seven
    served = []
    while (step := rig.engine.step(0.0)) is not None:
        rig.env.plan(step)
        rig.env.complete(step)
        served += [handoff.request for handoff in step.handoffs]
    assert served == ["b", "c"]


def test_9_5_loads_leave_room_for_prompts_ahead() -> None:
    rig = Rig(outside_policy="load", outside_grain=4)  # 19 blocks, 2 stay free
    seq = rig.engine.sequence_of(rig.request("l", 20))
    assert rig.engine.fits_beside_watermark(seq) == "OK"
    rig.add("ahead", 52)  # 13 blocks once it runs
    assert rig.engine.fits_beside_watermark(seq) == "LATER"
    huge = rig.engine.sequence_of(rig.request("h", 72))
    assert rig.engine.fits_beside_watermark(huge) == "NEVER"


def test_9_isolation_keys_separate_entries() -> None:
    rig = Rig(outside_policy="load", outside_grain=4)
    _served(rig, "a", 12)
    request = rig.request("b", 12)
    salted = type(request)(request.id, request.prompt, 1, salt="s")
    assert rig.engine.probe(salted).raw_tokens == 0
    assert rig.engine.probe(request).hit_tokens == 8


def test_9_a_hit_beyond_the_kept_tail_reads_an_empty_consumer_window() -> None:
    rig = Rig(**{**COMPACT, "outside_policy": "load", "outside_grain": 8})
    _served(rig, "a", 60)
    handoff = _served(rig, "b", 60)  # 56 > 60 - 20
    assert handoff.hit_tokens == 56 and handoff.unsound == ("9.3",)
    shallow = Rig(**{**COMPACT, "outside_policy": "load", "outside_grain": 40})
    _served(shallow, "a", 60)
    assert _served(shallow, "b", 60).unsound == ()


# -- 11 FLOPs ---------------------------------------------------------------------------------


def test_11_pairs() -> None:
    assert pairs(0, 5, 1, 0) == 1 + 2 + 3 + 4 + 5
    assert pairs(2, 5, 1, 4) == 3 + 4 + 4
    assert pairs(0, 6, 2, 0) == 0 + 1 + 1 + 2 + 2 + 3
    assert pairs(0, 6, 2, 2) == 0 + 1 + 1 + 2 + 2 + 2


def test_11_logits_are_counted_once_a_chunk_but_for_each_decode_row() -> None:
    estimator = Estimator(PRESETS["noswa"])
    one, three = (estimator.estimate(q, 40, False) for q in (1, 3))
    logits = 4 * 64 * 4096
    prefill = estimator.estimate(3, 40, True)
    assert three.total - three.attention - 3 * (one.total - one.attention) == 0
    assert prefill.total - prefill.attention == 3 * (one.total - one.attention - logits) + logits


def test_12_what_the_constructor_refuses() -> None:
    with pytest.raises(ValueError, match="block_size"):
        Options(block_size=128, max_num_batched_tokens=64)
    with pytest.raises(ValueError, match="prompt limit"):
        Options(prefill_max_sum_seqlen_k=100)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"yoco_prefill_truncation_mode": "mask"}, "yoco_prefill_keep_tokens"),
        ({"yoco_prefill_truncation_mode": "compact"}, "yoco_prefill_keep_tokens"),
        (
            {"yoco_prefill_truncation_mode": "mask", "yoco_prefill_keep_tokens": 133},
            "below window .* 134",
        ),
        ({"block_size": 1}, "use_nextn_decode: a step adds 6 tokens"),
        ({"block_size": 5}, "one block of 5"),
        ({"use_nextn_decode": 128}, "a step adds 129 tokens"),
        ({"use_nextn_decode": 2144}, "use_nextn_decode"),
        ({"num_blocks": 1 << 40}, "num_blocks"),
        ({"num_states": 1 << 40}, "num_states"),
        ({"max_backtracking_tokens": 1 << 40}, "max_backtracking_tokens"),
        ({"prefill_store_extra_state": 1 << 40}, "prefill_store_extra_state"),
    ],
    ids=str,
)
def test_12_options_that_cannot_serve_are_refused_by_name(
    values: dict[str, object], named: str
) -> None:
    adapter = load("deepinfer")
    with pytest.raises(BadInput, match=named) as refusal:
        adapter.engine(make_options(adapter, values))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "values",
    [
        {"yoco_prefill_truncation_mode": "compact", "yoco_prefill_keep_tokens": 134},
        {"block_size": 6},
        {"block_size": 1, "engine_type": "PROMPT"},
        {"use_nextn_decode": 127},
    ],
    ids=str,
)
def test_12_the_last_options_that_serve(values: dict[str, object]) -> None:
    adapter = load("deepinfer")
    engine = adapter.engine(make_options(adapter, values))
    assert engine.step(0.0) is None and engine.layout.groups


def test_4_a_table_grows_by_one_block_a_step() -> None:
    rig = Rig(block_size=1, use_nextn_decode=1)
    rig.add("a", 4, 4)
    rig.step()
    with pytest.raises(EngineError, match="needs 2 blocks"):
        rig.until_idle()


def test_3_2_a_refusal_names_the_option() -> None:
    for values, name in (({}, "max_model_len"), ({"max_num_batched_tokens": 40}, "max_num_batc")):
        rig = Rig(**{**values, "max_model_len": 60})
        with pytest.raises(Refused, match=rf"100 prompt tokens, the limit is \d+ \({name}"):
            rig.engine.submit(rig.request("a", 100), 0.0)
    with pytest.raises(Refused, match=r"25 blocks of prompt, the pool has 19 \(num_blocks\)"):
        Rig().engine.submit(Rig().request("a", 100), 0.0)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"id": None}, "id"),
        ({"source": ["s"]}, "source"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"replace_last_token_id": "x"}, "replace_last_token_id"),
    ],
    ids=str,
)
def test_2_4_a_fork_of_a_wrong_form_is_refused(changes: dict[str, object], option: str) -> None:
    rig = Rig()
    rig.add("s", 9, 4)
    rig.step()
    asked: dict[str, object] = {"id": "f", "source": "s", "branch": "x", "max_tokens": 2}
    with pytest.raises(BadInput, match=f"fork_seq: option {option}"):
        rig.engine.act("fork_seq", {**asked, **changes}, 0.0)
    rig.engine.act("fork_seq", asked, 0.0)


def test_bind_order_blocks_then_state() -> None:
    rig = Rig(**SMALL)
    rig.add("a", 9)
    binds = [op for op in rig.step().ops if isinstance(op, Bind)]
    assert [(op.group, op.ids) for op in binds] == [
        ("blocks", (1, 2)),
        ("producer_ring", (1,)),
        ("consumer_ring", (1,)),
    ]
