import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from handoff.errors import BadInput
from handoff.index.spans import Seq
from handoff.report.content import build
from handoff.report.figure_steps import timeline
from handoff.report.gallery import gallery
from handoff.report.info import RunInfo
from handoff.report.perfetto import trace_events, write_perfetto
from handoff.report.prometheus import prometheus
from handoff.report.steplog import StepLog, read_steps
from handoff.types import Bind, Close, Event, Handoff, Open, Row, RowResult, Step, StepResult

from . import ledgers
from .test_figures import assert_readable

WORDS = Seq.of(range(12))


def handoff(seq: int, name: str, hit: int, known: int, attempt: int = 0) -> Handoff:
    return Handoff(seq, name, 8, known, hit, hit, hit, attempt=attempt)


def played() -> StepLog:
    """``a`` is computed, decodes, is preempted, comes back with 4 tokens hit, and ends."""
    log = StepLog("vllm", "chat")
    steps = [
        Step(
            0,
            0,
            -1,
            ops=(Open(1, "a", WORDS.slice(0, 8)), Bind(1, "full", 0, (5, 6), True)),
            rows=(Row(1, 0, WORDS.slice(0, 8)),),
            handoffs=(handoff(1, "a", 0, 8),),
        ),
        Step(1, 1, 0, ops=(Bind(1, "full", 2, (7,), True),), rows=(Row(1, 8, WORDS.slice(8, 9)),)),
        Step(2, 2, 1, ops=(Close(1),), events=(Event("preempt", request="a"),)),
        Step(
            3,
            3,
            2,
            ops=(Open(2, "a", WORDS.slice(0, 10)), Bind(2, "full", 0, (5, 8, 9), False)),
            rows=(Row(2, 4, WORDS.slice(4, 10)),),
            handoffs=(handoff(2, "a", 4, 10, attempt=1),),
        ),
        Step(4, 4, 3, ops=(Close(2),)),
    ]
    for step in steps:
        log.step(step)
        rows = tuple(RowResult(row.seq, (1,)) for row in step.rows)
        log.complete(StepResult(step.number, rows, forward_s=0.5, sample_s=0.5))
    return log


def test_the_step_log_tells_what_happened() -> None:
    frame = played().to_pandas()
    assert list(frame["tokens"]) == [8, 1, 0, 6, 0]
    assert list(frame["again"]) == [0, 0, 0, 5, 0]
    assert list(frame["decode"]) == [False, True, False, False, False]
    assert list(frame["blocks"]) == [2, 3, 0, 3, 0]
    assert list(frame["preempted"]) == ["", "", "a", "", ""]
    assert list(frame["start_s"]) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert list(frame["hit"].fillna(-1)) == [0, -1, -1, 4, -1]


def test_a_row_that_refused_everything_leaves_the_others_their_timeline() -> None:
    nothing, something = StepLog("sglang", "x").to_pandas(), played().to_pandas()
    assert list(nothing.dtypes) == list(something.dtypes)
    both = pd.concat([nothing, something], ignore_index=True)
    assert (
        timeline(both[both["step"] < 2]).title
        == "1 request in 2 steps: 8 tokens of prompts computed, 0 hit"
    )


def test_a_log_survives_parquet_and_a_damaged_one_names_file_and_column(tmp_path: Path) -> None:
    frame, path = played().to_pandas(), tmp_path / "steps.parquet"
    for whole in (frame, frame[:0]):
        whole.to_parquet(path, index=False)
        pd.testing.assert_frame_equal(read_steps(path), whole)
    path.write_text("no")
    with pytest.raises(BadInput, match=r"steps.parquet: cannot be read"):
        read_steps(path)
    holed = frame["request"].where(frame["step"] != 1)
    damaged = [frame.drop(columns="step"), frame.assign(decode="x"), frame.assign(request=holed)]
    for broken, column in zip(damaged, ("step", "decode", "request"), strict=True):
        broken.to_parquet(path, index=False)
        with pytest.raises(BadInput, match=f"steps.parquet.*{column}"):
            read_steps(path)


def test_the_timeline_prices_a_preemption() -> None:
    picture = timeline(played().to_pandas(), budget=64, pool_blocks=4, title="vLLM")
    assert_readable(picture)
    assert picture.title == "a is preempted at step 2; getting it back costs 5 tokens"
    texts = [box.text for box in picture.boxes]
    assert {"hit 0", "hit 4", "budget 64", "pool 4"} <= set(texts)
    with pytest.raises(ValueError, match="no step"):
        timeline(played().to_pandas()[:0])


