"""Blocks of one window's pools and the order in which idle ones are taken.

(RULES 2, 6 and 7; evictionPolicy.cpp)
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from handoff.errors import HandoffError
from handoff.index.order import LinkedQueue

from .keys import BlockKey

if TYPE_CHECKING:
    from .tree import Node

__all__ = ["DEFAULT_PRIORITY", "HOST", "PRIMARY", "Block", "EvictionPolicy", "NoFreeBlock"]

DEFAULT_PRIORITY = 35
PRIMARY, HOST = 0, 1


class NoFreeBlock(HandoffError):
    """No primary block is free; scheduling must prevent it (RULES 5)."""


class Block:
    """An id with a place in memory: ``slot`` of the pool of ``level`` (they change by off-load).

    ``key`` says what the block holds (kept when it leaves the tree), ``full`` that it holds
    ``tokens_per_block`` tokens, ``node`` where it can be found. ``expires`` is the end of its
    priority in milliseconds.
    """

    __slots__ = (
        *("duration", "expires", "full", "ident", "key", "level", "node"),
        *("priority", "queued", "slot"),
    )

    def __init__(self, ident: int, level: int, slot: int) -> None:
        self.ident = ident
        self.level = level
        self.slot = slot
        self.key: BlockKey | None = None
        self.full = False
        self.node: Node | None = None
        self.priority = DEFAULT_PRIORITY
        self.duration: float | None = None
        self.expires: float | None = None
        self.queued = False

    @property
    def held(self) -> int:
        """Number of tokens the block holds, 0 if it never held any."""
        return self.key.length if self.key is not None else 0

    @property
    def is_leaf(self) -> bool:
        """No other block can be found below this one; children without a value count (RULES 2)."""
        return self.node is None or not self.node.children


class EvictionPolicy:
    """Idle blocks: one first-in first-out queue per level and priority.

    The next victim is the front of the first non-empty queue, priorities ascending. There is no
    leaf test: leaves go first because a finished sequence releases its blocks last one first.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self._blocks = blocks
        self._queues: tuple[dict[int, LinkedQueue], dict[int, LinkedQueue]] = ({}, {})
        self._priorities: tuple[list[int], list[int]] = ([], [])
        self._expiring: dict[int, Block] = {}
        self.num_free = [0, 0]
        self.now = 0.0
        """Virtual clock in milliseconds."""
        for block in blocks:
            self._link(block, False)

    def claim(self, block: Block, priority: int | None, duration: float | None) -> None:
        """Takes a block out of its queue; sets the priority if given, the duration always."""
        if block.queued:
            self._unlink(block)
        if priority is not None:
            block.priority = priority
        block.duration = duration

    def release(self, block: Block, to_front: bool = False) -> None:
        """Puts an idle block into the queue of its priority; a duration starts to run."""
        self._link(block, to_front)
        if block.duration is not None and block.priority != DEFAULT_PRIORITY:
            block.expires = self.now + block.duration
            self._expiring[block.ident] = block

    def victim(self, level: int) -> Block:
        """The next block to be taken; raises ``NoFreeBlock``."""
        for priority in self._priorities[level]:
            queue = self._queues[level][priority]
            if len(queue):
                return self._blocks[queue.front()]
        raise NoFreeBlock("no free block: upstream throws here, too; enlarge the pool")

    def refresh(self) -> None:
        """Moves every expired idle block to the back of the default queue (RULES 7)."""
        if not self._expiring:
            return
        due = [
            (block.expires, ident)
            for ident, block in self._expiring.items()
            if block.expires is not None and block.expires <= self.now
        ]
        for _, ident in sorted(due):
            block = self._blocks[ident]
            self._unlink(block)
            block.priority = DEFAULT_PRIORITY
            block.duration = None
            self._link(block, False)

    def queues(self, level: int) -> dict[int, list[int]]:
        """Idle ids by priority, next victim first; empty queues are left out."""
        found = {p: list(self._queues[level][p]) for p in self._priorities[level]}
        return {priority: ids for priority, ids in found.items() if ids}

    def _link(self, block: Block, to_front: bool) -> None:
        queues, priority = self._queues[block.level], block.priority
        queue = queues.get(priority)
        if queue is None:
            queue = queues[priority] = LinkedQueue(len(self._blocks))
            insort(self._priorities[block.level], priority)
        if to_front:
            queue.push_front(block.ident)
        else:
            queue.push_back(block.ident)
        block.queued = True
        self.num_free[block.level] += 1

    def _unlink(self, block: Block) -> None:
        self._queues[block.level][block.priority].remove(block.ident)
        block.queued = False
        self.num_free[block.level] -= 1
        if block.expires is not None:
            block.expires = None
            del self._expiring[block.ident]
