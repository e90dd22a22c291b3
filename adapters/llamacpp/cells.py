"""Cells of a KV cache: which cell holds which position of which sequence (RULES 7).

Follows llama-kv-cache.cpp: a search from ``head``, overwriting of masked cells, purging so that a
sequence's positions have no holes. A *sequence* here is a slot's; it always exists, maybe empty. A
cell's global id is ``stream * size + index``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from handoff.errors import Unsupported
from handoff.types import NULL

__all__ = ["Cells", "Purge", "Run", "runs"]

NONE, MANY = -1, -2  # owners of a cell that is free, or shared by several sequences
_CHUNK = 1024  # cells tested at once by a search

Ints = npt.NDArray[np.int64]
Run = tuple[int, int, int]
"""A sequence, its first position, a count."""


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Stretches of consecutive numbers as ``(first, count)``, in the given order.

    >>> runs([4, 5, 6, 1, 9])
    [(4, 3), (1, 1), (9, 1)]
    """
    found: list[tuple[int, int]] = []
    first = last = None
    for number in numbers:
        if last is not None and first is not None and number == last + 1:
            last = number
            continue
        if last is not None and first is not None:
            found.append((first, last - first + 1))
        first = last = number
    if last is not None and first is not None:
        found.append((first, last - first + 1))
    return found


class Purge(NamedTuple):
    """Positions ``[start, stop)`` of ``seq`` that a write took away.

    ``logged``: the range ``(first, last)`` as upstream logs it if positions not overwritten
    had to go, too; None otherwise.
    """

    seq: int
    start: int
    stop: int
    logged: tuple[int, int] | None


