"""Batches for kernel tests: ragged requests over shuffled block tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from handoff.kernels import Segments


@dataclass
class Batch:
    q: NDArray[np.float64]
    k: NDArray[np.float64]
    v: NDArray[np.float64]
    segments: Segments
    scale: float

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        q, k, v = (torch.from_numpy(each).to(dtype) for each in (self.q, self.k, self.v))
        return q, k, v


def batch(
    shapes: list[tuple[int, int]],
    *,
    block: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    window: int | None = None,
    visible: int = 0,
    shuffled: bool = True,
    seed: int = 0,
) -> Batch:
    """``shapes`` are (prefix tokens, new tokens) per request; unwritten slots hold NaN."""
    random = np.random.default_rng(seed)
    columns = [-(-(prefix + new) // block) for prefix, new in shapes]
    pool = sum(columns) + 3
    order = random.permutation(pool) if shuffled else np.arange(pool)
    k = np.full((pool, block, kv_heads, dim), np.nan)
    v = np.full((pool, block, kv_heads, dim), np.nan)
    table = np.full((len(shapes), max(columns)), -1, np.int64)
    taken = 0
    for row, ((prefix, new), count) in enumerate(zip(shapes, columns, strict=True)):
        ids = order[taken : taken + count]
        taken += count
        table[row, :count] = ids
        for at in range(prefix + new):
            k[ids[at // block], at % block] = random.standard_normal((kv_heads, dim))
            v[ids[at // block], at % block] = random.standard_normal((kv_heads, dim))
    q_start = np.concatenate(([0], np.cumsum([new for _, new in shapes]))).astype(np.int64)
    segments = Segments(
        q_start=q_start,
        first=np.array([prefix for prefix, _ in shapes], np.int64),
        origin=np.zeros(len(shapes), np.int64),
        visible=np.full(len(shapes), visible, np.int64),
        table=table,
        window=window,
    )
    q = random.standard_normal((int(q_start[-1]), heads, dim))
    return Batch(q, k, v, segments, dim**-0.5)
