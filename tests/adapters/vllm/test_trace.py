"""Trace replays of ``handoff.bench`` on a trace a reader can follow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handoff.bench import bench_trace, table_crc
from handoff.errors import HandoffError

LINES = [
    {"timestamp": 0, "input_length": 1100, "output_length": 2, "hash_ids": [1, 2, 3]},
    {"timestamp": 30, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
    {"timestamp": 35, "input_length": 1500, "output_length": 3, "hash_ids": [1, 2, 4]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_serial_mode_looks_up_allocates_and_frees(trace: Path) -> None:
    found = bench_trace(trace, "vllm", {"block_size": 512}, pool_tokens=5120, answers=True)
    assert found["hits"] == [0, 512, 1024]  # the second prompt ends on a block border
    assert found["hit_tokens"] == 1536 and found["prompt_tokens"] == 3624
    # 1 2 3, then 1 and the unkeyed block that came back in front, then 1 2 and the next one
    assert found["table_crc"] == [table_crc(ids) for ids in ([1, 2, 3], [1, 3], [1, 2, 4])]
    assert found["requests"] == 3 and found["cpu_s"] > 0 and found["finish"] == []


def test_scheduler_mode_steps_in_trace_time(trace: Path) -> None:
    options = {"block_size": 512, "async_scheduling": False}
    found = bench_trace(
        trace, "vllm", options, pool_tokens=5120, mode="scheduler", step_ms=20.0, answers=True
    )
    assert found["hits"] == [0, 512, 1024]
    assert [index for index, _ in found["finish"]] == [0, 1, 2]
    assert found["finish"][0][1] == table_crc([1, 2, 3])


def test_requests_that_do_not_fit_are_counted(trace: Path) -> None:
    found = bench_trace(trace, "vllm", {"block_size": 512}, pool_tokens=1024, answers=True)
    assert found["refused"] == 2 and found["hits"] == [None, 0, None]


def test_an_unknown_mode_is_one_line(trace: Path) -> None:
    with pytest.raises(HandoffError, match="no mode 'fast'"):
        bench_trace(trace, "vllm", mode="fast")
