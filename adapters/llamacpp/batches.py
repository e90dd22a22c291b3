"""Batches and micro-batches: how the tokens of several slots are cut into passes (RULES 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Work", "consecutive", "equal", "split_at"]


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens ``[start, start + count)`` of a slot in a batch; the last ``drafts`` are guesses."""

    slot: int
    start: int
    count: int
    drafts: int = 0

    def part(self, skip: int, count: int) -> Work:
        """``count`` tokens after the first ``skip`` of a piece without guesses."""
        return Work(self.slot, self.start + skip, count)


def consecutive(work: Sequence[Work], size: int) -> Iterable[list[Work]]:
    """Runs of ``size`` tokens in batch order."""
    batch: list[Work] = []
    room = size
    for item in work:
        for piece in _pieces(item, room, size):
            if piece.count > room and batch:
                yield batch
                batch, room = [], size
            batch.append(piece)
            room -= piece.count
            if room <= 0:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


def _pieces(item: Work, room: int, size: int) -> Iterable[Work]:
    if item.drafts:  # a row that verifies drafts stays whole; upstream may spread it
        yield item
        return
    done = 0
    while done < item.count:
        count = min(item.count - done, room)
        yield item.part(done, count)
        done += count
        room = size


def equal(work: Sequence[Work], size: int, in_order: bool) -> Iterable[list[Work]]:
    """Equally many tokens of each sequence, as many sequences as have tokens left.

    ``in_order``: only consecutive, increasing slot ids go together (separate streams). A row that
    verifies drafts stays whole; upstream may spread it over passes, which computes the same.
    """
    left = list(work)
    while left:
        taken: list[Work] = []
        for item in left:
            if len(taken) < size and (not in_order or not taken or item.slot == taken[-1].slot + 1):
                taken.append(item)
        shortest = min((item.count for item in taken if not item.drafts), default=0)
        count = min(shortest, max(1, size // len(taken)))
        yield [item if item.drafts else item.part(0, count) for item in taken]
        left = [
            item.part(count, item.count - count) if item in taken else item
            for item in left
            if item not in taken or (not item.drafts and item.count > count)
        ]


def split_at(work: Sequence[Work], limit: int) -> tuple[list[Work], list[Work]]:
    """The first ``limit`` tokens of a batch, and what is left."""
    head: list[Work] = []
    for at, item in enumerate(work):
        if item.count <= limit or (item.drafts and not head):
            head.append(item)
            limit -= item.count
            continue
        tail = list(work[at + 1 :])
        if limit and not item.drafts:
            head.append(item.part(0, limit))
            item = item.part(limit, item.count - limit)
        return head, [item, *tail]
    return head, []
