"""The recurrent memory: one state per sequence, at the last computed position (RULES 7)."""

from __future__ import annotations

from handoff.types import NULL

__all__ = ["States"]


class States:
    """Positions and ids of the states; -1 = no state.

    A sequence owns ``1 + num_drafts`` ids: a row that verifies drafts saves one state per draft, so
    a rejection only changes which id is current.
    """

    def __init__(self, num_seqs: int, num_drafts: int) -> None:
        self.per_seq = 1 + num_drafts
        self.pos = [-1] * num_seqs
        self.current = [seq * self.per_seq for seq in range(num_seqs)]

    def ids(self, seq: int) -> range:
        """The ids a sequence owns."""
        return range(seq * self.per_seq, (seq + 1) * self.per_seq)

    def load(self, seq: int) -> int:
        """The id the next row starts from; ``NULL`` = the zero state."""
        return NULL if self.pos[seq] < 0 else self.current[seq]

    def advance(self, seq: int, stop: int, drafts: int) -> tuple[tuple[int, int], ...]:
        """``(position, id)`` that a row up to ``stop`` saves, the last ``drafts`` one each."""
        first = self.ids(seq)[0]
        saves = tuple((stop - drafts + at, first + at) for at in range(drafts + 1))
        self.pos[seq] = stop - 1
        self.current[seq] = saves[-1][1]
        return saves

    def reject(self, seq: int, tokens: int) -> None:
        """The last ``tokens`` drafts of the last row were wrong."""
        self.pos[seq] -= tokens
        self.current[seq] -= tokens

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
        return [self.current[seq]]
