"""Random batches over scattered pages, for every path of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from handoff.kernels.segments import Segments

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest difference from the float64 oracle on unit-normal inputs."""


@dataclass(frozen=True)
class Shape:
    """``rows`` are (prefix, new tokens) per request."""

    rows: tuple[tuple[int, int], ...]
    page: int = 16
    dim: int = 64
    kv_heads: int = 2
    group: int = 4
    window: int | None = None
    visible: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batch:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    segments: Segments
    scale: float


def batch(shape: Shape, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Batch:
    """Tables in shuffled blocks; slots nobody may read hold NaN."""
    rng = np.random.default_rng(seed)
    columns = [-(-(prefix + new) // shape.page) for prefix, new in shape.rows]
    blocks = sum(columns) + 3
    order = rng.permutation(blocks)
    table = np.full((len(shape.rows), max(columns, default=1)), -1, np.int64)
    k = torch.full((blocks, shape.page, shape.kv_heads, shape.dim), float("nan"), dtype=dtype)
    v = k.clone()
    at = 0
    generator = torch.Generator().manual_seed(seed)
    for row, ((prefix, new), count) in enumerate(zip(shape.rows, columns, strict=True)):
        table[row, :count] = order[at : at + count]
        at += count
        for position in range(prefix + new):
            block = int(table[row, position // shape.page])
            for pages in (k, v):
                value = torch.randn(shape.kv_heads, shape.dim, generator=generator)
                pages[block, position % shape.page] = value.to(dtype)
    counts = [new for _, new in shape.rows]
    visible = shape.visible or (0,) * len(shape.rows)
    first = np.array([prefix for prefix, _ in shape.rows], np.int64)
    segments = Segments(
        q_start=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        first=first,
        origin=np.zeros(len(first), np.int64),
        visible=np.array(visible, np.int64),
        table=table,
        window=shape.window,
    )
    heads = shape.kv_heads * shape.group
    q = torch.randn(sum(counts), heads, shape.dim, generator=generator).to(dtype)
    return Batch(q.to(device), k.to(device), v.to(device), segments, shape.dim**-0.5)


def doubles(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().to(torch.float64).numpy()
