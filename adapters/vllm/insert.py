"""What becomes findable, and when: keys are inserted at scheduling time (RULES 7b, 8, 10).

(kv_cache_coordinator.py, single_type_kv_cache_manager.py, block_pool.py)
"""

from __future__ import annotations

from collections.abc import Sequence

from handoff.types import Event

from .keys import prefix_length
from .mamba import checkpoint_at, marks
from .options import VllmOptions
from .pool import NULL_BLOCK, BlockPool
from .retention import keep_all, retained
from .sizes import GroupSpec, Sizes, cdiv, floor_to
from .state import Outbox, RequestState

__all__ = ["MOVED_EXTRA", "Insertion"]

MOVED_EXTRA = "10, extra key moved"
"""Rule of an insert event for a key that only moved and is not the block's primary one."""


class Insertion:
    """Gives blocks their keys and tells which became findable."""

    def __init__(self, options: VllmOptions, sizes: Sizes, pool: BlockPool, out: Outbox) -> None:
        self._sizes = sizes
        self._pool = pool
        self._out = out
        self._interval = options.prefix_cache_retention_interval
        self._caching = options.enable_prefix_caching
        self._to_junction = options.enable_mamba_shared_prefix_checkpoint and sizes.fine_grained
        self._whole_blocks = all(
            group.cacheable and group.block_size == sizes.hash_block and group.type != "mamba"
            for group in sizes.groups
        )
        self.keyed_now: set[int] = set()
        """Mamba blocks keyed in this step: their state does not exist yet, nobody may hit it."""

    def insert(self, state: RequestState, tokens: int) -> None:
        """Make the blocks of the first ``tokens`` tokens findable, as far as rules allow (7b)."""
        sizes = self._sizes
        if not self._caching:
            return
        if self._whole_blocks and tokens // sizes.hash_block <= min(state.cached):
            return  # no block was completed
        for group in sizes.groups:
            if not group.cacheable:
                continue
            cacheable = self._cacheable(group, tokens)
            self._insert_blocks(state, group, cacheable)
            if group.type == "mamba":
                self._insert_checkpoint(state, group)
                self._insert_state(state, group, cacheable)
            elif group.is_full and group.block_size > sizes.hash_block:
                self._insert_tail(state, group, cacheable)

    def move(self, state: RequestState, group: GroupSpec, source: int, target: int) -> None:
        """All keys of a block go to another one, in the same order."""
        keys = self._pool.keys_of(source)
        self._pool.forget(source)
        for index, key in enumerate(keys):
            self._pool.insert(key, target)
            self._tell(state, group, (target,), prefix_length(key), MOVED_EXTRA if index else "10")

    def _cacheable(self, group: GroupSpec, tokens: int) -> int:
        """How many of ``tokens`` computed tokens may be keyed in a group (RULES 7b)."""
        sizes = self._sizes
        sure = max(0, tokens - sizes.uncertain)
        if len(sizes.groups) == 1:
            return sure
        aligned = tokens if sizes.fine_grained else floor_to(tokens, sizes.scheduler_block)
        if not group.eagle or not aligned:
            return aligned
        base = sure if sizes.fine_grained else floor_to(sure, sizes.scheduler_block)
        return min(sure, base + group.block_size)

    def _insert_blocks(self, state: RequestState, group: GroupSpec, tokens: int) -> None:
        """Keys for the complete blocks that were not looked at yet, unless null or masked."""
        size = group.block_size
        first, stop = state.cached[group.index], tokens // size
        if first >= stop:
            return
        state.cached[group.index] = stop
        table = state.tables[group.index]
        mask = retained(group, self._sizes, self._interval, state)
        insert, dense = self._pool.insert, mask is keep_all
        keyed: list[int] = []
        column = first
        for run in state.keys.runs(group.index, size, first, stop):
            ids = table[column : column + len(run)]
            if dense and self._pool.insert_new(run, ids):
                keyed += ids
                column += len(ids)
                continue
            for key, block in zip(run, ids):
                column += 1
                if block and mask(column - 1) and insert(key, block):
                    keyed.append(block)
                elif keyed:
                    self._tell(state, group, keyed, (column - 1) * size)
                    keyed = []
        if keyed:
            self._tell(state, group, keyed, stop * size)

    def _insert_tail(self, state: RequestState, group: GroupSpec, tokens: int) -> None:
        """Attach the prompt's last hash boundary to the full-attention block it lies in (8)."""
        end = state.prompt_len if group.eagle else state.prompt_len - 1
        length = floor_to(end, self._sizes.hash_block)
        if 0 < length <= tokens and length % group.block_size:
            block = state.tables[group.index][length // group.block_size]
            self._insert_one(state, group, block, length, "8")

    def _insert_checkpoint(self, state: RequestState, group: GroupSpec) -> None:
        """Key the state that the chunk saved on its way, if someone is expected there (10)."""
        mark, sizes = marks(state, group), self._sizes
        at = mark.checkpoint
        if not at:
            return
        mark.checkpoint = 0
        block = state.tables[group.index][cdiv(state.scheduled_to, group.block_size) - 2]
        wanted = (checkpoint_at(sizes, state.prompt_len, sizes.alignment), state.junction)
        interval = self._interval
        dense = interval is None or (interval > 0 and at % interval == 0)
        keep = at in wanted or (dense and at % group.block_size == 0)
        if not keep or self._pool.primary[block] != state.keys.key(at, group.index):
            self._pool.forget(block)
        if keep:
            self._insert_one(state, group, block, at, "10")

    def _insert_state(self, state: RequestState, group: GroupSpec, tokens: int) -> None:
        """Key the state after ``tokens`` tokens where the prompt ends or a junction lies (10).

        If it lies inside a block the request becomes a producer: it will leave a copy behind.
        """
        sizes = self._sizes
        if tokens <= 0 or tokens % sizes.hash_block:
            return
        at_end = tokens == checkpoint_at(sizes, state.prompt_len, sizes.hash_block)
        at_junction = self._to_junction and tokens == state.junction and tokens <= state.prompt_len
        column = cdiv(tokens, group.block_size) - 1
        block = state.tables[group.index][column]
        if not (at_end or at_junction) or block == NULL_BLOCK:
            return
        self._insert_one(state, group, block, tokens, "10")
        if tokens % group.block_size:
            marks(state, group).producer = True
            state.cached[group.index] = column

    def _insert_one(
        self, state: RequestState, group: GroupSpec, block: int, length: int, rule: str
    ) -> None:
        if self._pool.insert(state.keys.key(length, group.index), block):
            self._tell(state, group, (block,), length, rule)

    def _tell(
        self,
        state: RequestState,
        group: GroupSpec,
        ids: Sequence[int],
        tokens: int,
        rule: str = "7b",
    ) -> None:
        """Note that ``ids`` became findable, the last of them as the prefix of ``tokens``."""
        if group.type == "mamba":
            self.keyed_now.update(ids)
        self._out.events.append(
            Event("insert", group.name, tuple(ids), state.seq, state.id, tokens, rule)
        )
