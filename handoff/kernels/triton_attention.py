"""Triton kernels of attention over paged KV: one for extend and decode, one that merges splits.

Rows pack (token, grouped head), so K and V are read once per KV head. Key tiles stand on an
absolute grid (multiples of KEYS) and rows never mix: what a row gets does not depend on how its
prompt was cut into prefix and extend. Hidden keys get probability 0 explicitly; the running maximum
has a finite floor, so a row that sees nothing gives 0 and never NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_kernel", "combine_kernel"]

FLOOR = tl.constexpr(-1.0e30)


@triton.jit
def _tile(
    acc,
    top,
    weight,
    q,
    k_ptr,
    v_ptr,
    table_ptr,
    start,
    lo,
    hi,
    low_row,
    pos_row,
    origin,
    head,
    scale,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of the online softmax over keys ``[start, start + KEYS)`` cut to ``[lo, hi)``."""
    at = start + tl.arange(0, KEYS)
    lanes = tl.arange(0, DIM)
    inside = (at >= lo) & (at < hi)
    place = tl.maximum(at - origin, 0)
    block = tl.load(table_ptr + place // PAGE, mask=inside, other=0).to(tl.int64)
    offset = place % PAGE
    dims = lanes < HEAD_DIM
    keep = inside[:, None] & dims[None, :]
    k_at = k_ptr + block[:, None] * k_block + offset[:, None] * k_slot + head * k_head
    v_at = v_ptr + block[:, None] * v_block + offset[:, None] * v_slot + head * v_head
    k = tl.load(k_at + lanes[None, :], mask=keep, other=0.0)
    # An unwritten slot may hold NaN and 0 x NaN poisons a row: hidden values are loaded as 0.
    v = tl.load(v_at + lanes[None, :], mask=keep, other=0.0)
    if UPCAST:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if MASKED:
        seen = (
            inside[None, :] & (at[None, :] <= pos_row[:, None]) & (at[None, :] >= low_row[:, None])
        )
        score = tl.where(seen, score, FLOOR)
    new_top = tl.maximum(top, tl.max(score, 1))
    probability = tl.exp2(score - new_top[:, None])
    if MASKED:
        probability = tl.where(seen, probability, 0.0)
    fade = tl.exp2(top - new_top)
    weight = weight * fade + tl.sum(probability, 1)
    acc = acc * fade[:, None] + tl.dot(probability.to(v.dtype), v, input_precision=PRECISION)
    return acc, new_top, weight


@triton.jit
def attend_kernel(
    out_ptr,
    top_ptr,
    weight_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    tile_ptr,
    q_start_ptr,
    first_ptr,
    origin_ptr,
    visible_ptr,
    scale,
    split_size,
    split_first,
    tokens,
    heads,
    q_token,
    q_head,
    k_block,
    k_slot,
    k_head,
    v_block,
    v_slot,
    v_head,
    table_row,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (row tiles, KV heads, splits); ``tile_ptr`` holds (segment, first row) pairs.

    ``WINDOW`` 0 means none. Without ``SPLIT`` normalised rows go to ``out``; with it the partial
    sums go to ``out`` ``[splits, tokens, heads, HEAD_DIM]`` in float32 beside their maximum and
    weight, for ``combine_kernel``.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    segment = tl.load(tile_ptr + 2 * tile)
    first_row = tl.load(tile_ptr + 2 * tile + 1)
    begin = tl.load(q_start_ptr + segment)
    count = tl.load(q_start_ptr + segment + 1) - begin
    first = tl.load(first_ptr + segment)
    origin = tl.load(origin_ptr + segment)
    visible = tl.maximum(tl.load(visible_ptr + segment), 0)

    packed = tl.arange(0, ROWS)
    per: tl.constexpr = ROWS // GROUP
    token = first_row + packed // GROUP
    live = (packed < per * GROUP) & (token < count)
    lanes = tl.arange(0, DIM)
    dims = lanes < HEAD_DIM
    query_head = head * GROUP + packed % GROUP
    row = (begin + token).to(tl.int64)
    q_at = q_ptr + row[:, None] * q_token + query_head[:, None] * q_head + lanes[None, :]
    q = tl.load(q_at, mask=live[:, None] & dims[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)

    pos_row = first + token
    last_token = tl.minimum(first_row + per, count) - 1
    hi = first + last_token + 1
    low_row = visible + 0 * pos_row
    lo = visible
    full_lo = visible
    if WINDOW > 0:
        low_row = tl.maximum(low_row, pos_row - WINDOW + 1)
        lo = tl.maximum(lo, first + first_row - WINDOW + 1)
        full_lo = tl.maximum(full_lo, first + last_token - WINDOW + 1)
    full_hi = first + first_row + 1
    if SPLIT:
        lo = tl.maximum(lo, (split_first + split) * split_size)
        hi = tl.minimum(hi, (split_first + split + 1) * split_size)

    acc = tl.zeros([ROWS, DIM], tl.float32)
    top = tl.full([ROWS], FLOOR, tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    table = table_ptr + segment.to(tl.int64) * table_row
    grid_lo = lo // KEYS * KEYS
    # Tiles [a, b) are wholly visible for every row; what is left and right of them is masked.
    a = (tl.maximum(full_lo, lo) + KEYS - 1) // KEYS * KEYS
    b = tl.minimum(full_hi, hi) // KEYS * KEYS
    a = tl.minimum(tl.maximum(a, grid_lo), tl.maximum(hi, grid_lo))
    b = tl.maximum(b, a)
    for start in tl.range(grid_lo, tl.minimum(a, hi), KEYS):
        acc, top, weight = _tile(
            acc, top, weight, q, k_ptr, v_ptr, table, start, lo, hi, low_row, pos_row, origin, head,
            scale, k_block, k_slot, k_head, v_block, v_slot, v_head,
            PAGE, KEYS, DIM, HEAD_DIM, True, UPCAST, PRECISION,
        )  # fmt: skip
    for start in tl.range(a, b, KEYS):
        acc, top, weight = _tile(
            acc, top, weight, q, k_ptr, v_ptr, table, start, lo, hi, low_row, pos_row, origin, head,
            scale, k_block, k_slot, k_head, v_block, v_slot, v_head,
            PAGE, KEYS, DIM, HEAD_DIM, False, UPCAST, PRECISION,
        )  # fmt: skip
    for start in tl.range(b, hi, KEYS):
        acc, top, weight = _tile(
            acc, top, weight, q, k_ptr, v_ptr, table, start, lo, hi, low_row, pos_row, origin, head,
            scale, k_block, k_slot, k_head, v_block, v_slot, v_head,
            PAGE, KEYS, DIM, HEAD_DIM, True, UPCAST, PRECISION,
        )  # fmt: skip

    if SPLIT:
        place = (split * tokens + row) * heads + query_head
        tl.store(top_ptr + place, top, mask=live)
        tl.store(weight_ptr + place, weight, mask=live)
        out_at = out_ptr + place[:, None] * HEAD_DIM + lanes[None, :]
        tl.store(out_at, acc, mask=live[:, None] & dims[None, :])
    else:
        result = acc / tl.where(weight > 0, weight, 1.0)[:, None]
        out_at = out_ptr + (row * heads + query_head)[:, None] * HEAD_DIM + lanes[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=live[:, None] & dims[None, :])


@triton.jit
def combine_kernel(
    out_ptr,
    part_ptr,
    top_ptr,
    weight_ptr,
    rows,
    splits,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
):
    """Merge the splits of one (token, head) row; a split that saw nothing has weight 0."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, DIM)
    dims = lanes < HEAD_DIM
    top = tl.full([1], FLOOR, tl.float32)
    weight = tl.zeros([1], tl.float32)
    acc = tl.zeros([DIM], tl.float32)
    for split in tl.range(0, splits):
        place = split * rows + row
        part_weight = tl.load(weight_ptr + place)
        part_top = tl.load(top_ptr + place)
        part = tl.load(part_ptr + place * HEAD_DIM + lanes, mask=dims, other=0.0)
        new_top = tl.maximum(top, part_top)
        old = tl.exp2(top - new_top)
        new = tl.exp2(part_top - new_top)
        acc = acc * old + part * new
        weight = weight * old + part_weight * new
        top = new_top
    result = acc / tl.where(weight > 0, weight, 1.0)
    tl.store(out_ptr + row * HEAD_DIM + lanes, result.to(out_ptr.dtype.element_ty), mask=dims)
