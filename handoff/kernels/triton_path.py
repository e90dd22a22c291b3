"""The GPU path: launches the Triton kernels; under the interpreter it runs on CPU tensors.

Tile and split choices depend on the batch alone and are kept in ``Segments.cache``, so that they
are made once a step and not once a layer. Nothing here synchronises with the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from .segments import Segments
from .tiles import Tile, choose_tile, split_tokens
from .triton_attention import attend_kernel, combine_kernel
from .triton_cache import (
    copy_kernel,
    gather_kernel,
    scan_kernel,
    shift_kernel,
    write_kernel,
    zero_kernel,
)

__all__ = ["attend", "copy", "gather", "scan", "shift", "write", "zero"]

Ints = NDArray[np.int64]
LOG2E = 1.4426950408889634
PIECE = 16
"""Slots one program of ``copy``, ``shift`` and ``zero`` handles."""


class Plan(NamedTuple):
    """A batch's arrays on the device with its tiles and splits."""

    tile: Tile
    tiles: torch.Tensor
    q_start: torch.Tensor
    first: torch.Tensor
    origin: torch.Tensor
    visible: torch.Tensor
    table: torch.Tensor
    split: int
    split_first: int
    splits: int


def _interpreted(kernel: Any) -> bool:
    """Whether kernels were decorated under ``TRITON_INTERPRET=1``."""
    return not hasattr(kernel, "cache_key")


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _arch(device: torch.device) -> int:
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def plan(
    segments: Segments,
    group: int,
    head_dim: int,
    kv_heads: int,
    like: torch.Tensor,
    *,
    exact: bool,
    tile: Tile | None = None,
) -> Plan:
    """Tiles, splits and device arrays of a batch; made once and kept with the segments.

    With ``exact`` the tile depends on the heads alone and splits on absolute positions alone.
    """
    key = f"triton/{group}/{head_dim}/{kv_heads}/{like.dtype}/{like.device}/{exact}/{tile}"
    found = segments.cache.get(key)
    if not isinstance(found, Plan):
        found = segments.cache[key] = _planned(
            segments, group, head_dim, kv_heads, like, exact, tile
        )
    return found


