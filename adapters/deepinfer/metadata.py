"""The index tables that DeepInfer's kernels get for one step (RULES 5, 6).

Nothing is planned here: rows are given, slots and ranges follow. The adapter's own Steps say the
same with spans and operations; these tables are upstream's form of it, for people and recordings
(csrc/engine/input_metadata/*.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .options import Options
from .replay import Kept, kept
from .window import Ints, Place, decode_window, history, lowest_visible, pivots, ring_writes

__all__ = ["Compact", "DecodeTables", "PromptTables", "Rows"]


class Rows(NamedTuple):
    """``q`` rows of one sequence ending at ``k``, with what the tables need of it."""

    q: int
    k: int
    full_len: int
    table: tuple[int, ...]
    state: int
    valid_start: int = 0

    @property
    def start(self) -> int:
        """First position."""
        return self.k - self.q


def _slots(table: Items[int], indices: Ints, per_block: int) -> Ints:
    """Slots of compressed indices through a block table."""
    return np.asarray(table)[indices // per_block] * per_block + indices % per_block


@dataclass(frozen=True, slots=True)
class Compact:
    """Consumer tables of a compact prefill: only kept rows, in batch order."""

    cu: list[int]
    places: Ints
    positions: Ints
    pivots: Ints
    ring_writes: Ints
    clips: list[int]


class PromptTables:
    """Tables of a prefill step over the rows of all its sequences."""

    def __init__(self, options: Options, rows: Items[Rows]) -> None:
        self.options = options
        self.rows = tuple(rows)
        self.window = options.shape.window_size
        self.ring = options.ring_size

    @property
    def refused(self) -> bool:
        """Upstream builds no tables when the kept tail is shorter than window + backtrack."""
        return self.options.truncates and self.options.keep < self.options.least_keep

    # -- compressed KV ----------------------------------------------------------------------

    def compressed_writes(self, ratio: int) -> Ints:
        """Slots written; one -1 for a sequence that completes no compressed token."""
        per_block = self.options.block_size // ratio
        found = []
        for row in self.rows:
            indices = np.arange(row.start // ratio, row.k // ratio)
            found.append(_slots(row.table, indices, per_block) if len(indices) else np.array([-1]))
        return np.concatenate(found)

    def gathered(self, row: Rows, ratio: int) -> int:
        """Length of a sequence among all gathered keys; an empty one takes a zero row."""
        return max(1, row.k // ratio)

    def gathered_length(self, ratio: int) -> int:
        """All gathered keys."""
        return sum(self.gathered(row, ratio) for row in self.rows)

    def compressed_loads(self, ratio: int) -> list[tuple[int, int, int, int]]:
        """Pieces ``(block or -1, from, to, destination)``, one block at most each."""
        per_block = self.options.block_size // ratio
        found, dst = [], 0
        for row in self.rows:
            count = row.k // ratio
            for at in range(0, count, per_block):
                piece = min(per_block, count - at)
                found.append((row.table[at // per_block], 0, piece, dst + at))
            if not count:
                found.append((-1, 0, 1, dst))
            dst += self.gathered(row, ratio)
        return found

    def visible(self, ratio: int, clips: Items[int] | None = None) -> tuple[Ints, Ints]:
        """``(base, count)`` of the gathered keys that each (kept) row sees."""
        bases, counts, base = [], [], 0
        for at, row in enumerate(self.rows):
            first = row.start + (clips[at] if clips else 0)
            positions = np.arange(first, row.k)
            counts.append((positions + 1) // ratio)
            bases.append(np.full(row.k - first, base))
            base += self.gathered(row, ratio)
        return np.concatenate(bases), np.concatenate(counts)

    # -- window -----------------------------------------------------------------------------

    def positions(self) -> Ints:
        """Position of every row."""
        return np.concatenate([np.arange(row.start, row.k) for row in self.rows])

    def ring_writes(self) -> Ints:
        """Ring slot of every row, -1 where only later rows survive."""
        return np.concatenate(
            [ring_writes(row.state, row.start, row.k, self.ring) for row in self.rows]
        )

    def history(self) -> list[tuple[int, int, int, int]]:
        """Window tokens loaded before the rows, W for each sequence."""
        return [
            piece
            for at, row in enumerate(self.rows)
            for piece in history(
                row.state, row.start, row.valid_start, self.window, self.ring, at * self.window
            )
        ]

    def pivots(self) -> Ints:
        """What each row sees through the window, without truncation."""
        return self._pivots([Kept(0, 0)] * len(self.rows))

    def masked(self) -> Ints:
        """What each row sees through a consumer window: nothing below R."""
        return self._pivots([Kept(0, self._kept(row).edge) for row in self.rows])

    def compact(self) -> Compact:
        """Consumer tables of the rows that ``compact`` keeps."""
        parts = [self._kept(row) for row in self.rows]
        clips = [part.clip for part in parts]
        cu = np.cumsum([0, *(row.q - clip for row, clip in zip(self.rows, clips))]).tolist()
        places, positions, writes, first = [], [], [], 0
        for row, part in zip(self.rows, parts):
            places.append(first + np.arange(part.clip, row.q))
            kept_positions = np.arange(row.start + part.clip, row.k)
            positions.append(kept_positions)
            slots = ring_writes(row.state, row.start, row.k, self.ring)[part.clip :]
            writes.append(np.where(kept_positions >= part.edge, slots, -1))
            first += row.q
        return Compact(
            cu,
            np.concatenate(places),
            np.concatenate(positions),
            self._pivots(parts),
            np.concatenate(writes),
            clips,
        )

    def _kept(self, row: Rows) -> Kept:
        return kept(self.options, row.full_len, row.start, row.k)

    def _pivots(self, parts: Items[Kept]) -> Ints:
        found, own = [], len(self.rows) * self.window
        for at, (row, part) in enumerate(zip(self.rows, parts)):
            floor = max(part.edge, row.valid_start)
            lows = lowest_visible(row.start, row.k, self.window, floor)
            place = Place(at * self.window, own - part.clip)
            found.append(pivots(row.start, self.window, lows, place)[part.clip :])
            own += row.q - part.clip
        return np.concatenate(found)

    # -- context parallelism ----------------------------------------------------------------

    def mirror_length(self, counts: Items[int] | None = None) -> int:
        """Padded rows of one rank, over all rows or over the kept ``counts``."""
        slices = 2 * self.options.cp
        return 2 * sum(-(-n // slices) for n in counts or [row.q for row in self.rows])

    def contribution_length(self, clips: Items[int]) -> int:
        """Most kept rows of any rank; rank r holds slices r and ``2 cp - 1 - r`` of each chunk."""
        cp = self.options.cp
        totals = [0] * cp
        for row, clip in zip(self.rows, clips):
            size = -(-row.q // (2 * cp))
            for rank in range(cp):
                for piece in (rank, 2 * cp - 1 - rank):
                    first, last = piece * size, min((piece + 1) * size, row.q)
                    totals[rank] += max(0, last - max(first, clip))
        return max(totals)


class DecodeTables:
    """Tables of a decode step."""

    def __init__(self, options: Options, rows: Items[Rows]) -> None:
        self.options = options
        self.rows = tuple(rows)

    def positions(self) -> Ints:
        """Position of every row."""
        return np.concatenate([np.arange(row.start, row.k) for row in self.rows])

    def ring_writes(self) -> Ints:
        """Ring slot of every row."""
        ring = self.options.ring_size
        return np.concatenate([ring_writes(row.state, row.start, row.k, ring) for row in self.rows])

    def compressed_writes(self, ratio: int) -> Ints:
        """Slots of the rows that complete a compressed token, -1 for the others."""
        per_block = self.options.block_size // ratio
        found = []
        for row in self.rows:
            positions = np.arange(row.start, row.k)
            done = (positions + 1) % ratio == 0
            indices = np.where(done, positions // ratio, 0)
            found.append(np.where(done, _slots(row.table, indices, per_block), -1))
        return np.concatenate(found)

    def windows(self) -> list[tuple[int, int]]:
        """``(first ring slot, count)`` each row sees."""
        window, ring = self.options.shape.window_size, self.options.ring_size
        return [
            decode_window(row.state, position, window, ring)
            for row in self.rows
            for position in range(row.start, row.k)
        ]

    def visible(self, ratio: int) -> tuple[Ints, Ints]:
        """``(base, count)``: every row has room for the longest table and one block more."""
        longest = max(len(row.table) for row in self.rows) + 1
        counts = (self.positions() + 1) // ratio
        return np.arange(len(counts)) * (longest * self.options.block_size // ratio), counts
