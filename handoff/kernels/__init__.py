"""Seven kernels with one signature each; the device of the tensors decides which path runs.

Shapes: pages ``[blocks, block_size, kv_heads, head_dim]``, queries and outputs
``[tokens, heads, head_dim]``, slots index the flat ``[blocks * block_size]`` view. States are pages
with one block per state: ``[states, 1, width]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import torch_path
from .segments import Segments
from .torch_path import flop_formulas

if TYPE_CHECKING:
    import torch

__all__ = [
    "Segments",
    "attend",
    "copy",
    "flop_formulas",
    "gather",
    "scan",
    "shift",
    "write",
    "zero",
]

Ints = NDArray[np.int64]


def _path(tensor: torch.Tensor) -> ModuleType:
    """The module that serves tensors of this device; Triton is loaded only for a CUDA tensor."""
    if tensor.is_cuda:
        from . import triton_path

        return triton_path
    return torch_path


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    scale: float,
    *,
    exact: bool = False,
) -> torch.Tensor:
    """Causal attention of every row over the keys it sees; extend and decode alike.

    Grouped queries: head h reads KV head ``h * kv_heads // heads``. Scores are multiplied by
    ``scale``. A row that sees nothing gives 0; content outside of what is seen is never used.

    With ``exact`` a row's bits depend on its query and keys alone, however its prompt was cut into
    prefix and extend and whatever else is in the batch: the torch path computes each row by
    itself, the Triton path uses one tile and splits of fixed absolute bounds. It is slower.
    """
    out: torch.Tensor = _path(q).attend(q, k, v, segments, scale, exact=exact)
    return out


def write(
    k_pages: torch.Tensor, v_pages: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: Ints
) -> None:
    """Store row t's key and value at ``slots[t]``; -1 is skipped. Slots are distinct."""
    _path(k).write(k_pages, v_pages, k, v, slots)


def copy(
    sources: Sequence[torch.Tensor],
    destinations: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int, int]],
) -> None:
    """Copy runs ``(source slot, destination slot, slots)`` in every pair of pages, in order."""
    _path(destinations[0]).copy(sources, destinations, runs)


def shift(
    pages: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int]],
    delta: int,
    freqs: torch.Tensor,
) -> None:
    """Rotate the keys in runs ``(first slot, slots)`` by ``delta`` positions, float32 inside."""
    _path(pages[0]).shift(pages, runs, delta, freqs)


def zero(pages: Sequence[torch.Tensor], runs: Sequence[tuple[int, int]]) -> None:
    """Runs ``(first slot, slots)`` become zeros."""
    _path(pages[0]).zero(pages, runs)


def gather(pages: torch.Tensor, slots: Ints) -> torch.Tensor:
    """Rows of the given slots, ``[slots, ...]``; all slots are real."""
    out: torch.Tensor = _path(pages).gather(pages, slots)
    return out


def scan(
    decay: torch.Tensor, gain: torch.Tensor, initial: torch.Tensor, q_start: Ints
) -> torch.Tensor:
    """Gated linear recurrence ``h = decay * h + gain`` along each request's rows.

    ``decay`` and ``gain`` are ``[tokens, width]``, ``initial`` is ``[requests, width]``. The state
    after every row is returned, so that any inner position can be saved.
    """
    out: torch.Tensor = _path(gain).scan(decay, gain, initial, q_start)
    return out
