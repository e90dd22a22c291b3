"""Mamba groups in align mode: state blocks, scratch columns, checkpoints (RULES 10).

Column ``i`` of a Mamba table stands for the recurrent state after ``(i + 1) * block_size`` tokens.
Most columns are null: only the running state (with its scratch columns for drafts), the state it
was resumed from and checkpoints have blocks. (single_type_kv_cache_manager.py, scheduler.py)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import NULL, Bind, Cut

from .coordinator import Hit
from .pool import NULL_BLOCK
from .sizes import GroupSpec, Sizes, cdiv, floor_to
from .state import Marks, RequestState

if TYPE_CHECKING:
    from .allocate import KVCache

__all__ = ["checkpoint_at", "grow", "leave", "marks", "needed", "split_chunk"]


def marks(state: RequestState, group: GroupSpec) -> Marks:
    """The request's marks in a group."""
    found = state.mamba.get(group.index)
    if found is None:
        found = state.mamba[group.index] = Marks()
    return found


# -- where chunks end ---------------------------------------------------------------------------


def checkpoint_at(sizes: Sizes, tokens: int, unit: int) -> int:
    """The last multiple of ``unit`` that a repeat of ``tokens`` tokens could hit (``ck``)."""
    if sizes.eagle:
        return max(floor_to(tokens, unit) - unit, 0)
    return max(floor_to(tokens - 1, unit), 0)


def _leaves_checkpoint(sizes: Sizes, group: GroupSpec, start: int, end: int, at: int) -> bool:
    """Whether a chunk ``[start, end)`` can save the state after ``at`` tokens on its way."""
    size, unit = group.block_size, sizes.hash_block
    return (
        group.ckpt_blocks > 0
        and cdiv(end, size) - 2 > (start - 1) // size
        and start % unit == 0
        and start + unit <= at < end
        and (at - start) % group.ckpt_align == 0
    )


def split_chunk(
    sizes: Sizes,
    group: GroupSpec,
    state: RequestState,
    start: int,
    new: int,
    largest: int,
    to_junction: bool,
) -> int:
    """Tokens of a prefill chunk from ``start``, ended where a state must be kept (RULES 10, Split).

    ``largest`` is the largest possible chunk, ``to_junction`` whether the shared-prefix checkpoint
    is in effect. 0 means not schedulable now.
    """
    prompt, known, size = state.prompt_len, state.known, group.block_size
    prefill_end = max(prompt, known - 1)
    if start >= prefill_end:
        return new
    end = start + new
    if end < prefill_end:
        aligned = floor_to(end, size)
        if aligned > start or size <= largest:
            end = aligned
    unit = sizes.hash_block if sizes.fine_grained else sizes.scheduler_block
    one_chunk = end >= prefill_end and _leaves_checkpoint(
        sizes, group, start, end, checkpoint_at(sizes, prefill_end, unit)
    )
    stops = []
    if not one_chunk:
        last = checkpoint_at(sizes, known, size)
        stops.append(last)
        if start % size:
            stops.append(floor_to(start, size) + size)
        tail = checkpoint_at(sizes, prompt, sizes.hash_block)
        if sizes.fine_grained and sizes.hash_block < sizes.scheduler_block and last < tail < prompt:
            stops.append(tail)
    if start < state.junction < end:
        exact = to_junction and state.junction <= prompt
        stops.append(state.junction if exact else start + floor_to(state.junction - start, size))
    end = min([stop for stop in stops if start < stop < end], default=end)
    return max(end - start, 0)


# -- allocation ---------------------------------------------------------------------------------


def _checkpoint(cache: KVCache, state: RequestState, group: GroupSpec, after: int) -> int:
    """Prefix length of the inner checkpoint that the chunk up to ``after`` leaves (0 = none).

    Its column lies behind that of the chunk's first state, so nothing but scratch can be there.
    """
    sizes = cache.sizes
    if not group.ckpt_blocks or not cache.caching:
        return 0
    start = state.resume_at
    at = checkpoint_at(sizes, after, sizes.alignment)
    if not _leaves_checkpoint(sizes, group, start, after, at):
        return 0
    prefill_end = max(state.prompt_len, state.known - 1)
    if cache.options.prefix_cache_retention_interval == 0 and after < prefill_end:
        return 0
    return at