def _planned(
    segments: Segments,
    group: int,
    head_dim: int,
    kv_heads: int,
    like: torch.Tensor,
    exact: bool,
    tile: Tile | None,
) -> Plan:
    counts = segments.counts
    if tile is None:
        rows = group if exact or not len(counts) else int(counts.max()) * group
        half = like.dtype.itemsize == 2
        tile = choose_tile(head_dim, rows, half=half, arch=_arch(like.device))
    while tile.rows < group:
        tile = tile._replace(rows=2 * tile.rows)
    per = tile.rows // group
    pairs = [
        (segment, row)
        for segment, count in enumerate(counts.tolist())
        for row in range(0, count, per)
    ]
    top = int((segments.first + counts).max()) if len(counts) else 1
    low = int(segments.lowest.min()) if len(counts) else 0
    programs = len(pairs) * kv_heads
    split = split_tokens(programs, top - low, tile, _processors(like.device), exact=exact)
    split_first = low // split
    splits = max(1, -(-top // split) - split_first)

    def device(values: Any) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=torch.int32).to(like.device)

    return Plan(
        tile,
        device(np.array(pairs, np.int64).reshape(-1, 2)),
        device(segments.q_start),
        device(segments.first),
        device(segments.origin),
        device(segments.visible),
        device(segments.table),
        split,
        split_first,
        splits,
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segments: Segments,
    scale: float,
    *,
    exact: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """See ``handoff.kernels.attend``; for checks ``tile`` overrides the table."""
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    if q.stride(2) != 1:
        q = q.contiguous()
    made = plan(segments, group, head_dim, kv_heads, q, exact=exact, tile=tile)
    out = torch.zeros((tokens, heads, head_dim), dtype=q.dtype, device=q.device)
    if not len(made.tiles):
        return out
    split = made.splits > 1
    parts = tops = weights = out
    if split:
        shape = (made.splits, tokens, heads)
        parts = torch.zeros((*shape, head_dim), dtype=torch.float32, device=q.device)
        tops = torch.full(shape, -1.0e30, dtype=torch.float32, device=q.device)
        weights = torch.zeros(shape, dtype=torch.float32, device=q.device)
    padded = max(16, triton.next_power_of_2(head_dim))
    attend_kernel[(len(made.tiles), kv_heads, made.splits)](
        parts, tops, weights, q, k, v, made.table, made.tiles, made.q_start, made.first,
        made.origin, made.visible, scale * LOG2E, made.split, made.split_first, tokens, heads,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2), made.table.stride(0),
        GROUP=group, HEAD_DIM=head_dim, DIM=padded, PAGE=k.shape[1], ROWS=made.tile.rows,
        KEYS=made.tile.keys, WINDOW=segments.window or 0, SPLIT=split,
        UPCAST=_interpreted(attend_kernel) and q.dtype == torch.bfloat16,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=made.tile.warps, num_stages=made.tile.stages,
    )  # fmt: skip
    if split:
        rows = tokens * heads
        combine_kernel[(rows,)](
            out, parts, tops, weights, rows, made.splits, HEAD_DIM=head_dim, DIM=padded, num_warps=4
        )
    return out


def _slots(slots: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(slots)).to(device)


def _width(pages: torch.Tensor) -> int:
    return int(pages[0, 0].numel())


def write(
    k_pages: torch.Tensor, v_pages: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: Ints
) -> None:
    """See ``handoff.kernels.write``."""
    if not len(slots):
        return
    k, v = k.contiguous(), v.contiguous()
    width = _width(k_pages)
    write_kernel[(len(slots),)](
        k_pages, v_pages, k, v, _slots(slots, k.device), k.stride(0), v.stride(0),
        WIDTH=width, LANES=triton.next_power_of_2(width),
    )  # fmt: skip


def _addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    values = torch.tensor([each.data_ptr() for each in tensors], dtype=torch.int64)
    return values.to(tensors[0].device)


def _alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Indices of tensors that one launch can serve: same width and type."""
    found: dict[tuple[int, torch.dtype], list[int]] = {}
    for index, each in enumerate(tensors):
        found.setdefault((_width(each), each.dtype), []).append(index)
    return list(found.values())


def _pieces(runs: Sequence[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    """Runs cut into pieces of at most ``PIECE`` slots; the last number of a run is its length."""
    rows = []
    for *starts, count in runs:
        for at in range(0, count, PIECE):
            rows.append([*(start + at for start in starts), min(PIECE, count - at)])
    return torch.tensor(rows, dtype=torch.int64).to(device)


def batches(
    runs: Sequence[tuple[int, int, int]], *, same: bool
) -> list[list[tuple[int, int, int]]]:
    """Runs in order, cut wherever one touches what an earlier one of its batch reads or writes.

    ``same`` says that source and destination are one tensor; only then can they meet. A run that
    overlaps itself goes slot by slot.
    """
    found: list[list[tuple[int, int, int]]] = [[]]
    read: set[int] = set()
    written: set[int] = set()
    for src, dst, count in runs:
        single = same and abs(src - dst) < count and src != dst
        # The copy means "as if read first", so a self-overlap must run from the safe end.
        order = range(count) if dst < src else range(count - 1, -1, -1)
        parts = [(src + at, dst + at, 1) for at in order] if single else [(src, dst, count)]
        for one in parts:
            sources = set(range(one[0], one[0] + one[2])) if same else set()
            targets = set(range(one[1], one[1] + one[2]))
            if targets & (written | read) or sources & written:
                found.append([])
                read, written = set(), set()
            found[-1].append(one)
            read |= sources
            written |= targets
    return [batch for batch in found if batch]


def copy(
    sources: Sequence[torch.Tensor],
    destinations: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int, int]],
) -> None:
    """See ``handoff.kernels.copy``."""
    same = any(a.data_ptr() == b.data_ptr() for a, b in zip(sources, destinations, strict=True))
    for batch in batches(runs, same=same):
        for indices in _alike(destinations):
            into = [destinations[index] for index in indices]
            width = _width(into[0])
            pieces = _pieces(batch, into[0].device)
            copy_kernel[(len(pieces), len(indices))](
                into[0], _addresses([sources[index] for index in indices]), _addresses(into),
                pieces, WIDTH=width, LANES=triton.next_power_of_2(width),
            )  # fmt: skip


def zero(pages: Sequence[torch.Tensor], runs: Sequence[tuple[int, int]]) -> None:
    """See ``handoff.kernels.zero``."""
    if not runs:
        return
    for indices in _alike(pages):
        mine = [pages[index] for index in indices]
        width = _width(mine[0])
        pieces = _pieces(runs, mine[0].device)
        zero_kernel[(len(pieces), len(mine))](
            mine[0], _addresses(mine), pieces, WIDTH=width, LANES=triton.next_power_of_2(width)
        )


def shift(
    pages: Sequence[torch.Tensor],
    runs: Sequence[tuple[int, int]],
    delta: int,
    freqs: torch.Tensor,
) -> None:
    """See ``handoff.kernels.shift``."""
    if not runs:
        return
    angles = delta * freqs.to(torch.float64)
    cos, sin = angles.cos().to(torch.float32), angles.sin().to(torch.float32)
    for indices in _alike(pages):
        mine = [pages[index] for index in indices]
        heads, half = mine[0].shape[2], mine[0].shape[3] // 2
        pieces = _pieces(runs, mine[0].device)
        shift_kernel[(len(pieces), len(mine))](
            mine[0], _addresses(mine), pieces, cos.to(mine[0].device), sin.to(mine[0].device),
            HEADS=heads, HALF=half, LANES=triton.next_power_of_2(half),
        )  # fmt: skip


def gather(pages: torch.Tensor, slots: Ints) -> torch.Tensor:
    """See ``handoff.kernels.gather``."""
    width = _width(pages)
    out = torch.empty((len(slots), *pages.shape[2:]), dtype=pages.dtype, device=pages.device)
    if len(slots):
        gather_kernel[(len(slots),)](
            out,
            pages,
            _slots(slots, pages.device),
            WIDTH=width,
            LANES=triton.next_power_of_2(width),
        )
    return out


def scan(
    decay: torch.Tensor, gain: torch.Tensor, initial: torch.Tensor, q_start: Ints
) -> torch.Tensor:
    """See ``handoff.kernels.scan``."""
    decay, gain, initial = decay.contiguous(), gain.contiguous(), initial.contiguous()
    out = torch.empty_like(gain)
    width = gain.shape[1]
    lanes = min(128, triton.next_power_of_2(width))
    if len(q_start) > 1 and len(gain):
        scan_kernel[(len(q_start) - 1, -(-width // lanes))](
            out, decay, gain, initial, _slots(q_start, gain.device), WIDTH=width, LANES=lanes
        )
    return out
