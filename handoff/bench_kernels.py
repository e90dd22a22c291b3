"""Kernels against baselines, as ratios measured in one run; no figure is carried between runs.

On the CPU the embedded path is compared with torch SDPA over contiguous KV, the fastest a user
could have without paging. On a CUDA device the Triton kernels are timed beside SDPA over gathered
pages, and beside FlashInfer if that is installed. Results are compared before anything is timed.
Tables are shuffled unless a shape says otherwise, the first calls are not timed, median and spread
are reported.
"""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from . import kernels
from .errors import HandoffError
from .kernels.segments import Segments

__all__ = [
    "CPU_SHAPES",
    "GPU_SHAPES",
    "Shape",
    "bench_kernels",
    "contiguous",
    "gathered",
    "make",
    "row_of",
    "write_json",
]


class Shape(NamedTuple):
    """``rows`` = (requests, prefix tokens, new tokens) with equal requests."""

    name: str
    rows: tuple[int, int, int]
    heads: int = 8
    kv_heads: int = 2
    dim: int = 64
    block: int = 16
    layers: int = 1
    window: int | None = None
    visible: int = 0
    shuffled: bool = True
    at_most: float | None = None

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs of one head."""
        requests, prefix, new = self.rows
        total = 0
        for p in range(prefix, prefix + new):
            low = max(self.visible, 0 if self.window is None else p - self.window + 1)
            total += max(0, p + 1 - low)
        return requests * total


CPU_SHAPES = (
    Shape("extend 256 on 4,096, 4 layers", (1, 4096, 256), layers=4, at_most=1.15),
    Shape("decode 16 x 4,096, consecutive", (16, 4095, 1), shuffled=False, at_most=1.2),
    Shape("decode 16 x 4,096, scattered", (16, 4095, 1)),
)
"""What the embedded default has to keep; ``at_most`` is the ratio to contiguous SDPA."""

_BIG: dict[str, Any] = {"heads": 32, "kv_heads": 8, "dim": 128}
GPU_SHAPES = (
    Shape("P1 prefill 1 x 8k", (1, 0, 8192), **_BIG),
    Shape("P2 extend 8 x 512 on 4k", (8, 4096, 512), **_BIG),
    Shape("P3 extend 1 x 256 on 32k", (1, 32_768, 256), **_BIG),
    Shape("P4 extend 1 x 16 on 32k", (1, 32_768, 16), **_BIG),
    Shape("P5 P2 with window 1,024", (8, 4096, 512), window=1024, **_BIG),
    Shape("P6 P1 with D 64", (1, 0, 8192), heads=32, kv_heads=8, dim=64),
    Shape("P7 P2, visible from 2k", (8, 4096, 512), visible=2048, **_BIG),
    Shape("D1 decode 64 x 4k", (64, 4095, 1), **_BIG),
    Shape("D2 decode 8 x 4k", (8, 4095, 1), **_BIG),
    Shape("D3 decode 1 x 128k", (1, 131_071, 1), **_BIG),
)


class _Case(NamedTuple):
    q: torch.Tensor
    pages: list[tuple[torch.Tensor, torch.Tensor]]
    flat: list[tuple[torch.Tensor, torch.Tensor]]
    segments: Segments
    scale: float


def make(shape: Shape, device: str, dtype: torch.dtype, seed: int = 0) -> _Case:
    """Random pages, the same KV contiguous per request, and the batch over them."""
    requests, prefix, new = shape.rows
    length = prefix + new
    columns = -(-length // shape.block)
    rng = np.random.default_rng(seed)
    order = np.arange(requests * columns)
    table = (rng.permutation(order) if shape.shuffled else order).reshape(requests, columns)
    generator = torch.Generator(device).manual_seed(seed)
    size = (requests * columns, shape.block, shape.kv_heads, shape.dim)
    pages, flat = [], []
    index = torch.from_numpy(table.reshape(-1)).to(device)
    for _ in range(shape.layers):
        pair = tuple(
            torch.randn(size, generator=generator, device=device).to(dtype) for _ in range(2)
        )
        pages.append((pair[0], pair[1]))
        rows = [
            each[index].view(requests, columns * shape.block, *size[2:])[:, :length]
            .transpose(1, 2).contiguous()
            for each in pair
        ]  # fmt: skip
        flat.append((rows[0], rows[1]))
    q = torch.randn(requests * new, shape.heads, shape.dim, generator=generator, device=device)
    segments = Segments(
        q_start=np.arange(requests + 1, dtype=np.int64) * new,
        first=np.full(requests, prefix, np.int64),
        origin=np.zeros(requests, np.int64),
        visible=np.full(requests, shape.visible, np.int64),
        table=table.astype(np.int64),
        window=shape.window,
    )
    return _Case(q.to(dtype), pages, flat, segments, shape.dim**-0.5)


def _paged(case: _Case) -> Callable[[], object]:
    def call() -> object:
        for k, v in case.pages:
            out = kernels.attend(case.q, k, v, case.segments, case.scale)
        return out

    return call


def _mask(shape: Shape, device: str) -> torch.Tensor | None:
    _, prefix, new = shape.rows
    if new == 1 and shape.window is None and not shape.visible:
        return None
    row = torch.arange(prefix, prefix + new, device=device)[:, None]
    key = torch.arange(prefix + new, device=device)[None]
    mask = (key <= row) & (key >= shape.visible)
    return mask if shape.window is None else mask & (key > row - shape.window)


def contiguous(case: _Case, shape: Shape) -> Callable[[], object]:
    """SDPA per request over KV that was never paged."""
    requests, _, new = shape.rows
    mask = _mask(shape, str(case.q.device))
    q = case.q.view(requests, new, shape.heads, shape.dim).transpose(1, 2)

    def call() -> object:
        for k, v in case.flat:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=case.scale, enable_gqa=True
            )
        return out

    return call


def gathered(case: _Case, shape: Shape) -> Callable[[], object]:
    """SDPA over pages that are gathered each time: what a kernel without block tables pays."""
    requests, prefix, new = shape.rows
    mask = _mask(shape, str(case.q.device))
    q = case.q.view(requests, new, shape.heads, shape.dim).transpose(1, 2)
    index = torch.from_numpy(case.segments.table.reshape(-1)).to(case.q.device)
    length = prefix + new

    def call() -> object:
        for pair in case.pages:
            k, v = (
                each.index_select(0, index).view(requests, -1, *each.shape[2:])[:, :length]
                .transpose(1, 2)
                for each in pair
            )  # fmt: skip
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=case.scale, enable_gqa=True
            )
        return out

    return call


def _rivals(case: _Case, shape: Shape) -> dict[str, Callable[[], object]]:
    """Installed kernels of others that can do this shape; none is required."""
    found: dict[str, Callable[[], object]] = {}
    try:
        import flashinfer
    except ImportError:
        return found
    if shape.visible or case.q.dtype == torch.float32:
        return found
    requests, prefix, new = shape.rows
    columns = case.segments.table.shape[1]
    device = case.q.device
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    last = (prefix + new - 1) % shape.block + 1
    wrapper.plan(
        torch.arange(requests + 1, dtype=torch.int32, device=device) * new,
        torch.arange(requests + 1, dtype=torch.int32, device=device) * columns,
        torch.from_numpy(case.segments.table.reshape(-1)).to(device, torch.int32),
        torch.full((requests,), last, dtype=torch.int32, device=device),
        shape.heads, shape.kv_heads, shape.dim, shape.block, causal=True,
        window_left=-1 if shape.window is None else shape.window - 1, q_data_type=case.q.dtype,
    )  # fmt: skip
    found["flashinfer"] = lambda: [wrapper.run(case.q, pair) for pair in case.pages][-1]
    return found


def _cpu_times(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each call, all in turn, so that a drifting machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            began = time.process_time()
            call()
            if repeat:
                times[name].append(time.process_time() - began)
    return times


def _gpu_times(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Device seconds with a cold second-level cache before each call."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 5):
        for name, call in calls.items():
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if repeat >= 5:
                times[name].append(begin.elapsed_time(end) / 1000)
    return times


def row_of(shape: Shape, times: dict[str, list[float]]) -> dict[str, Any]:
    """One shape's figures: medians, GFLOP/s, and ratios taken pair by pair."""
    median = {name: statistics.median(each) for name, each in times.items()}
    ours = times["handoff"]
    flops = 4 * shape.dim * shape.heads * shape.pairs * shape.layers
    row: dict[str, Any] = {
        "shape": shape.name,
        "median_s": {name: round(value, 9) for name, value in median.items()},
        "spread": round((max(ours) - min(ours)) / median["handoff"], 3),
        "gflops_per_s": round(flops / median["handoff"] / 1e9, 1),
        "ratio": {
            name: round(statistics.median(a / b for a, b in zip(ours, other, strict=True)), 3)
            for name, other in times.items()
            if name != "handoff"
        },
    }
    if shape.at_most is not None:
        row["at_most"] = shape.at_most
        row["ok"] = row["ratio"]["contiguous SDPA"] <= shape.at_most
    return row