def needed(
    cache: KVCache, state: RequestState, group: GroupSpec, hit: Hit | None, after: int
) -> int:
    """Blocks that ``grow`` would pop, and hit blocks that would leave the queue (RULES 10)."""
    mark = marks(state, group)
    blocks = hit.blocks[group.index] if hit else []
    held = len(state.tables[group.index]) + len(blocks)
    columns = cdiv(after, group.block_size)
    copy = mark.producer or _hits_inside(group, hit)
    point = _checkpoint(cache, state, group, after) > 0
    missing = columns + group.spec_blocks - held
    most = 1 + point + (0 if mark.allocated else group.spec_blocks)
    fresh = min(max(missing, 0), most) + copy
    return fresh + cache.pool.num_idle(blocks)


def _hits_inside(group: GroupSpec, hit: Hit | None) -> bool:
    return hit is not None and hit.tokens % group.block_size > 0 and bool(hit.blocks[group.index])


def grow(
    cache: KVCache, state: RequestState, group: GroupSpec, hit: Hit | None, after: int
) -> None:
    """Blocks for the state after ``after`` tokens (RULES 10, Allocation and CoW)."""
    mark = marks(state, group)
    table = state.tables[group.index]
    held = len(table)
    columns = cdiv(after, group.block_size)
    copy = mark.producer or _hits_inside(group, hit)
    mark.checkpoint = _checkpoint(cache, state, group, after)
    mark.saved = mark.checkpoint
    required = columns + group.spec_blocks
    if required <= held and not copy and not mark.checkpoint:
        return
    if mark.allocated:
        mark.last = held - 1 - group.spec_blocks
    elif held:
        mark.last = held - 1
    keep = required - group.spec_blocks - 1 - bool(mark.checkpoint)
    before = list(table)
    table.extend([NULL_BLOCK] * (keep - held))
    if mark.allocated:
        for column in range(held - group.spec_blocks, held):
            if column < keep:
                table.append(table[column])
                table[column] = NULL_BLOCK
    if copy:
        assert mark.last is not None
        _copy(cache, state, group, mark.last)
        before[mark.last] = table[mark.last]
    missing = required - len(table)
    if missing > 0:
        table.extend(cache.take(missing))
    mark.allocated = True
    _rebind(cache, state, group, before)


def _copy(cache: KVCache, state: RequestState, group: GroupSpec, column: int) -> None:
    """Copy on write: a consumer goes on in a copy, a producer leaves one behind (RULES 8)."""
    table = state.tables[group.index]
    mark = marks(state, group)
    if not mark.producer:
        cache.copy_on_write(state, group, column)
        return
    mark.producer = False
    own = table[column]
    (fresh,) = cache.take(1)
    cache.insertion.move(state, group, own, fresh)
    cache.note_copy(group, own, fresh, hold=own)


def _rebind(cache: KVCache, state: RequestState, group: GroupSpec, before: list[int]) -> None:
    """Tell the table's changes: scratch blocks that moved, new blocks, new holes."""
    table, old = state.tables[group.index], {NULL_BLOCK, *before}
    changed = [
        column
        for column, block in enumerate(table)
        if column >= len(before) or before[column] != block
    ]
    first = 0
    while first < len(changed):
        column, last = changed[first], first + 1
        fresh = table[column] not in old
        while (
            last < len(changed)
            and changed[last] == changed[last - 1] + 1
            and (table[changed[last]] not in old) == fresh
        ):
            last += 1
        ids = tuple(block or NULL for block in table[column : column + last - first])
        cache.out.ops.append(Bind(state.seq, group.name, column, ids, fresh))
        first = last


# -- release ----------------------------------------------------------------------------------


def leave(cache: KVCache, state: RequestState, group: GroupSpec, processed: int) -> None:
    """Free states that ``processed`` tokens have left behind (RULES 7a, 10)."""
    mark = marks(state, group)
    table = state.tables[group.index]
    stop = min(group.skipped(processed) // group.block_size, len(table))
    columns = [c for c in range(stop - 1, mark.low - 1, -1) if table[c] != NULL_BLOCK]
    mark.low = max(mark.low, stop)
    _drop(cache, state, group, columns)
    last = mark.last
    if last is None or last >= cdiv(processed, group.block_size) - 1:
        return
    if last < len(table) and table[last] != NULL_BLOCK:
        _drop(cache, state, group, [last])


def _drop(cache: KVCache, state: RequestState, group: GroupSpec, columns: list[int]) -> None:
    table = state.tables[group.index]
    if not columns:
        return
    cache.pool.free([table[column] for column in columns])
    for column in columns:
        table[column] = NULL_BLOCK
        cache.out.ops.append(Cut(state.seq, group.name, column, column + 1))
