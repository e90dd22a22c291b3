"""What must hold for any stream of requests, forks, aborts and pins."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from handoff.adapters.deepinfer.flops import pairs
from handoff.adapters.deepinfer.metadata import PromptTables, Rows
from handoff.adapters.deepinfer.options import Options
from handoff.adapters.deepinfer.prefixes import Prefixes
from handoff.adapters.deepinfer.replay import row_spans
from handoff.adapters.deepinfer.saving import saved
from handoff.adapters.deepinfer.scheduler import EngineError
from handoff.adapters.deepinfer.sequence import Sequence
from handoff.adapters.deepinfer.window import history, lowest_visible
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.adapter import load
from handoff.conformance.contract import check_adapter
from handoff.index.spans import Seq

from .rig import Rig

REPORTS = Path(__file__).parents[3] / "reports"
QUICK = settings(max_examples=40, deadline=None)


# -- any stream, any policy -------------------------------------------------------------------

POLICIES: list[dict[str, Any]] = [
    {"outside_policy": "load", "model": "yoco16"},
    {"outside_policy": "share", "model": "yoco16", "zos": True},
    {"outside_policy": "anchor", "outside_rollback": 20, "model": "flat128"},
    {"outside_policy": "share", "model": "noswa", "outside_grain": 1, "zos": True},
    {"yoco_prefill_truncation_mode": "compact", "model": "yoco16", "chunked_prefill": True},
    {"yoco_prefill_truncation_mode": "mask", "model": "yoco16", "zos": True},
    {"outside_policy": "share", "num_states": 4, "stop_preempted_request": False},
]


@pytest.mark.parametrize("values", POLICIES, ids=lambda v: "-".join(map(str, v.values())))
@pytest.mark.parametrize("pool_tokens", [256, 900])
def test_the_contract_holds_under_every_policy(values: dict[str, Any], pool_tokens: int) -> None:
    """Steps are well formed, no void, foreign or misplaced slot is read, runs repeat."""
    common = {
        "block_size": 8,
        "outside_grain": 8,
        "use_nextn_decode": 2,
        "zos": False,
        "num_states": 20,
        "max_num_seqs": 5,
        "prefill_interval": 2,
        "yoco_prefill_keep_tokens": 30,
        "max_num_batched_tokens": 40 if values.get("chunked_prefill") else 300,
    }
    check_adapter(
        load("deepinfer"), values={**common, **values}, seeds=range(2), pool_tokens=pool_tokens
    )


# -- references -------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30), st.integers(1, 6), st.integers(0, 29)),
        st.tuples(st.just("fork"), st.integers(0, 9), st.sampled_from(("_b", "x"))),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("step")),
    ),
    max_size=40,
)


def _play(rig: Rig, events: list[Any]) -> list[Sequence]:
    """Run events as far as upstream's own errors allow; incomplete forks are private."""
    made: list[Sequence] = []
    for number, (kind, *values) in enumerate(events):
        name = f"s{number}"
        if kind == "add":
            length, outputs, hit = values
            seq = rig.engine.sequence_of(rig.request(name, length, outputs, first=100 * number))
            if 0 < hit < length and rig.engine.fits_beside_watermark(seq) == "OK":
                made.append(rig.add(name, length, outputs, hit))
            else:
                made.append(rig.add(name, length, outputs))
        elif kind == "fork" and made:
            source = made[values[0] % len(made)]
            complete = source.num_tokens == source.length - 1
            live = source.num_tokens > 0 and source.table and not source.status.finished
            if live and (complete or values[1] == "_b"):
                made.append(rig.engine.fork_seq(name, source, values[1], 2))
        elif kind == "abort" and made:
            running = [seq for seq in rig.engine.scheduler.running if not seq.status.finished]
            if running:  # aborted prompts in `waiting` leak, see test_rules
                victim = running[values[0] % len(running)]
                if all(
                    s.request_id != victim.request_id or s in running
                    for s in rig.engine.scheduler.waiting
                ):
                    rig.engine.abort_request(victim.request_id)
        elif kind == "step":
            rig.step()
    return made


