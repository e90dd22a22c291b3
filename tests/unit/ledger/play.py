"""A stage for accountants: admissions are dictated, so expected classes can be worked by hand."""

from __future__ import annotations

from handoff.index.spans import Seq
from handoff.ledger.attribution import Accountant, Label, Tainted
from handoff.ledger.costs import Costs
from handoff.ledger.entries import Entry
from handoff.types import (
    Close,
    Deduction,
    Event,
    Group,
    Handoff,
    Layer,
    Layout,
    Op,
    Open,
    Pool,
    Request,
    Row,
    RowResult,
    Step,
    StepResult,
)

LAYOUT = Layout(
    pools=(Pool("kv", 1024), Pool("host", 1024, "host")),
    groups=(Group("full", "kv", 16),),
    layers=(Layer("full"),),
)
LABEL = Label("toy", "toy", "Toy", "1", "ran", "test")


class Play:
    """Builds Steps one by one; every method that ends a Step also completes it."""

    def __init__(
        self,
        layout: Layout = LAYOUT,
        costs: Costs | None = None,
        tainted: Tainted | None = None,
        label: Label = LABEL,
    ) -> None:
        self.books = Accountant(layout, label, costs, tainted=tainted)
        self.number = 0
        self.seqs = 0
        self.ops: list[Op] = []
        self.events: list[Event] = []
        self.rows: list[Row] = []
        self.handoffs: list[Handoff] = []
        self.emit: dict[int, tuple[int, ...]] = {}
        self.text: dict[int, Seq] = {}

    def submit(self, name: str, prompt: Seq, **changes: object) -> None:
        request = Request(id=name, prompt=prompt, max_tokens=64, **changes)  # type: ignore[arg-type]
        self.books.submit(request)

    def admit(self, name: str, known: Seq, *, stop: int | None = None, **answer: object) -> int:
        """Open a sequence with its Handoff and a first row ``[start, stop)``."""
        seq, self.seqs = self.seqs, self.seqs + 1
        length = len(known)
        values: dict[str, object] = {
            "prompt_tokens": length,
            "raw_tokens": answer.get("hit_tokens", 0),
            "hit_tokens": 0,
            "start": answer.get("hit_tokens", 0),
            "unit": 16,
            **answer,
        }
        self.ops.append(Open(seq, name, known, None))
        self.handoffs.append(Handoff(seq, name, known_tokens=length, **values))  # type: ignore[arg-type]
        self.text[seq] = known
        self.row(seq, int(values["start"]), length if stop is None else stop)  # type: ignore[call-overload]
        return seq

    def row(self, seq: int, start: int, stop: int, *, drafts: int = 0) -> None:
        known = self.text[seq]
        tokens = known.slice(start, stop)
        emits = int(stop >= len(known)) * (1 + drafts)
        for draft in range(drafts):
            tokens.append(900 + draft)
        self.rows.append(Row(seq, start, tokens, drafts, emits))

    def insert(self, seq: int, tokens: int) -> None:
        self.events.append(Event("insert", seq=seq, tokens=tokens))

    def close(self, seq: int) -> None:
        self.ops.append(Close(seq))

    def done(self, **emitted: tuple[int, ...]) -> None:
        """End the Step: ``s0=(7,)`` are tokens that sequence 0 emits."""
        step = Step(
            self.number,
            self.number,
            self.number - 1,
            tuple(self.ops),
            tuple(self.rows),
            tuple(self.handoffs),
            tuple(self.events),
        )
        self.books.step(step)
        results = tuple(RowResult(row.seq, emitted.get(f"s{row.seq}", ())) for row in self.rows)
        self.books.complete(StepResult(self.number, results))
        for result in results:
            known = self.text[result.seq].slice(0, len(self.text[result.seq]))
            for token in result.tokens:
                known.append(token)
            self.text[result.seq] = known
        self.number += 1
        self.ops, self.events, self.rows, self.handoffs = [], [], [], []

    def entries(self) -> list[Entry]:
        return self.books.finish()


def lost(reason: str, start: int, stop: int) -> Deduction:
    return Deduction(reason, start, stop, "1")


def kinds(entry: Entry) -> list[tuple[str, int, int]]:
    return [tuple(run) for run in entry.runs]  # type: ignore[misc]
