"""Replays ``budget`` traces: iterations of the whole engine, with an intruder in some.

(Recordings' README, "Native traces", op ``iter`` and ``serve``)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request, RowResult, Step, StepResult

from .driver_native import admission_entry, put_events, tables_of
from .engine import Engine, Iteration
from .journal import Fact
from .options import from_recorded
from .recorded import SALTS, Notation

__all__ = ["replay_iterations"]


def replay_iterations(case: Case) -> Mapping[str, Any]:
    """The whole recorded line of one trace of iterations."""
    player = _Player(case)
    return {"ops": [player.play(op) for op in case.line["ops"]]}


class _Player:
    """Plays one trace on an engine; sampled tokens come from the recording."""

    def __init__(self, case: Case) -> None:
        self.engine = Engine(from_recorded(case.line["config"]))
        self.engine.number_salts(SALTS)
        self.engine.journal.keeps_facts = True
        self._notation = Notation(self.engine.manager)
        self._watcher = case.watch(self.engine.layout) if case.watch else None
        self._after_tie = False

    def play(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """One operation as recorded."""
        facts: list[Fact] = []
        entry = {"op": op["op"]}
        entry |= self._serve(op, facts) if op["op"] == "serve" else self._iterate(op, facts)
        put_events(entry, facts, self._notation)
        self._after_tie |= "tie" in entry
        if self._after_tie:
            entry["after_tie"] = True
        entry["free"] = self._notation.free()
        return entry

    def _serve(self, op: Mapping[str, Any], facts: list[Fact]) -> dict[str, Any]:
        self._submit(op["req"])
        live = self.engine.active[-1]
        while live in self.engine.active:
            step = self._plan(facts)
            assert step is not None, "a single request always runs"
            self._complete(step, {live.id: op["token"]}, facts)
        return {"hit": live.prepopulated}

    def _iterate(self, op: Mapping[str, Any], facts: list[Fact]) -> dict[str, Any]:
        for entry in op["new"]:
            self._submit(entry)
        if "intruder" in op:
            self.engine.intrude(Seq.of(op["intruder"]))
        active = [int(request.id) for request in self.engine.active]
        step = self._plan(facts)
        assert self.engine.last is not None
        report = self._report(self.engine.last)
        if step is not None:
            self._complete(step, op["tokens"], facts)
        left = {request.id for request in self.engine.active}
        batch = self.engine.last.batch
        finished = [
            int(request.id)
            for request in (*batch.context, *batch.decoding)
            if request.id not in left
        ]
        return {"active": active, **report, "finished": finished}

    def _plan(self, facts: list[Fact]) -> Step | None:
        step = self.engine.step(0.0)
        facts += self.engine.journal.take_facts()
        if step is not None and self._watcher is not None:
            self._watcher.step(step)
        return step

    def _complete(self, step: Step, tokens: Mapping[str, int], facts: list[Fact]) -> None:
        """Answers a Step: every row that wants a token gets the recorded one."""
        by_seq = {request.seqs[0]: request.id for request in self.engine.active}
        rows = tuple(
            RowResult(row.seq, (tokens[by_seq[row.seq]],) if row.emits else ()) for row in step.rows
        )
        result = StepResult(step.number, rows)
        if self._watcher is not None:
            self._watcher.complete(result)
        self.engine.complete(result, 0.0)
        facts += self.engine.journal.take_facts()

    def _report(self, iteration: Iteration) -> dict[str, Any]:
        """What the schedulers decided, what adding gave and what the correction left."""
        batch, notation = iteration.batch, self._notation
        added = [
            admission_entry(admission, tables_of(self.engine.manager, admission.request), notation)
            for admission in iteration.admissions
        ]
        return {
            "fitting": [int(request.id) for request in iteration.capacity.fitting],
            "skipped": [int(request.id) for request in iteration.capacity.deferred],
            "est": iteration.estimates,
            "scheduled_ctx": [[int(ident), chunk] for ident, chunk in iteration.planned],
            "scheduled_gen": [int(request.id) for request in batch.decoding],
            "charged_tokens": batch.charged,
            "added": added,
            "forward_tokens": iteration.needed_tokens,
            "shed": iteration.shed,
            "run": [
                [int(request.id), request.position, request.chunk] for request in batch.context
            ],
        }

    def _submit(self, entry: Mapping[str, Any]) -> None:
        lora = entry.get("lora")
        self.engine.submit(
            Request(
                str(entry["id"]),
                Seq.of(entry["prompt"]),
                int(entry["max_new"]),
                salt=entry.get("salt"),
                lora=None if lora is None else str(lora),
            ),
            0.0,
        )
