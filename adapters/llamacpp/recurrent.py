"""The recurrent memory: one state per sequence, at the last computed position (RULES 7)."""

from __future__ import annotations

from handoff.types import NULL

__all__ = ["States"]


class States:
    """Positions and ids of the states; -1 = no state.

    With drafts a sequence owns a second id: the state before a row that verifies drafts, to which
    a rejection goes back (a state cannot be cut).
    """

    def __init__(self, num_seqs: int, drafts: bool) -> None:
        self.per_seq = 2 if drafts else 1
        self.pos = [-1] * num_seqs

    def ids(self, seq: int) -> range:
        """The ids a sequence owns: its state, and the one kept for a rejection."""
        return range(seq * self.per_seq, (seq + 1) * self.per_seq)

    def load(self, seq: int) -> int:
        """The id the next row starts from; ``NULL`` = the zero state."""
        return NULL if self.pos[seq] < 0 else self.ids(seq)[0]

    def advance(self, seq: int, stop: int) -> tuple[tuple[int, int], ...]:
        """``(position, id)`` that a row up to ``stop`` saves."""
        self.pos[seq] = stop - 1
        return ((stop, self.ids(seq)[0]),)

    def remove(self, seq: int, start: int, stop: int | None) -> int:
        """Drop the state if its position lies in ``[start, stop)``; a state is never cut."""
        held = self.pos[seq] >= 0
        if held and start <= self.pos[seq] and (stop is None or self.pos[seq] < stop):
            self.pos[seq] = -1
            return 1
        return 0

    def shift(self, seq: int, start: int, stop: int, delta: int) -> list[int]:
        """Move the position if it lies in ``[start, stop)``; the state itself stays as it is."""
        if delta == 0 or not start <= self.pos[seq] < stop:
            return []
        self.pos[seq] += delta
        return [self.ids(seq)[0]]
