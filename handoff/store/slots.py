"""What the tag pass knows: tags of slots, causes of taint, how far a table has been verified."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .tables import Ints

__all__ = ["CAUSES", "SHIFTED", "VOID", "ZERO", "Reader", "Slots", "names_of"]

VOID, ZERO = 0, -1
"""Labels of slots without a position; position p has label p + 1."""

CAUSES = ("text", "moved", "lora", "state", "zeros", "hidden", "salt")
"""Why content is not what a cold run would hold.

* ``text``: another text stands before it, and nobody shifted it; ``moved``: it was shifted here.
* ``lora``: same text under another LoRA.
* ``state``: a recurrent state of another text.
* ``zeros``: zeros at positions that have a text.
* ``hidden``: fewer keys were visible than the cold rule shows.
* ``salt``: KV of another isolation key. The values are right, the secrecy is not; counted only
  where ``salts`` are given.
"""

SHIFTED = 128
"""No taint, but a mark beside it: the slot's label was moved at some time."""


def names_of(cause: int) -> Iterable[str]:
    """Names of the causes in a slot's taint: cause k is bit k."""
    return (name for at, name in enumerate(CAUSES) if cause >> at & 1)


class Slots:
    """Tags of one group's slots in one pool. Fresh memory is void, and costs nothing until used."""

    __slots__ = ("epoch", "label", "name", "size", "stamp", "taint")

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.label = np.zeros(blocks * size, np.int32)
        self.name = np.zeros(blocks * size, np.uint64)
        self.taint = np.zeros(blocks * size, np.uint8)
        self.stamp = np.zeros(blocks, np.int64)
        """Epoch in which an operation last changed a block."""
        self.epoch = 0

    def touch(self, slots: Ints) -> None:
        """Readers of these slots have to look again."""
        self.epoch += 1
        self.stamp[slots // self.size] = self.epoch


class Reader:
    """What one sequence has verified in one group: ``[first, last)``, taint as runs."""

    __slots__ = ("epoch", "first", "last", "runs")

    def __init__(self) -> None:
        self.first = self.last = 0
        self.epoch = 0
        self.runs: list[tuple[int, int, int]] = []

    def reset(self) -> None:
        """Nothing is verified any more."""
        self.first = self.last = 0
        self.runs.clear()

    def keep(self, first: int, last: int) -> None:
        """Forget what was verified outside of ``[first, last)``."""
        if self.runs and last < self.last:
            self.runs = [(a, min(b, last), cause) for a, b, cause in self.runs if a < last]
        self.first = max(self.first, first)
        self.last = max(self.first, min(self.last, last))

    def note(self, first: int, last: int, cause: int) -> None:
        """Positions ``[first, last)`` are tainted."""
        if self.runs and self.runs[-1][1:] == (first, cause):
            first = self.runs.pop()[0]
        self.runs.append((first, last, cause))

    def cause(self, first: int, last: int) -> int:
        """Every cause of taint in ``[first, last)``."""
        found = 0
        for start, stop, cause in self.runs:
            if start < last and stop > first:
                found |= cause
        return found
