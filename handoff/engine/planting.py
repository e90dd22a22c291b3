"""Where a fault can be planted: a recorded run is replayed over tags, Step by Step.

``Scan`` asks every kind of fault at every Step whether it can be planted there, and keeps the first
Step that can carry each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from handoff.store.slots import ZERO
from handoff.store.tables import Ints, Settled
from handoff.store.tags import TagStore
from handoff.types import Group, Layout, Op, Row, Step, StepResult, Zero

__all__ = ["Fault", "Feed", "Recorder", "Scan", "Site"]

Feed = Sequence[Step | StepResult]
"""Steps and results of one run in the order in which its sinks saw them."""


class Recorder:
    """A sink that keeps what it is shown."""

    def __init__(self) -> None:
        self.feed: list[Step | StepResult] = []

    def step(self, step: Step) -> None:
        """A Step was planned."""
        self.feed.append(step)

    def complete(self, result: StepResult) -> None:
        """A Step was answered."""
        self.feed.append(result)


@dataclass(frozen=True)
class Site:
    """One Step with what is known when it runs; ``scan`` holds tags and tables behind it."""

    step: Step
    rows: Sequence[Settled]
    scan: Scan

    @property
    def groups(self) -> Iterator[tuple[int, Group]]:
        """KV groups of the layout with their index."""
        return ((at, g) for at, g in enumerate(self.scan.layout.groups) if g.kind == "kv")

    def hits(self) -> Iterator[tuple[int, Row, Settled]]:
        """Rows of this Step that start behind a hit: (index, planned, settled)."""
        admitted = {handoff.seq for handoff in self.step.handoffs if handoff.hit_tokens}
        for at, (row, real) in enumerate(zip(self.step.rows, self.rows, strict=True)):
            if row.seq in admitted and row.start:
                yield at, row, real

    def with_row(self, at: int, row: Row) -> Step:
        """The Step with another row."""
        return replace(self.step, rows=(*self.step.rows[:at], row, *self.step.rows[at + 1 :]))

    def with_op(self, at: int, *ops: Op) -> Step:
        """The Step with one operation replaced (by none, or several)."""
        return replace(self.step, ops=(*self.step.ops[:at], *ops, *self.step.ops[at + 1 :]))

    def old_slots(self, real: Settled, at: int) -> Ints:
        """Slots of the older content that the row sees in a KV group."""
        low, write = self.scan.span(real, at)
        return real.of.tables[at].slots(low, write)


Mutate = Callable[[Site], Step | None]


@dataclass(frozen=True)
class Fault:
    """One kind: what is done wrong, and why an adapter may be unable to express it.

    ``mutate`` gives the Step with the fault in it (this one, or an earlier one whose harm shows
    here), or ``None`` where it would do no harm.
    """

    name: str
    what: str
    absent: str
    mutate: Mutate


class Scan(TagStore):
    """Replays a feed and collects, for each kind of fault, the first Step that can carry it."""

    def __init__(self, layout: Layout, faults: Sequence[Fault]) -> None:
        super().__init__(layout)
        self._wanted = {fault.name: fault for fault in faults}
        self.found: dict[str, Step] = {}
        self.zeroing: list[tuple[Step, int]] = []
        """Operations that wrote zeros so far: (Step, index)."""

    def span(self, row: Settled, at: int) -> tuple[int, int]:
        """(first seen, first written) of the row in a KV group."""
        first, write, _ = self._span(row, at)
        return min(first, write), write

    def holds(self, at: int, block: int, position: int, *, same_text: bool, row: Settled) -> bool:
        """Whether a block starts with ``position``, of the row's text or of another."""
        tags = self._tags(at)
        if tags.label[block * tags.size] != position + 1:
            return False
        name = self._names(row.of, position + 1).of(position, position + 1)[0]
        return bool(tags.name[block * tags.size] == name) is same_text

    def zeros(self, at: int, slots: Ints) -> NDArray[np.bool_]:
        """Which of a group's slots read as zeros; holes do not."""
        found: NDArray[np.bool_] = (self._tags(at).label[slots] == ZERO) & (slots >= 0)
        return found

    def labels(self, at: int) -> NDArray[np.int32]:
        """Position + 1 of the first slot of every block of a group; 0 where it is void."""
        tags = self._tags(at)
        return tags.label[:: tags.size]

    def _run(self, step: Step) -> None:
        super()._run(step)
        self.zeroing += [(step, at) for at, op in enumerate(step.ops) if isinstance(op, Zero)]
        site = Site(step, self.rows, self)
        for name in [name for name in self._wanted if name not in self.found]:
            mutant = self._wanted[name].mutate(site)
            if mutant is not None:
                assert mutant != step, f"{name} changed nothing"
                self.found[name] = mutant
