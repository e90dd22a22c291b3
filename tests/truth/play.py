"""Feeds hand-made Steps to the truth check; a row that emits emits its stop."""

from __future__ import annotations

from handoff.engine.truth import TruthCheck
from handoff.index.spans import Seq
from handoff.types import Bind, Handoff, Layout, Open, Row, RowResult, Spans, Step, StepResult


class Play:
    def __init__(self, layout: Layout, dtype: str = "float64", **options: object) -> None:
        self.truth = TruthCheck(layout, dtype=dtype, **options)  # type: ignore[arg-type]
        self.number = 0

    def __call__(self, *items: object) -> None:
        rows = tuple(item for item in items if isinstance(item, Row))
        handoffs = tuple(item for item in items if isinstance(item, Handoff))
        ops = tuple(item for item in items if not isinstance(item, Row | Handoff))
        step = Step(self.number, 0, self.number - 1, ops, rows, handoffs)  # type: ignore[arg-type]
        self.truth.step(step)
        results = tuple(RowResult(row.seq, (row.stop,) if row.emits else ()) for row in rows)
        self.truth.complete(StepResult(self.number, results))
        self.number += 1

    def content(self, seq: int) -> Seq:
        return self.truth.executor.tables.open[seq].content

    def row(self, seq: int, start: int, stop: int | None = None, **more: object) -> Row:
        content = self.content(seq)
        stop = len(content) if stop is None else stop
        return Row(seq, start, content.slice(start, stop), **more)  # type: ignore[arg-type]

    def decode(self, seq: int, count: int, spans: Spans | None = None) -> None:
        """``count`` rows of one token; ``spans`` gives the bounds of sight."""
        for _ in range(count):
            start = len(self.content(seq)) - 1
            if spans is None:
                self(self.row(seq, start))
                continue
            here = Spans(
                tuple(start for _ in spans.compute),
                tuple(start for _ in spans.write),
                spans.visible,
            )
            self(self.row(seq, start, spans=here))


def text(length: int, first: int = 100) -> Seq:
    return Seq(range(first, first + length))


def opened(seq: int, content: Seq, **tables: tuple[int, ...]) -> list[object]:
    """Open a sequence with fresh tables."""
    ops: list[object] = [Open(seq, f"r{seq}", content)]
    return ops + [Bind(seq, group, 0, ids, True) for group, ids in tables.items()]


def handoff(
    seq: int, length: int, hit: int = 0, start: int = 0, cold: Spans | None = None
) -> Handoff:
    return Handoff(seq, f"r{seq}", length, length, hit, hit, start, cold=cold)
