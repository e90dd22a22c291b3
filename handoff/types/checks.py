"""Checks that every Step and every Handoff of it tell the same story.

``StepChecker`` is a sink like any other: it is shown each Step before it is executed. It reads no
tensor and no adapter state, so a planner cannot satisfy it by declaration.
"""

from __future__ import annotations

from .answers import Handoff
from .layout import NULL, Layout
from .ops import Bind, Close, Copy, Cut, Load, Op, Open, Shift, Zero
from .step import EVENT_KINDS, FOLLOW, Row, Step, StepResult

__all__ = ["StepChecker"]


class StepChecker:
    """Asserts the invariants of Steps of one engine (docs/records.md, sections 3, 4 and 7)."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._groups = {group.name: group for group in layout.groups}
        self._index = {name: at for at, name in enumerate(self._groups)}
        self._blocks = {pool.name: pool.blocks for pool in layout.pools}
        self._open: set[int] = set()
        self._ever: set[int] = set()
        self._next = 0

    def step(self, step: Step) -> None:
        """Checks one Step; ``AssertionError`` names what does not fit."""
        assert step.number == self._next, f"step {step.number} comes after {self._next - 1}"
        self._next += 1
        assert step.known_through < step.number
        for op in step.ops:
            self._op(op)
        rows: dict[int, Row] = {}
        for row in step.rows:
            assert row.seq in self._open, f"row of sequence {row.seq}, which is not open"
            assert row.seq not in rows, f"two rows of sequence {row.seq} in one Step"
            self._row(row)
            rows[row.seq] = row
        for handoff in step.handoffs:
            self._handoff(handoff, rows)
        for event in step.events:
            assert event.kind in EVENT_KINDS, f"{event.kind} is no kind of event"

    def complete(self, result: StepResult) -> None:
        """Nothing to check: the environment answers."""

    def _op(self, op: Op) -> None:
        if isinstance(op, Open):
            assert op.seq not in self._ever, f"sequence {op.seq} is opened twice"
            self._open.add(op.seq)
            self._ever.add(op.seq)
        elif isinstance(op, Close):
            assert op.seq in self._open, f"sequence {op.seq} is closed but not open"
            self._open.remove(op.seq)
        elif isinstance(op, Bind):
            assert op.seq in self._open, f"bind on sequence {op.seq}, which is not open"
            blocks = self._blocks[self._groups[op.group].pool]
            assert op.column >= 0 and op.ids
            assert all(NULL <= ident < blocks for ident in op.ids), f"ids outside the pool: {op}"
            assert not op.fresh or NULL not in op.ids, "a hole is never fresh"
        elif isinstance(op, Cut):
            assert op.seq in self._open and op.group in self._groups and 0 <= op.first < op.last
        elif isinstance(op, Copy):
            assert op.group in self._groups
            assert op.src_pool in self._blocks and op.dst_pool in self._blocks
            assert all(slots > 0 for _, _, slots in op.runs)
        elif isinstance(op, (Shift, Zero)):
            assert op.group in self._groups and all(slots > 0 for _, slots in op.runs)
        else:
            assert isinstance(op, Load) and op.seq in self._open and op.start < op.stop

    def _row(self, row: Row) -> None:
        length = len(row.tokens)
        assert length > 0 and row.start >= 0
        assert 0 <= row.drafts < length or length == row.drafts == 0
        assert 0 <= row.emits <= length and (not row.drafts or row.emits >= 1 + row.drafts)
        if row.spans is not None:
            compute, write, visible = row.spans
            assert len(compute) == self._layout.num_stages
            assert len(write) == len(visible) == len(self._layout.groups)
            assert compute[0] == row.start and list(compute) == sorted(compute)
            assert compute[-1] <= row.stop
        for use in row.states:
            assert self._groups[use.group].kind == "state"
            assert use.load >= NULL or use.load == FOLLOW
            assert all(row.start < at <= row.stop for at, _ in use.saves)

    def _handoff(self, handoff: Handoff, rows: dict[int, Row]) -> None:
        row = rows.get(handoff.seq)
        assert row is not None, f"{handoff.request}: a handoff without its first row"
        assert row.start == handoff.start, (
            f"{handoff.request}: the row starts at {row.start}, the handoff at {handoff.start}"
        )
        assert row.stop <= handoff.known_tokens + row.drafts
        for answer in handoff.groups:
            assert answer.group in self._index, f"{answer.group} is no group"
            at = self._index[answer.group]
            done = (row.spans.write[at], row.spans.visible[at]) if row.spans else (row.start, 0)
            # A bound of the whole prompt may lie beyond its first chunk.
            told = (min(answer.write, row.stop), min(answer.visible, row.stop))
            assert told == done, f"{handoff.request}: {answer.group} tells {told}, does {done}"
