"""Upstream's own recorded schedules, executed: real tensors, equal to a cold run.

The conformance driver replays a recorded line; the truth check is its watcher, so what is executed
is exactly what upstream did.
"""

from __future__ import annotations

import pytest
import torch

from handoff.adapter import load
from handoff.conformance.conform import conform
from handoff.engine.truth import TruthCheck
from handoff.types import Layout
from tests.conftest import RECORDINGS

torch.set_num_threads(1)

LINES = (
    ("vllm", "common_hyb_f_s64", 3, ()),
    ("vllm", "common_mamba_f64_h16", 3, ()),
    ("vllm", "native_n_b16_eagle_async", 3, ()),
    ("vllm", "native_n_b16_small_async", 5, ()),
    ("vllm", "native_n_hyb_local", 3, ()),
    ("vllm", "native_n_ext_sync", 3, ()),
    ("vllm", "native_n_ext_dsv41", 3, ("hidden",)),
    ("sglang", "common_swa", 3, ()),
    ("sglang", "native_retract", 3, ()),
    ("sglang", "native_spec", 3, ()),
    ("sglang", "native_hicache_mamba", 3, ()),
    ("llamacpp", "common_np1_reuse16", 3, ("moved",)),
    ("llamacpp", "common_lfm2", 3, ()),
    ("llamacpp", "native_draft", 3, ()),
    ("llamacpp", "native_lora", 3, ("lora",)),
    ("tensorrt_llm", "common", 40, ()),
    ("tensorrt_llm", "native", 17, ()),
    ("deepinfer", "native_fork", 5, ()),
    ("deepinfer", "native_zos", 3, ()),
    ("deepinfer", "native_inject", 3, ("zeros",)),
)


@pytest.mark.parametrize(("adapter", "file", "line", "causes"), LINES)
def test_recorded_steps_are_exact(
    adapter: str, file: str, line: int, causes: tuple[str, ...]
) -> None:
    checks: list[TruthCheck] = []

    def watch(layout: Layout) -> TruthCheck:
        checks.append(TruthCheck(layout))
        return checks[-1]

    path = RECORDINGS / adapter / f"{file}.jsonl.gz"
    outcome = conform(path, load(adapter), line_number=line, watch=watch)
    assert outcome.agree == 1
    for check in checks:
        check.finish()
        assert check.ok, check.worst
        assert check.tags is not None and not check.executor.waiting
    assert sum(check.rows for check in checks) > 0
    seen = {cause for check in checks if check.tags for cause in check.tags.taint}
    assert seen == set(causes)