def test_a_long_timeline_is_folded_and_cut() -> None:
    frame = played().to_pandas()
    quiet = [frame.iloc[[1]].assign(step=at) for at in range(5, 400)]
    busy = [
        frame.iloc[[0]].assign(step=400 + at, request=f"request-number-{at}") for at in range(60)
    ]
    picture = timeline(pd.concat([frame, *quiet, *busy], ignore_index=True))
    assert_readable(picture)
    words = " ".join(box.text for box in picture.boxes)
    assert "Steps 0 to 433 of 460, 23 requests not shown. The Perfetto export has all." in words


def test_a_log_makes_a_figure_of_the_report(chat: pd.DataFrame, info: RunInfo) -> None:
    found = gallery(chat, build(chat, info), steps=played().to_pandas())
    assert list(found) == ["strip", "waterfall", "hit_vs_saved", "timeline"]
    assert found["timeline"]("light").title.startswith("a is preempted")
    assert found["timeline"]("light") is found["timeline"]("light")


def check_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of the trace-event format that viewers rely on."""
    events = trace["traceEvents"]
    assert json.loads(json.dumps(trace)) == trace
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] in {"M", "X", "i", "C"}
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in named
        if event["ph"] == "i":
            assert event["s"] in {"t", "p", "g"}
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    return list(events)


def test_a_process_is_a_framework_and_a_thread_a_request(chat: pd.DataFrame) -> None:
    events = check_trace(trace_events(chat))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names[0] == "vLLM · chat" and "TensorRT-LLM (transcribed) · chat" in names
    assert len(names) == 5
    prefill = [e for e in events if e["name"] == "prefill" and e["pid"] == 1]
    assert [e["args"]["hit_tokens"] for e in prefill] == [0, 1840]
    assert prefill[0]["dur"] == 12300


def test_step_logs_bring_slices_and_counters() -> None:
    frame = ledgers.frame([ledgers.entry("vllm", [("fresh", 8)], request="a")])
    events = check_trace(trace_events(frame, played().to_pandas()))
    slices = [(e["name"], e["ts"], e["args"]["tokens"]) for e in events if e["ph"] == "X"]
    assert slices == [("prefill", 0, 8), ("decode", 1e6, 1), ("prefill", 3e6, 6)]
    held = [e["args"]["blocks"] for e in events if e["name"] == "blocks in use"]
    assert held == [2, 3, 0, 3, 0]
    assert [e["name"] for e in events if e["ph"] == "i"] == ["admitted", "preempted", "admitted"]


def test_the_trace_file_is_the_same_each_time(chat: pd.DataFrame, tmp_path: Path) -> None:
    one, other = (write_perfetto(tmp_path / name, chat).read_bytes() for name in ("a", "b"))
    assert one == other and json.loads(one)["traceEvents"]


def test_prometheus_text_has_upstreams_names(both: pd.DataFrame) -> None:
    text = prometheus(both)
    assert 'vllm:prompt_tokens_cached_total{run="vllm",scenario="chat"} 1840\n' in text
    assert 'sglang:cached_tokens_total{run="sglang",scenario="same-twice"} 34\n' in text
    assert 'sglang:cache_hit_rate{run="sglang",scenario="same-twice"} 0.85\n' in text
    lost = 'handoff_lost_tokens_total{run="llamacpp",scenario="chat",reason="slot_choice"} 152\n'
    assert lost in text


def test_vllms_own_counters_know_no_external_hits() -> None:
    parts = [("reused", 48), ("fresh", 16)]
    own = {"prefix_cache_queries": 64, "prefix_cache_hits": 32, "external_prefix_cache_hits": 16}
    cold = ledgers.entry("vllm", [("fresh", 8)], request="a", counters={"prefix_cache_queries": 8})
    text = prometheus(ledgers.frame([cold, ledgers.entry("vllm", parts, counters=own)]))
    assert 'vllm:prefix_cache_queries_total{run="vllm",scenario="chat"} 72\n' in text
    assert 'vllm:prefix_cache_hits_total{run="vllm",scenario="chat"} 32\n' in text
    assert 'vllm:prompt_tokens_cached_total{run="vllm",scenario="chat"} 48\n' in text


def test_prometheus_text_is_well_formed(both: pd.DataFrame) -> None:
    seen: list[str] = []
    for line in prometheus(both).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in {"counter", "gauge"} and name not in seen
            assert name.endswith("_total") is (kind == "counter")
            seen.append(name)
        elif not line.startswith("#"):
            name, rest = line.split("{", 1)
            assert name == seen[-1]
            float(rest.rsplit("} ", 1)[1])
    quoted = ledgers.frame([ledgers.entry("vllm", [("fresh", 4)], scenario='say "hi"\\')])
    assert r'scenario="say \"hi\"\\"' in prometheus(quoted)
