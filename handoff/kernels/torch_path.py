"""The embedded default: plain torch on any device; gather of merged runs, then SDPA.

Pages are ``[blocks, block_size, kv_heads, head_dim]``; a slot is a row of their flat view. Runs of
consecutive blocks are sliced, not copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from .segments import Segments

__all__ = ["attend", "copy", "flop_formulas", "gather", "scan", "shift", "write", "zero"]

Ints = NDArray[np.int64]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    scale: float,
    *,
    exact: bool = False,
) -> torch.Tensor:
    """See ``handoff.kernels.attend``."""
    if exact:
        segments = segments.apart()
    out = torch.zeros_like(q)
    size = k.shape[1]
    rows = zip(
        segments.q_start[:-1].tolist(),
        segments.q_start[1:].tolist(),
        segments.first.tolist(),
        segments.lowest.tolist(),
        segments.origin.tolist(),
        segments.table,
        strict=True,
    )
    for begin, end, first, low, origin, table in rows:
        stop = first + end - begin
        if low >= stop or begin == end:
            continue
        skip = (low - origin) // size
        blocks = table[skip : -(-(stop - origin) // size)]
        base = low - origin - skip * size
        keys = _run(k, blocks)[base : base + stop - low]
        values = _run(v, blocks)[base : base + stop - low]
        if exact:  # memory of its own: where a view begins may decide how a product is rounded
            out[begin] = _one_row(q[begin].clone(), keys.clone(), values.clone(), scale)
            continue
        if end - begin == 1:
            out[begin] = _one_row(q[begin], keys, values, scale)
            continue
        mixed = F.scaled_dot_product_attention(
            q[begin:end].transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=_mask(first, stop, low, segments.window, q.device),
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[2],
        )
        out[begin:end] = mixed[0].transpose(0, 1)
    return out


def _one_row(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """One query row sees all its keys: the heads of a group are the rows, so K is read once."""
    heads, dim = q.shape
    rows = q.view(1, keys.shape[1], heads // keys.shape[1], dim)
    mixed = F.scaled_dot_product_attention(
        rows, keys.transpose(0, 1)[None], values.transpose(0, 1)[None], scale=scale
    )
    return mixed.view(heads, dim)


def _run(pages: torch.Tensor, blocks: Ints) -> torch.Tensor:
    """Slots of ``blocks`` in order, ``[slots, heads, dim]``: a view if they are consecutive."""
    first, count = int(blocks[0]), len(blocks)
    if int(blocks[-1]) - first == count - 1 and (np.diff(blocks) == 1).all():
        return pages[first : first + count].flatten(0, 1)
    index = torch.from_numpy(np.ascontiguousarray(blocks)).to(pages.device)
    return pages.index_select(0, index).flatten(0, 1)


def _mask(
    first: int, stop: int, low: int, window: int | None, device: torch.device
) -> torch.Tensor:
    """Which keys ``[low, stop)`` the rows ``[first, stop)`` see."""
    row = torch.arange(first, stop, device=device)[:, None]
    key = torch.arange(low, stop, device=device)[None]
    mask = key <= row
    return mask if window is None else mask & (key > row - window)


def write(
    k_pages: torch.Tensor, v_pages: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: Ints
) -> None:
    """See ``handoff.kernels.write``."""
    if (slots < 0).any():
        kept = np.flatnonzero(slots >= 0)
        rows = torch.from_numpy(kept).to(k.device)
        k, v, slots = k.index_select(0, rows), v.index_select(0, rows), slots[kept]
    index = torch.from_numpy(np.ascontiguousarray(slots)).to(k.device)
    k_pages.flatten(0, 1).index_copy_(0, index, k)
    v_pages.flatten(0, 1).index_copy_(0, index, v)


def copy(
    sources: Sequence[torch.Tensor],
    destinations: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int, int]],
) -> None:
    """See ``handoff.kernels.copy``."""
    for source, destination in zip(sources, destinations, strict=True):
        flat, into = source.flatten(0, 1), destination.flatten(0, 1)
        for src, dst, count in runs:
            into[dst : dst + count] = flat[src : src + count].clone()


def shift(
    pages: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int]],
    delta: int,
    freqs: torch.Tensor,
) -> None:
    """See ``handoff.kernels.shift``."""
    for keys in pages:
        flat = keys.flatten(0, 1)
        angles = delta * freqs
        wide = torch.promote_types(keys.dtype, torch.float32)
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)
        for first, count in runs:
            low, high = flat[first : first + count].to(wide).chunk(2, dim=-1)
            turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
            flat[first : first + count] = turned.to(keys.dtype)


def zero(pages: Sequence[torch.Tensor], runs: Sequence[tuple[int, int]]) -> None:
    """See ``handoff.kernels.zero``."""
    for each in pages:
        flat = each.flatten(0, 1)
        for first, count in runs:
            flat[first : first + count] = 0


def gather(pages: torch.Tensor, slots: Ints) -> torch.Tensor:
    """See ``handoff.kernels.gather``."""
    index = torch.from_numpy(np.ascontiguousarray(slots)).to(pages.device)
    return pages.flatten(0, 1).index_select(0, index)


def scan(
    decay: torch.Tensor, gain: torch.Tensor, initial: torch.Tensor, q_start: Ints
) -> torch.Tensor:
    """See ``handoff.kernels.scan``."""
    out = torch.empty_like(gain)
    for row, (begin, end) in enumerate(zip(q_start[:-1].tolist(), q_start[1:].tolist())):
        state = initial[row]
        for at in range(begin, end):
            state = torch.addcmul(gain[at], decay[at], state)
            out[at] = state
    return out


def flop_formulas() -> Mapping[Any, Any]:
    """``custom_mapping`` for torch's FlopCounterMode: attention counted by *visible* pairs.

    On the CPU torch counts nothing for SDPA, and elsewhere the full rectangle of queries and keys.
    Here the mask that attention really got is counted: ``4 x heads x head_dim`` a visible pair.
    """

    def pairs(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> int:
        shape = query.shape[-2], key.shape[-2]
        if mask is None:
            return shape[0] * shape[1]
        seen = mask if mask.dtype == torch.bool else mask == 0
        return int(seen.expand(*seen.shape[:-2], *shape).reshape(-1, *shape)[0].sum())

    def formula(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        attn_mask: torch.Tensor | None = None,
        out_val: Any = None,
        **kwargs: Any,
    ) -> int:
        batch, heads, _, dim = query.shape
        return 4 * batch * heads * dim * pairs(query, key, attn_mask)

    formula._get_raw = True  # type: ignore[attr-defined]  # torch then passes tensors, not shapes
    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: formula}
