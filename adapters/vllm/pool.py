"""One pool of blocks for all groups, with one free queue and the map from keys to blocks.

A block that nobody holds stays in the free queue with its keys: it can be hit until it is handed
out again, which is the only moment of eviction (RULES 4; block_pool.py, kv_cache_utils.py).

This is the plain pool: an id, a key, a link. It is reached through the methods below only, so that
a representation by runs can replace it; the plain one is then its oracle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from handoff.index.order import LinkedQueue
from handoff.store import blocks

from .keys import prefix_length

__all__ = ["NULL_BLOCK", "BlockPool"]

NULL_BLOCK = 0
"""Upstream's null block: a hole in a table. Never handed out, never counted."""


class BlockPool:
    """Counts, keys and the free queue of the blocks ``1 .. num_blocks - 1``.

    Every block is held (count > 0) or in the free queue, never both.
    """

    __slots__ = ("evicted", "extra", "holders", "index", "primary", "queue")

    def __init__(self, num_blocks: int) -> None:
        self.holders = blocks.BlockPool(num_blocks)
        self.queue = LinkedQueue(num_blocks, range(1, num_blocks))
        self.primary = [0] * num_blocks  # 0: no key
        self.extra: dict[int, list[int]] = {}  # further keys of a block, in order of insertion
        self.index: dict[int, int | list[int]] = {}  # key -> block, or blocks in order of insertion
        self.evicted: list[int] = []
        """Blocks that lost their keys by re-allocation, until somebody takes note and clears it."""

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self.queue)

    # -- holders ----------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks from the front of the queue; each loses all its keys."""
        ids = self.queue.pop_front_many(count)
        self.holders.take_many(ids)
        primary, pop = self.primary, self.index.pop
        for block in ids:
            key = primary[block]
            if key:
                self.evicted.append(block)
                if self.extra:
                    self.forget(block)
                    continue
                primary[block] = 0
                present = pop(key)
                if present != block:
                    self._keep_others(key, present, block)
        return ids

    def touch(self, ids: Iterable[int]) -> None:
        """One more holder for each block; idle ones leave the queue, wherever they stand."""
        self.queue.remove_many(self.holders.share_many([b for b in ids if b != NULL_BLOCK]))

    def free(self, ids: Sequence[int]) -> None:
        """One holder less for each block, in order.

        Of those that become idle the unkeyed ones go to the front of the queue (they are reused
        first), the keyed ones to the back, each kind in the given order.
        """
        idle = self.holders.drop_many(ids)
        primary = self.primary
        keyed = [block for block in idle if primary[block]]
        if len(keyed) < len(idle):
            self.queue.push_front_many([block for block in idle if not primary[block]])
        self.queue.push_back_many(keyed)

    def num_idle(self, ids: Sequence[int]) -> int:
        """How many of the blocks nobody holds (null blocks do not count)."""
        counts = self.holders.counts
        return [counts[block] for block in ids].count(0) - ids.count(NULL_BLOCK)

    # -- keys -------------------------------------------------------------------------------

    def find(self, key: int) -> int | None:
        """The block that got this key first and still has it; changes nothing."""
        found = self.index.get(key)
        return found if found is None or type(found) is int else found[0]  # type: ignore[index]

    def insert(self, key: int, block: int) -> bool:
        """Make the block findable under the key; False if it is already.

        The first key is the primary one. A key of a longer prefix replaces all older ones
        ("promotion"), others are extra keys.
        """
        old = self.primary[block]
        if not old:
            self.primary[block] = key
            self._register(key, block)
            return True
        if key == old or key in self.extra.get(block, ()):
            return False
        if prefix_length(old) < prefix_length(key):
            self.forget(block)
            return self.insert(key, block)
        self.extra.setdefault(block, []).append(key)
        self._register(key, block)
        return True

    def insert_new(self, keys: range, ids: Sequence[int]) -> bool:
        """Key blocks of which none is null or has a key yet; else False, and nothing happens."""
        primary = self.primary
        if NULL_BLOCK in ids or any([primary[block] for block in ids]):
            return False
        setdefault = self.index.setdefault
        for key, block in zip(keys, ids):
            primary[block] = key
            present = setdefault(key, block)
            if present != block:
                self._add_duplicate(key, present, block)
        return True

    def keys_of(self, block: int) -> list[int]:
        """All keys of a block, the primary one first."""
        first = self.primary[block]
        return [first, *self.extra.get(block, ())] if first else []

    def forget(self, block: int) -> None:
        """Remove all keys of a block."""
        first = self.primary[block]
        if not first:
            return
        self.primary[block] = 0
        self._unregister(first, block)
        if self.extra:
            for key in self.extra.pop(block, ()):
                self._unregister(key, block)

    def reset(self) -> bool:
        """Remove all keys; False, and nothing happens, while any block is held (RULES 13)."""
        if self.holders.num_held:
            return False
        self.primary = [0] * len(self.primary)
        self.extra.clear()
        self.index.clear()
        return True

    def num_keyed(self) -> int:
        """Number of blocks that carry a key."""
        return sum(1 for key in self.primary if key)

    def _register(self, key: int, block: int) -> None:
        present = self.index.setdefault(key, block)
        if present != block:
            self._add_duplicate(key, present, block)

    def _add_duplicate(self, key: int, present: int | list[int], block: int) -> None:
        """Keep a further block of a key behind those inserted before."""
        if type(present) is list:
            present.append(block)
        else:
            self.index[key] = [present, block]  # type: ignore[list-item]

    def _unregister(self, key: int, block: int) -> None:
        present = self.index.pop(key)
        if present != block:
            self._keep_others(key, present, block)

    def _keep_others(self, key: int, present: int | list[int], block: int) -> None:
        """The duplicates of ``block`` keep the key that was just taken out."""
        assert type(present) is list
        present.remove(block)
        self.index[key] = present if len(present) > 1 else present[0]