class Cells:
    """The cells of one group: ``streams`` caches of ``size`` cells, tables by position.

    ``window`` is None for full attention: then only empty cells are used.
    """

    def __init__(self, size: int, streams: int, num_seqs: int, window: int | None = None) -> None:
        self.size = size
        self.streams = streams
        self.window = window
        self.pos: Ints = np.full(size * streams, NONE, np.int64)
        self.owner: Ints = np.full(size * streams, NONE, np.int64)
        self.shared: dict[int, set[int]] = {}
        self.head = [0] * streams
        self.used = [0] * streams
        self.tables: list[list[int]] = [[] for _ in range(num_seqs)]
        self.low = [0] * num_seqs
        """First position held, per sequence (the table's holes lie below)."""

    # -- questions -----------------------------------------------------------------------------

    def stream(self, seq: int) -> int:
        """The stream a sequence's cells lie in."""
        return 0 if self.streams == 1 else seq

    def pos_min(self, seq: int) -> int:
        """Smallest position held, -1 if none."""
        return self.low[seq] if self.tables[seq] else NONE

    def pos_max(self, seq: int) -> int:
        """Highest position held, -1 if none."""
        return len(self.tables[seq]) - 1

    def num_usable(self, stream: int) -> int:
        """Cells a search could take now."""
        if self.window is None:
            return self.size - self.used[stream]
        begin = stream * self.size
        return int(np.count_nonzero(self._usable(begin, begin + self.size)))

    def _usable(self, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Which cells of ``[begin, end)`` may be taken: empty, or masked for their one owner."""
        ok: npt.NDArray[np.bool_] = self.pos[begin:end] == NONE
        if self.window is not None:
            owner = self.owner[begin:end]
            top = np.array([len(table) for table in self.tables], np.int64)
            masked = top[np.maximum(owner, 0)] - self.pos[begin:end] >= self.window
            ok |= (owner >= 0) & masked
        return ok

    def find(self, stream: int, count: int) -> list[int] | None:
        """Global ids of the first ``count`` usable cells from ``head`` on, or None: no room."""
        base = stream * self.size
        head = self.head[stream]
        if head > self.used[stream] + 2 * count:
            head = 0
        if count == 1 and head < self.size and self.pos[base + head] == NONE:
            return [base + head]  # a decode, nearly always
        found: list[int] = []
        for first, last in ((head, self.size), (0, head)):
            at = first
            while at < last:
                end = min(last, at + max(_CHUNK, 2 * count))
                usable = np.flatnonzero(self._usable(base + at, base + end))
                found.extend((usable[: count - len(found)] + (base + at)).tolist())
                if len(found) == count:
                    return found
                at = end
        return None

    # -- changes -------------------------------------------------------------------------------

    def write(self, cells: list[int], runs: Sequence[Run]) -> list[Purge]:
        """Give ``cells`` to the positions of ``runs``, in order; returns what that pushed out.

        Cells that were in use lose their old position; what a sequence holds below the highest
        position it lost is removed, so that no range has holes (apply_ubatch).
        """
        index = np.array(cells, np.int64)
        stream = cells[0] // self.size
        lost: dict[int, tuple[int, int]] = {}  # seq -> lowest and highest position overwritten
        taken = index[self.pos[index] != NONE]
        for cell in taken.tolist():
            seq, position = int(self.owner[cell]), int(self.pos[cell])
            self.tables[seq][position] = NULL
            low, high = lost.get(seq, (position, position))
            lost[seq] = min(low, position), max(high, position)
        self.used[stream] += len(cells) - len(taken)
        done = 0
        for seq, start, count in runs:
            part = index[done : done + count]
            self.pos[part] = np.arange(start, start + count)
            self.owner[part] = seq
            self._enter(seq, start, cells[done : done + count])
            done += count
        purges = [self._purge(seq, low, high) for seq, (low, high) in sorted(lost.items())]
        self.head[stream] = cells[-1] % self.size + 1
        return purges

    def _enter(self, seq: int, start: int, cells: list[int]) -> None:
        """Table entries from position ``start`` on; a gap before them is filled with holes."""
        table = self.tables[seq]
        self.low[seq] = min(self.low[seq], start) if table else start
        if start > len(table):
            table.extend([NULL] * (start - len(table)))
        table[start : start + len(cells)] = cells

    def _purge(self, seq: int, low: int, high: int) -> Purge:
        table = self.tables[seq]
        start = min(self.low[seq], low)
        self._settle(seq)
        logged = None
        if table and self.low[seq] <= high:
            logged = (self.low[seq], high)
            self.remove(seq, self.low[seq], high + 1)
        return Purge(seq, start, high + 1, logged)

    def _settle(self, seq: int) -> None:
        """Drop holes at both ends of a table."""
        table = self.tables[seq]
        while table and table[-1] == NULL:
            table.pop()
        low = self.low[seq]
        while low < len(table) and table[low] == NULL:
            low += 1
        self.low[seq] = low if table else 0

    def remove(self, seq: int, start: int, stop: int | None = None) -> int:
        """Take positions ``[start, stop)`` from ``seq``; returns how many it held."""
        table = self.tables[seq]
        stop = len(table) if stop is None else min(stop, len(table))
        cells = [cell for cell in table[max(start, 0) : stop] if cell != NULL]
        if not cells:
            return 0
        if self.shared:
            free = [cell for cell in cells if self._disown(cell, seq)]
        else:
            free = cells
        if stop == len(table):
            del table[max(start, 0) :]
        else:
            table[max(start, 0) : stop] = [NULL] * (stop - max(start, 0))
        self._settle(seq)
        if free:
            index = np.array(free, np.int64)
            self.pos[index] = NONE
            self.owner[index] = NONE
            stream = self.stream(seq)
            self.used[stream] -= len(free)
            self.head[stream] = min(self.head[stream], int(index.min()) % self.size)
        return len(cells)

    def _disown(self, cell: int, seq: int) -> bool:
        """One owner less; True if the cell is empty now."""
        owners = self.shared.get(cell)
        if owners is None:
            return True
        owners.discard(seq)
        if len(owners) == 1:
            self.owner[cell] = owners.pop()
            del self.shared[cell]
        return False

    def shift(self, seq: int, start: int, stop: int, delta: int) -> list[int]:
        """Move positions ``[start, stop)`` down by ``-delta``; returns the cells moved."""
        if delta == 0 or start == stop:
            return []
        assert delta < 0
        table = self.tables[seq]
        stop = min(stop, len(table))
        cells = table[start:stop]
        held = [cell for cell in cells if cell != NULL]
        if any(cell in self.shared for cell in held):
            raise Unsupported("a shift of cells that are shared with another running sequence")
        self.pos[np.array(held, np.int64)] += delta
        gap = max(start, stop + delta)  # what the run leaves empty behind it
        table[gap:stop] = [NULL] * (stop - gap)
        table[start + delta : stop + delta] = cells
        self.low[seq] = min(self.low[seq], max(start + delta, 0))
        self._settle(seq)
        self.head[self.stream(seq)] = 0
        return held

    def copy(self, source: int, target: int) -> list[tuple[int, int]]:
        """``target`` holds what ``source`` holds (seq_cp); pairs of cells whose data is copied.

        Unified: the same cells get one more owner and nothing is copied. Otherwise the target's
        whole stream becomes a copy of the source's.
        """
        self.remove(target, 0)
        table = self.tables[source]
        self.low[target] = self.low[source]
        if self.streams == 1:
            self.tables[target] = list(table)
            for cell in table:
                if cell != NULL:
                    self.shared.setdefault(cell, {source}).add(target)
                    self.owner[cell] = MANY
            return []
        offset = (target - source) * self.size
        self.tables[target] = [cell + offset if cell != NULL else NULL for cell in table]
        here, there = slice(source * self.size, (source + 1) * self.size), target * self.size
        self.pos[there : there + self.size] = self.pos[here]
        self.owner[there : there + self.size] = np.where(self.pos[here] != NONE, target, NONE)
        self.head[target] = self.head[source]
        self.used[target] = self.used[source]
        return [(cell, cell + offset) for cell in table if cell != NULL]

    # -- serialized copies ---------------------------------------------------------------------

    def num_saved(self, seq: int) -> int:
        """Cells that a copy of ``seq`` takes."""
        held = len(self.tables[seq]) - self.low[seq] if self.tables[seq] else 0
        return held if self.window is None else min(held, self.window)

    def saved(self, seq: int) -> tuple[list[int], list[int]]:
        """Cells and positions that a copy of ``seq`` takes, in cell order.

        A window cache keeps only positions that a later token can still see (state_write).
        """
        table = self.tables[seq]
        low = len(table) - self.num_saved(seq)
        index = np.array(table[low:], np.int64)
        held = np.flatnonzero(index != NULL)
        held = held[np.argsort(index[held])]
        return index[held].tolist(), (held + low).tolist()

    def restore(self, seq: int, positions: list[int]) -> tuple[list[int], list[Purge]] | None:
        """Cells for a saved copy, in saved order, and what they pushed out; None if no room.

        The sequence's old content is removed first (state_read).
        """
        self.remove(seq, 0)
        if not positions:
            return [], []
        cells = self.find(self.stream(seq), len(positions))
        if cells is None:
            return None
        return cells, self.write(cells, [(seq, first, count) for first, count in runs(positions)])

    def snapshot(self) -> Any:
        """All of the state, for ``rollback``."""
        return (
            self.pos.copy(),
            self.owner.copy(),
            {cell: set(owners) for cell, owners in self.shared.items()},
            list(self.head),
            list(self.used),
            [list(table) for table in self.tables],
            list(self.low),
        )

    def rollback(self, state: Any) -> None:
        """Back to a ``snapshot``."""
        self.pos, self.owner, self.shared, self.head, self.used, self.tables, self.low = state
