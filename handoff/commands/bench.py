"""``handoff bench``: planner on a trace, kernels against baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from handoff.errors import BadInput
from handoff.lines import read_json

__all__ = ["bench_kernels_command", "bench_trace_command"]


def bench_trace_command(
    trace: Path,
    *,
    adapter: str,
    sets: dict[str, dict[str, Any]],
    pool_tokens: int | None,
    limit: int | None,
    mode: str,
    step_ms: float,
    references: dict[str, Path | None],
    as_json: bool,
) -> int:
    """Measure planning on a trace; 1 if a request differs from a given replay of upstream."""
    from handoff.bench import bench_trace

    given = {name: path for name, path in references.items() if path is not None}
    found = bench_trace(
        trace,
        adapter,
        sets.get(adapter, {}),
        pool_tokens=pool_tokens,
        limit=limit,
        mode=mode,
        step_ms=step_ms,
        answers=bool(given),
    )
    differing = {}
    for name, path in given.items():
        differing[name] = _count_different(found[name], read_json(path), name, path)
    summary = {k: v for k, v in found.items() if k not in references}
    if differing:
        summary["differ"] = differing
    if as_json:
        print(json.dumps(summary, indent=2, sort_keys=True))
    else:
        for name, value in summary.items():
            print(f"{name:18} {value:,}" if isinstance(value, int) else f"{name:18} {value}")
    return 1 if any(differing.values()) else 0


def bench_kernels_command(
    device: str | None, repeats: int, out: Path | None, *, as_json: bool
) -> int:
    """Measure and print; 1 if a ratio that the embedded path has to keep is missed."""
    import torch

    from handoff.bench_kernels import bench_kernels, write_json

    if device not in (None, "cpu", "cuda"):
        raise BadInput(f"--device is cpu or cuda, not {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no CUDA device here")
    found = bench_kernels(device, repeats)
    if out is not None:
        write_json(found, out)
    rows = [*found["cpu"], *(found["gpu"]["rows"] if found["gpu"] else ())]
    if as_json:
        print(json.dumps(found, indent=2, sort_keys=True))
    else:
        for row in rows:
            kept = f", at most {row['at_most']}" if "at_most" in row else ""
            ratios = ", ".join(f"{value} x {name}" for name, value in row["ratio"].items())
            print(
                f"{row['shape']:34} {row['median_s']['handoff'] * 1e3:9.3f} ms  "
                f"{row['gflops_per_s']:9,.1f} GFLOP/s  {ratios}{kept}"
            )
        if found["gpu"] is None:
            print("No CUDA device: only the CPU path was measured, no GPU figure is given.")
    return 0 if all(row.get("ok", True) for row in rows) else 1


def _count_different(ours: list[Any], replay: Any, name: str, path: Path) -> int:
    """Requests whose value is not upstream's; a trace cut by ``--limit`` compares its head."""
    theirs = replay.get(name) if isinstance(replay, dict) else replay
    if not isinstance(theirs, list):
        raise BadInput(f"holds no list {name!r}", file=path, field=name)
    if len(theirs) < len(ours):
        raise BadInput(f"holds {len(theirs):,} values, the trace {len(ours):,}", file=path)
    return sum(list_of(a) != list_of(b) for a, b in zip(ours, theirs))


def list_of(value: Any) -> Any:
    """Tuples as lists, so that JSON and Python values compare."""
    return list(value) if isinstance(value, tuple) else value
