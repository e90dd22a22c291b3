"""What the scheduler did, step by step: a sink of the runner, and its table.

One line a row of a Step; a Step without rows is one line without a request. Figures and the
Perfetto export read this table, never an engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.errors import BadInput
from handoff.ledger.entries import read_frame
from handoff.types import (
    NULL,
    Bind,
    Close,
    Cut,
    Event,
    Handoff,
    Op,
    Open,
    Row,
    Step,
    StepResult,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["StepLine", "StepLog", "read_steps"]


@dataclass(slots=True)
class StepLine:
    """One row of one Step.

    ``tokens`` are computed in this step, ``again`` of them for a second time; ``decode`` if none
    belongs to what was known at admission. ``hit`` and ``attempt`` are set in the step of an
    admission, ``preempted`` names the requests that lost their place in this step. ``blocks`` are
    the block ids that open tables hold after the step's operations. Times in seconds.
    """

    run: str
    scenario: str
    step: int
    request: str
    start: int
    tokens: int
    again: int
    decode: bool
    hit: int | None
    attempt: int | None
    preempted: str
    blocks: int
    start_s: float
    forward_s: float


_DTYPES: dict[str, Any] = {
    "str": str,
    "int": "int64",
    "bool": "bool",
    "float": "float64",
    "int | None": "Int64",
}
"""Column types by annotation: an empty log must not turn those of others into objects."""


class StepLog:
    """Show it every Step and result of one row of a run; ``to_pandas`` is its table."""

    def __init__(self, run: str, scenario: str) -> None:
        self._run, self._scenario = run, scenario
        self._lines: list[StepLine] = []
        self._open: list[list[StepLine]] = []
        self._request: dict[int, str] = {}
        self._known: dict[int, int] = {}
        self._frontier: dict[str, int] = {}
        self._tables: dict[tuple[int, str], dict[int, int]] = {}
        self._held: Counter[tuple[str, int]] = Counter()
        self._now = 0.0

    def step(self, step: Step) -> None:
        """A Step was planned."""
        for op in step.ops:
            self._operation(op)
        admitted = {handoff.seq: handoff for handoff in step.handoffs}
        self._known |= {seq: handoff.known_tokens for seq, handoff in admitted.items()}
        gone = " ".join(self._name(event) for event in step.events if event.kind == "preempt")
        lines = [self._line(step, row, admitted.get(row.seq), gone) for row in step.rows]
        if not lines:
            head = (self._run, self._scenario, step.number, "")
            lines = [StepLine(*head, 0, 0, 0, False, None, None, gone, len(self._held), 0.0, 0.0)]
        self._lines += lines
        self._open.append(lines)

    def complete(self, result: StepResult) -> None:
        """The oldest Step in flight was answered: its times are known."""
        for line in self._open.pop(0):
            line.start_s, line.forward_s = self._now, result.forward_s
        self._now += result.forward_s + result.sample_s

    def to_pandas(self) -> pd.DataFrame:
        """One line a row of a Step, in order; columns have their types also without any line."""
        import pandas as pd

        names = [each.name for each in fields(StepLine)]
        rows = [[getattr(line, name) for name in names] for line in self._lines]
        frame = pd.DataFrame(rows, columns=names)
        return frame.astype({each.name: _DTYPES[str(each.type)] for each in fields(StepLine)})

    def _name(self, event: Event) -> str:
        return event.request or self._request.get(NULL if event.seq is None else event.seq, "")

    def _line(self, step: Step, row: Row, handoff: Handoff | None, gone: str) -> StepLine:
        name = self._request[row.seq]
        frontier = self._frontier.get(name, 0)
        self._frontier[name] = max(frontier, row.stop - row.drafts)
        return StepLine(
            run=self._run,
            scenario=self._scenario,
            step=step.number,
            request=name,
            start=row.start,
            tokens=len(row.tokens),
            again=max(0, min(row.stop, frontier) - row.start),
            decode=row.start >= self._known.get(row.seq, 0),
            hit=handoff.hit_tokens if handoff else None,
            attempt=handoff.attempt if handoff else None,
            preempted=gone,
            blocks=len(self._held),
            start_s=0.0,
            forward_s=0.0,
        )

    def _operation(self, op: Op) -> None:
        if isinstance(op, Open):
            self._request[op.seq] = op.request
        elif isinstance(op, Bind):
            for column, ident in enumerate(op.ids, op.column):
                self._bind(op.seq, op.group, column, ident)
        elif isinstance(op, Cut):
            for column in range(op.first, op.last):
                self._bind(op.seq, op.group, column, NULL)
        elif isinstance(op, Close):
            for seq, group in [each for each in self._tables if each[0] == op.seq]:
                for column in list(self._tables[seq, group]):
                    self._bind(seq, group, column, NULL)
                del self._tables[seq, group]

    def _bind(self, seq: int, group: str, column: int, ident: int) -> None:
        table = self._tables.setdefault((seq, group), {})
        old = table.pop(column, NULL)
        if old != NULL:
            self._held[group, old] -= 1
            if not self._held[group, old]:
                del self._held[group, old]
        if ident != NULL:
            table[column] = ident
            self._held[group, ident] += 1


def read_steps(path: Path) -> pd.DataFrame:
    """A table that ``to_pandas`` gave, from parquet; ``BadInput`` names file and column if not."""
    names = [each.name for each in fields(StepLine)]
    frame = read_frame(path, names, "log of steps")
    kinds = {"int64": "i", "Int64": "i", "float64": "f", "bool": "b", str: "O"}
    for each in fields(StepLine):
        dtype, column = _DTYPES[str(each.type)], frame[each.name]
        if column.dtype.kind != kinds[dtype] or (dtype != "Int64" and column.isna().any()):
            raise BadInput("holds something else than a log of steps", file=path, field=each.name)
    return frame[names]
