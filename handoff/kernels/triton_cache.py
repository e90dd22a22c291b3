"""Triton kernels that move and turn cached content: memory bound, one launch for all layers.

Pages are addressed as flat slots of ``WIDTH`` elements. Kernels over several tensors take an int64
array of their addresses.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "copy_kernel",
    "gather_kernel",
    "scan_kernel",
    "shift_kernel",
    "write_kernel",
    "zero_kernel",
]


@triton.jit
def write_kernel(
    k_pages,
    v_pages,
    k_ptr,
    v_ptr,
    slot_ptr,
    k_token,
    v_token,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Row ``program_id(0)`` of k and v goes to its slot; -1 is skipped."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        keep = lanes < WIDTH
        k = tl.load(k_ptr + row * k_token + lanes, mask=keep)
        v = tl.load(v_ptr + row * v_token + lanes, mask=keep)
        tl.store(k_pages + slot * WIDTH + lanes, k, mask=keep)
        tl.store(v_pages + slot * WIDTH + lanes, v, mask=keep)


@triton.jit
def copy_kernel(
    like,
    source_ptr,
    target_ptr,
    run_ptr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Piece ``program_id(0)`` = (source slot, target slot, slots) of tensor ``program_id(1)``."""
    run = run_ptr + 3 * tl.program_id(0)
    src = tl.load(run).to(tl.int64)
    dst = tl.load(run + 1).to(tl.int64)
    count = tl.load(run + 2)
    source = tl.load(source_ptr + tl.program_id(1)).to(like.dtype)
    target = tl.load(target_ptr + tl.program_id(1)).to(like.dtype)
    lanes = tl.arange(0, LANES)
    for at in tl.range(0, count):
        keep = lanes < WIDTH
        value = tl.load(source + (src + at) * WIDTH + lanes, mask=keep)
        tl.store(target + (dst + at) * WIDTH + lanes, value, mask=keep)


@triton.jit
def zero_kernel(like, page_ptr, run_ptr, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Piece ``program_id(0)`` = (first slot, slots) of tensor ``program_id(1)`` becomes zeros."""
    run = run_ptr + 2 * tl.program_id(0)
    first = tl.load(run).to(tl.int64)
    count = tl.load(run + 1)
    pages = tl.load(page_ptr + tl.program_id(1)).to(like.dtype)
    lanes = tl.arange(0, LANES)
    for at in tl.range(0, count):
        nothing = tl.zeros([LANES], like.dtype.element_ty)
        tl.store(pages + (first + at) * WIDTH + lanes, nothing, mask=lanes < WIDTH)


@triton.jit
def shift_kernel(
    like,
    page_ptr,
    run_ptr,
    cos_ptr,
    sin_ptr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
):
    """Turn the keys of piece ``program_id(0)`` in tensor ``program_id(1)``, float32 inside.

    Lane i of the first half of a head is paired with lane i of its second half.
    """
    run = run_ptr + 2 * tl.program_id(0)
    first = tl.load(run).to(tl.int64)
    count = tl.load(run + 1)
    pages = tl.load(page_ptr + tl.program_id(1)).to(like.dtype)
    lanes = tl.arange(0, LANES)
    keep = lanes < HALF
    cos = tl.load(cos_ptr + lanes, mask=keep, other=0.0)
    sin = tl.load(sin_ptr + lanes, mask=keep, other=0.0)
    for at in tl.range(0, count):
        for head in tl.static_range(HEADS):
            key = pages + ((first + at) * HEADS + head) * (2 * HALF) + lanes
            low = tl.load(key, mask=keep, other=0.0).to(tl.float32)
            high = tl.load(key + HALF, mask=keep, other=0.0).to(tl.float32)
            tl.store(key, (low * cos - high * sin).to(like.dtype.element_ty), mask=keep)
            tl.store(key + HALF, (high * cos + low * sin).to(like.dtype.element_ty), mask=keep)


@triton.jit
def gather_kernel(out_ptr, page_ptr, slot_ptr, WIDTH: tl.constexpr, LANES: tl.constexpr):
    """Output row ``program_id(0)`` is the content of its slot."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    lanes = tl.arange(0, LANES)
    keep = lanes < WIDTH
    value = tl.load(page_ptr + slot * WIDTH + lanes, mask=keep)
    tl.store(out_ptr + row * WIDTH + lanes, value, mask=keep)


@triton.jit
def scan_kernel(
    out_ptr,
    decay_ptr,
    gain_ptr,
    initial_ptr,
    q_start_ptr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    """``h = decay * h + gain`` along the rows of request ``program_id(0)``; grid axis 1: lanes."""
    request = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    keep = lanes < WIDTH
    begin = tl.load(q_start_ptr + request)
    end = tl.load(q_start_ptr + request + 1)
    state = tl.load(initial_ptr + request * WIDTH + lanes, mask=keep, other=0.0).to(tl.float32)
    for row in tl.range(begin, end):
        place = row * WIDTH + lanes  # row is int64, as q_start is
        decay = tl.load(decay_ptr + place, mask=keep, other=0.0).to(tl.float32)
        gain = tl.load(gain_ptr + place, mask=keep, other=0.0).to(tl.float32)
        state = decay * state + gain
        tl.store(out_ptr + place, state.to(out_ptr.dtype.element_ty), mask=keep)
