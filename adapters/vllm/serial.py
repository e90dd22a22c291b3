"""Replays the serial recordings: requests of one workload, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
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
    engine, pool = run.engine, run.engine.cache.pool
    request = Request(
        spec["id"],
        Seq.of(spec["prompt"]),
        len(spec["output"]),
        outputs=Seq.of(spec["output"]),
        salt=spec.get("salt"),
        lora=f"lora{spec['lora']}" if spec.get("lora") else None,
    )
    run.submit(request)
    state = engine.requests[request.id]
    chunks: list[int] = []
    tables: list[list[str]] = []
    evicted: list[int] = []
    copied: list[list[int]] = []
    steps = 0
    in_flight = 0
    while True:
        step, events = run.schedule()
        if step is not None:
            in_flight += 1
            steps += 1
            for row in step.rows:
                if row.start < len(request.prompt):
                    chunks.append(len(row.tokens))
            tables.append([pack(table) for table in state.tables])
            copied += copies(step)
        evicted += [block for event in events if event.kind == "evict" for block in event.ids]
        if in_flight == engine.depth or step is None:
            run.update()
            in_flight -= 1
        if request.id not in engine.requests:
            break
    while in_flight:
        run.update()
        in_flight -= 1
    run.news()
    hit = engine.stats.prefill[request.id]
    start = hit.start
    out: dict[str, Any] = {
        "req": request.id,
        "prompt_tokens": len(request.prompt),
        "hit_tokens": hit.local,
    }
    if start != hit.local:
        out["start"] = start
    if chunks != [len(request.prompt) - start]:
        out["chunks"] = chunks
    if steps != len(spec["output"]) + len(chunks) - 1:
        out["steps"] = steps
    if evicted:
        out["ev"] = pack(evicted)
    if copied:
        out["cow"] = copied
    out["fq"] = crc(f"{b}h" if pool.primary[b] else b for b in pool.queue)
    if name in WITH_CREATED:
        out["new_cached"] = hit.created
    if name in MAIN:
        out["cached"] = pool.num_keyed()
        out["bt"] = tables[0]
        if tables[-1] != tables[0]:
            out["bt_end"] = tables[-1]
    return out