@QUICK
@given(EVENTS, st.sampled_from(("noswa", "yoco16")), st.booleans(), st.integers(0, 2))
def test_references_return_to_zero(
    events: list[Any], model: str, chunked: bool, drafts: int
) -> None:
    rig = Rig(
        model=model,
        num_blocks=60,
        num_states=40 if model == "yoco16" else 0,
        chunked_prefill=chunked,
        max_num_batched_tokens=16 if chunked else 64,
        use_nextn_decode=drafts,
    )
    _play(rig, events)
    rig.until_idle()
    assert not any(rig.engine.blocks.counts.counts)
    assert sorted(rig.free) == list(range(1, 60))
    if rig.engine.states is not None:
        assert not any(rig.engine.states.counts.counts)


@QUICK
@given(EVENTS, st.booleans())
def test_private_writes_never_reach_a_shared_block(events: list[Any], chunked: bool) -> None:
    """Rows write only where nobody else's table can see them, except behind a plain branch name."""
    rig = Rig(num_blocks=60, chunked_prefill=chunked, max_num_batched_tokens=16 if chunked else 64)
    _play(rig, events)
    engine, size = rig.engine, rig.engine.options.block_size
    for _ in range(500):
        step = engine.run_step()
        for row in step.rows:
            batch = engine.newest
            seq = next(s.seq for s in batch.rows if s.seq.seq == row.seq)
            for column in range(row.start // size, (row.stop - 1) // size + 1):
                holders = [
                    other
                    for other in (*engine.scheduler.running, *engine.scheduler.waiting)
                    if other is not seq
                    and seq.table[column] in other.table[: other.num_tokens // size]
                ]
                assert not holders, f"{seq.id} writes into {seq.table[column]}"
        rig.env.plan(step)
        rig.env.complete(step)
        if not engine.scheduler.unfinished:
            return
    raise AssertionError("the engine does not come to rest")


# -- ranges -----------------------------------------------------------------------------------


@QUICK
@given(
    st.sampled_from(("mask", "compact")),
    st.integers(17, 60),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 40),
    st.integers(0, 60),
)
def test_visible_ranges_stay_inside_what_exists(
    mode: str, keep: int, chunks: list[int], hit: int, valid_start: int
) -> None:
    options = Options(
        model="yoco16",
        use_nextn_decode=0,
        yoco_prefill_truncation_mode=mode,
        yoco_prefill_keep_tokens=keep,
    )
    length, start = hit + sum(chunks), hit
    valid_start = min(valid_start, hit)
    table = tuple(range(1, length // options.block_size + 2))
    for size in chunks:
        stop = start + size
        spans = row_spans(options, length, start, stop, valid_start)
        assert spans is not None
        assert start == spans.compute[0] <= spans.compute[1] < stop
        assert all(start <= write <= stop for write in spans.write)
        assert all(0 <= visible <= stop for visible in spans.visible)
        assert spans.visible[2] >= min(length - keep, stop)
        tables = PromptTables(options, [Rows(size, stop, length, table, 1, valid_start)])
        pivots = tables.compact().pivots if mode == "compact" else tables.masked()
        assert (pivots[:, 0] >= 0).all() and (pivots[:, 1] >= 0).all() and (pivots[:, 3] >= 0).all()
        assert (pivots[:, 1] + pivots[:, 3] <= 16).all()  # never more than the window
        assert (pivots[:, 2] + pivots[:, 3] <= 16 + len(pivots)).all()
        assert len(pivots) == stop - spans.compute[1]
        start = stop


@QUICK
@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40), st.integers(0, 30))
def test_history_is_exactly_one_window(
    start: int, valid_start: int, window: int, spare: int
) -> None:
    ring = window + 1 + spare
    pieces = list(history(3, start, min(valid_start, start), window, ring, 7))
    assert sum(last - first for _, first, last, _ in pieces) == window
    dst = 7
    for state, first, last, to in pieces:
        assert to == dst and first < last <= ring and state in (3, -1)
        dst += last - first
    loaded = sum(last - first for state, first, last, _ in pieces if state == 3)
    assert loaded == min(window, start - min(valid_start, start))


@QUICK
@given(st.integers(0, 50), st.integers(1, 30), st.integers(1, 20), st.integers(-5, 90))
def test_lowest_visible_is_a_window_or_nothing(
    start: int, count: int, window: int, floor: int
) -> None:
    for position, low in zip(
        range(start, start + count), lowest_visible(start, start + count, window, floor)
    ):
        assert max(0, position - window + 1) <= low <= position + 1
        assert low >= min(floor, position + 1)


# -- FLOPs and saving -------------------------------------------------------------------------


@QUICK
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 4), st.integers(0, 20))
def test_pairs_are_the_sum_they_abbreviate(begin: int, more: int, ratio: int, cap: int) -> None:
    keys = [(p + 1) // ratio for p in range(begin, begin + more)]
    expected = sum(min(key, cap) if cap else key for key in keys)
    assert pairs(begin, begin + more, ratio, cap) == expected


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(("off", "mask", "compact")),
    st.integers(2, 200),
    st.data(),
)
def test_a_longer_hit_never_costs_more(mode: str, length: int, data: st.DataObject) -> None:
    hits = sorted(data.draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=4)))
    options = Options(
        model="yoco16",
        block_size=16,
        num_blocks=64,
        num_states=4,
        use_nextn_decode=0,
        zos=False,
        yoco_prefill_truncation_mode=mode,
        yoco_prefill_keep_tokens=24,
        prefill_interval=1,
        outside_policy="none",
    )
    costs = [saved(options, length, hit) for hit in hits]
    for (_, _, rows, consumers, _, total), hit in zip(costs, hits):
        assert rows == length - hit
        assert consumers == (min(rows, 24) if mode == "compact" else rows)
        assert total > 0
    totals = [cost[5] for cost in costs]
    assert totals == sorted(totals, reverse=True)


