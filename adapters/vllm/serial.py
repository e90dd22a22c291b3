"""Replays the serial recordings: requests of one workload, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request

from .options import VllmOptions
from .replay import Run, copies, crc, pack

__all__ = ["replay_common"]

MAIN = frozenset(
    {
        "b16",
        "b16_eagle",
        "b16_pool64",
        "dsv41_w128_b64",
        "hyb_f_local64",
        "hyb_f_s128_eagle_dense",
        "hyb_f_s64",
        "mamba_f64_h16",
        "mamba_f64_h16_eagle",
        "swa64",
    }
)
"""Configurations whose serial recordings also hold tables and the number of keyed blocks."""
WITH_CREATED = frozenset({"b16", "mamba_f64_h16"})


def replay_common(case: Case, options: VllmOptions) -> dict[str, Any]:
    """Requests of one workload, one after the other, on a fresh engine."""
    assert case.workload is not None
    name = case.line["config"]
    run = Run(case, options)
    results = []
    for spec in case.workload["requests"]:
        results.append(_serve(run, spec, name))
    return {"workload": case.line["workload"], "config": name, "results": results}


def _serve(run: Run, spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Run one request to its end on the engine as the ones before left it; its result line."""
    request = Request(
        spec["id"],
        Seq.of(spec["prompt"]),
        len(spec["output"]),
        outputs=Seq.of(spec["output"]),
        salt=spec.get("salt"),
        lora=f"lora{spec['lora']}" if spec.get("lora") else None,
    )
    seen = _Seen()
    _drive(run, request, seen)
    engine, pool = run.engine, run.engine.cache.pool
    stats = engine.stats.prefill[request.id]
    out: dict[str, Any] = {
        "req": request.id,
        "prompt_tokens": len(request.prompt),
        "hit_tokens": stats.local,
    }
    if stats.start != stats.local:
        out["start"] = stats.start
    if seen.chunks != [len(request.prompt) - stats.start]:
        out["chunks"] = seen.chunks
    if seen.steps != request.max_tokens + len(seen.chunks) - 1:
        out["steps"] = seen.steps
    if seen.evicted:
        out["ev"] = pack(seen.evicted)
    if seen.copied:
        out["cow"] = seen.copied
    out["fq"] = crc(f"{b}h" if pool.primary[b] else b for b in pool.queue)
    if name in WITH_CREATED:
        out["new_cached"] = stats.created
    if name in MAIN:
        out["cached"] = pool.num_keyed()
        out["bt"] = seen.tables[0]
        if seen.tables[-1] != seen.tables[0]:
            out["bt_end"] = seen.tables[-1]
    return out


@dataclass(slots=True)
class _Seen:
    """What the steps of one request told."""

    steps: int = 0
    chunks: list[int] = field(default_factory=list)
    tables: list[list[str]] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    copied: list[list[int]] = field(default_factory=list)


def _drive(run: Run, request: Request, seen: _Seen) -> None:
    """Schedule as far ahead as the engine allows until the request is gone and nothing flies."""
    engine = run.engine
    run.submit(request)
    state = engine.requests[request.id]
    in_flight = 0
    while request.id in engine.requests:
        step, events = run.schedule()
        if step is not None:
            in_flight += 1
            seen.steps += 1
            starts = [(row.start, len(row.tokens)) for row in step.rows]
            seen.chunks += [count for start, count in starts if start < len(request.prompt)]
            seen.tables.append([pack(table) for table in state.tables])
            seen.copied += copies(step)
        seen.evicted += [b for event in events if event.kind == "evict" for b in event.ids]
        if in_flight == engine.depth or step is None:
            run.update()
            in_flight -= 1
    for _ in range(in_flight):
        run.update()
    run.news()
