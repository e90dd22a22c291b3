"""Synthetic ledgers for the report's tests: small, lawful, made through ``Entry``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from handoff.ledger.entries import Entry, Ledger, Run
from handoff.report.info import Expectation, RowInfo, RunInfo, ScenarioInfo, Tags, Truth

FRAMEWORKS = {
    "vllm": ("vLLM", "0.32.0", "ran", "block 16, EAGLE", 16),
    "sglang": ("SGLang", "0.5.23", "ran", "page 64", 64),
    "llamacpp": ("llama.cpp", "b11434", "ran", "4 slots, reuse 256", 1),
    "tensorrt_llm": ("TensorRT-LLM", "64b4773", "transcribed", "32 a block, partial", 32),
    "deepinfer": ("DeepInfer", "0.1.0", "ran", "grain 256, YoCo 140", 256),
}

TURN_2 = {
    "vllm": [("reused", 1840), ("draft", 16), ("alignment", 11), ("fresh", 181)],
    "sglang": [("reused", 1856), ("alignment", 11), ("fresh", 181)],
    "llamacpp": [("reused", 1203), ("moved", 512), ("slot_choice", 152), ("fresh", 181)],
    "tensorrt_llm": [("reused", 1867), ("fresh", 181)],
    "deepinfer": [("reused", 1792), ("alignment", 75), ("fresh", 181)],
}
"""The design's example: 2,048 tokens of which 1,867 are shared."""

SHORT = {
    "vllm": [("reused", 16), ("draft", 16), ("alignment", 2), ("fresh", 6)],
    "sglang": [("reused", 34), ("fresh", 6)],
    "llamacpp": [("reused", 34), ("fresh", 6)],
    "tensorrt_llm": [("reused", 34), ("fresh", 6)],
    "deepinfer": [("reused", 32), ("alignment", 2), ("fresh", 6)],
}
"""40 tokens, 34 shared."""


def runs_of(parts: Iterable[tuple[str, int]]) -> tuple[Run, ...]:
    """Adjoining runs from (class, tokens) pairs."""
    runs, at = [], 0
    for kind, tokens in parts:
        runs.append(Run(kind, at, at + tokens))
        at += tokens
    return tuple(runs)


def flops(positions: Iterable[tuple[int, int]]) -> int:
    """A causal cost: 1,000 a position plus its index."""
    return sum((b - a) * 1000 + (a + b - 1) * (b - a) // 2 for a, b in positions)


def entry(
    adapter: str,
    parts: Iterable[tuple[str, int]],
    *,
    request: str = "turn-2",
    scenario: str = "chat",
    run: str | None = None,
    lanes: Mapping[str, list[tuple[str, int]]] | None = None,
    **fields: Any,
) -> Entry:
    """One lawful entry: tokens and FLOPs follow from the runs."""
    title, upstream, evidence, describe, unit = FRAMEWORKS[adapter]
    runs = runs_of(parts)
    prompt = runs[-1].stop
    count = dict.fromkeys(("reused", "moved", "replay", "fresh"), 0)
    for kind, start, stop in runs:
        count[kind] = count.get(kind, 0) + stop - start
    hit = count["reused"] + count["moved"] + count["replay"]
    kept = [(r.start, r.stop) for r in runs if r.kind in ("reused", "moved")]
    cold = flops([(0, prompt)])
    values: dict[str, Any] = {
        "options": {"block_size": unit},
        "attempt": 0,
        "arrival_s": 0.0,
        "prompt_tokens": prompt,
        "known_tokens": prompt,
        "shared_tokens": prompt - count["fresh"],
        "raw_tokens": prompt - count["fresh"],
        "hit_tokens": hit,
        "start": hit - count["replay"],
        "unit": unit,
        "computed_tokens": prompt - count["reused"] - count["moved"],
        "cold_flops": cold,
        "spent_flops": cold - flops(kept),
        "ttft_s": 0.0123,
        "cold_ttft_s": 0.0456,
        "queue_s": 0.0,
        "answers": {"matcher": "scheduler", "references": "+1 on 115 blocks"},
    }
    return Entry(
        run=run or adapter,
        adapter=adapter,
        title=title,
        upstream=upstream,
        evidence=evidence,
        describe=describe,
        scenario=scenario,
        request=request,
        runs=runs,
        lanes={name: runs_of(lane) for name, lane in (lanes or {}).items()},
        **(values | fields),
    )


def refused(adapter: str, request: str, tokens: int, why: str, scenario: str = "chat") -> Entry:
    """A request that a framework would not serve."""
    served = entry(adapter, [("fresh", tokens)], request=request, scenario=scenario)
    nothing = {"runs": (), "shared_tokens": 0, "computed_tokens": 0, "cold_flops": 0}
    return replace(served, status=f"refused: {why}", spent_flops=0, **nothing)


def frame(entries: Iterable[Entry]) -> pd.DataFrame:
    """The ledger's DataFrame."""
    return Ledger(entries).to_pandas()


def chat() -> list[Entry]:
    """Two requests in five frameworks: one cold, one with five different hits."""
    entries = []
    for adapter in FRAMEWORKS:
        entries.append(entry(adapter, [("fresh", 2000)], request="turn-1"))
        lanes = {}
        if adapter == "deepinfer":
            lanes = {"producer": TURN_2[adapter], "consumer": [("unneeded", 1908), ("fresh", 140)]}
        entries.append(entry(adapter, TURN_2[adapter], lanes=lanes))
    return entries


def short() -> list[Entry]:
    """The 40-token prompt, as a second scenario."""
    return [
        entry(adapter, parts, request="r2", scenario="same-twice")
        for adapter, parts in SHORT.items()
    ]


def info(**fields: Any) -> RunInfo:
    """A complete ``RunInfo``."""
    values: dict[str, Any] = {
        "command": "handoff run chat --pool-tokens 1048576 --out out/chat",
        "date": "2026-01-02",
        "seed": 0,
        "versions": {"handoff": "0.1.0", "Python": "3.11"},
        "model": "tiny reference model",
        "hardware": "H200",
        "kv_bytes_per_token": 131072,
        "rows": tuple(
            RowInfo(
                run=adapter,
                pool=f"{1048576 // unit:,} blocks of {unit}",
                pool_tokens=1048576,
                left_out={"workers": "no tensors are planned"},
                truth=Truth(ok=True, max_error=3.1e-6, tolerance=1e-4, rows=12),
                tags=Tags(steps=40),
            )
            for adapter, (_, _, _, _, unit) in FRAMEWORKS.items()
        ),
        "scenarios": (
            ScenarioInfo(
                name="chat",
                question="What does a second turn reuse?",
                notice="llama.cpp keeps one slot's text only.",
                expectations=(Expectation(words="turn-2 hits in every row", ok=True),),
            ),
        ),
        "files": {"ledger.parquet": "90ab" * 16},
        "executed": True,
        "planted": (12, 12),
    }
    return RunInfo(**(values | fields))