# -- the outside store's index ----------------------------------------------------------------

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("add", "touch", "remove")), TOKENS), max_size=25), TOKENS
)
def test_prefixes_answer_like_a_plain_scan(
    events: list[tuple[str, list[int]]], ask: list[int]
) -> None:
    index, order = Prefixes(), []  # type: ignore[var-annotated]
    for number, (kind, tokens) in enumerate(events):
        if kind == "add":
            index.add(number, Seq(tokens), len(tokens))
            order.append((number, tokens))
        elif order:
            entry = order[len(tokens) % len(order)]
            order.remove(entry)
            if kind == "touch":
                index.touch(entry[0], Seq(entry[1]), len(entry[1]))
                order.append(entry)
            else:
                index.remove(entry[0], Seq(entry[1]), len(entry[1]))

    def shared(tokens: list[int]) -> int:
        same = 0
        while same < min(len(tokens), len(ask)) and tokens[same] == ask[same]:
            same += 1
        return same

    best = max(((shared(t), -at) for at, (_, t) in enumerate(order)), default=(0, 0))
    expected = (best[0], order[-best[1]][0]) if best[0] else (0, None)
    assert index.longest(Seq(ask), len(ask)) == expected


def test_upstream_errors_are_handoff_errors() -> None:
    rig = Rig()
    rig.add("a", 4, hit=4)
    with pytest.raises(EngineError) as caught:
        rig.step()
    assert caught.value.label == "head_has_nothing_to_run"


def test_the_kept_report_is_what_its_script_writes() -> None:
    script = runpy.run_path(str(REPORTS / "deepinfer_saved_compute.py"))
    curves = {mode: script["curve"](mode) for mode in script["MODES"]}
    kept = (REPORTS / "deepinfer-saved-compute.md").read_text("utf-8")
    assert script["page"](curves) == kept