def bench_kernels(device: str | None = None, repeats: int = 9) -> dict[str, Any]:
    """Measure the CPU part, and the GPU part where there is a CUDA device."""
    report: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "versions": _versions(),
        "commit": _commit(),
        "cpu": [],
        "gpu": None,
    }
    if device in (None, "cpu"):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        for shape in CPU_SHAPES:
            case = make(shape, "cpu", torch.float32)
            calls = {"handoff": _paged(case), "contiguous SDPA": contiguous(case, shape)}
            error = _error(shape, calls, "contiguous SDPA", 1e-4)
            times = _cpu_times(calls, repeats)
            report["cpu"].append({**row_of(shape, times), "max_error": error})
        torch.set_num_threads(before)
    if device in (None, "cuda") and torch.cuda.is_available():
        report["gpu"] = _bench_gpu(repeats)
    return report


def _bench_gpu(repeats: int) -> dict[str, Any]:
    rows = []
    for shape in GPU_SHAPES:
        case = make(shape, "cuda", torch.bfloat16)
        rivals = _rivals(case, shape)
        calls = {"handoff": _paged(case), "gathered SDPA": gathered(case, shape), **rivals}
        error = _error(shape, calls, "gathered SDPA", 0.05)
        rows.append({**row_of(shape, _gpu_times(calls, repeats)), "max_error": error})
    return {"device": torch.cuda.get_device_name(), "rows": rows}


def _error(
    shape: Shape, calls: dict[str, Callable[[], object]], baseline: str, allowed: float
) -> float:
    """Largest difference of the last layer's result from a baseline; more than allowed stops."""
    got, want = calls["handoff"](), calls[baseline]()
    assert isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    rows = want.transpose(1, 2).reshape(got.shape)
    error = float((got.float() - rows.float()).abs().max())
    if not error <= allowed:
        raise HandoffError(f"{shape.name}: off by {error:.3g} from {baseline}, nothing is timed")
    return error


def _versions() -> dict[str, str]:
    found = {}
    for name in ("handoff", "torch", "triton", "flashinfer-python"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The checkout's commit; ``None`` for an installed package, or without git."""
    here = Path(__file__).parents[1]
    if not (here / ".git").exists() or shutil.which("git") is None:
        return None
    git = ["git", "-C", str(here), "rev-parse", "HEAD"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def write_json(report: dict[str, Any], path: Path) -> None:
    """Keep a measurement with the device, the versions and the commit it belongs to."""
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")
