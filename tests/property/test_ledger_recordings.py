"""Recorded runs of upstream through the ledger: every entry is built, so every sum is exact."""

from __future__ import annotations

import pytest

from handoff.adapter import load
from handoff.conformance.conform import conform
from handoff.ledger.attribution import Accountant, Label
from handoff.types import Layout

from ..conftest import RECORDINGS

FILES = (
    "vllm/common_b16_pool64",
    "vllm/native_n_b16_small",
    "vllm/native_n_hyb_s64_eagle",
    "vllm/native_n_dsv41",
    "vllm/native_n_ext_async",
    "sglang/native_retract",
    "sglang/native_swa",
    "llamacpp/common_np1_reuse16",
    "llamacpp/common_np4_cram",
    "llamacpp/native_cmpl",
    "llamacpp/native_ctxshift",
    "tensorrt_llm/native",
    "deepinfer/native_preempt",
    "deepinfer/native_yoco",
    "deepinfer/native_fork",
)
"""Preemption, windows, chunks that move, children, context shifts, replay, forks, injection."""


@pytest.mark.parametrize("name", FILES)
def test_sums_are_exact(name: str) -> None:
    folder = name.partition("/")[0]
    books: list[Accountant] = []

    def watch(layout: Layout) -> Accountant:
        books.append(Accountant(layout, Label(folder, folder, folder, "", "ran", name)))
        return books[-1]

    outcome = conform(RECORDINGS / f"{name}.jsonl.gz", load(folder), watch=watch)
    assert outcome.agree > 0
    entries = [entry for each in books for entry in each.finish()]
    first = [entry for entry in entries if entry.attempt == 0]
    assert first and sum(entry.prompt_tokens for entry in first) == sum(
        tokens for entry in first for tokens in entry.tokens.values()
    )
