"""Plays requests on an engine with scripted outputs and reads the answers off its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from handoff.conformance.recording import Watch
from handoff.errors import Refused
from handoff.types import Open, Request, RowResult, Step, StepResult

from .engine import LlamaCppEngine
from .log import Line
from .options import Options

__all__ = ["Play", "Report"]

WRONG = 1
"""A draft that no recorded output equals."""


@dataclass(slots=True)
class Report:
    """What the server answers about one request (or one child of it)."""

    request: str
    num_prompt: int
    slot: int = -1
    hit: int = 0
    kept: int = 0
    num_outputs: int = 0
    outputs: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    mem: list[tuple[int, int]] = field(default_factory=list)
    truncated: bool = False
    error: str | None = None
    drafted: int = 0
    accepted: int = 0
    num_children: int = 0
    ended: bool = False


class Play:
    """An engine, its scripted outputs, and a report per request.

    ``lines`` is the log of the last ``serve``. ``right`` says whether drafts are what the model
    will say (a draft model that is the model itself) or never.
    """

    def __init__(self, options: Options, watch: Watch | None, right: bool = False) -> None:
        self.options = options
        self.engine = LlamaCppEngine(options)
        self.watcher = watch(self.engine.layout) if watch is not None else None
        self.right = right
        self.lines: list[Line] = []
        self.reports: dict[str, Report] = {}
        self.outputs: dict[str, Sequence[int]] = {}
        self._names: dict[int, str] = {}  # sequence -> request or child
        self._said: dict[str, int] = {}  # outputs given so far

    # -- running -------------------------------------------------------------------------------

    def serve(self, requests: Iterable[Request]) -> list[Report]:
        """Submit at once, run until all is answered; reports of the requests in order."""
        self.lines = []
        names = [self.submit(request) for request in requests]
        self.finish()
        return [self.reports[name] for name in names]

    def submit(self, request: Request) -> str:
        """Queue a request and start its report."""
        for index in range(int(request.options.get("n_cmpl", 1))):
            name = f"{request.id}#{index}" if index else request.id
            self.reports[name] = Report(name, len(request.prompt))
            self.outputs[name] = request.outputs.tokens() if request.outputs is not None else []
        with suppress(Refused):  # the server answers with an error; the report says so
            self.engine.submit(request, 0.0)
        return request.id

    def finish(self) -> None:
        """Run until nothing is left to do."""
        while self.advance():
            pass
        last = self.engine.drain()
        if last is not None and self.watcher is not None:
            self.watcher.step(last)

    def until(self, met: Callable[[], bool]) -> None:
        """Run until a condition is met or nothing is left to do."""
        while not met() and self.advance():
            pass

    def advance(self) -> bool:
        """One Step and its result; False if there was none."""
        step = self.engine.step(0.0)
        self._read()
        if step is None:
            return False
        if self.watcher is not None:
            self.watcher.step(step)
        result = self._answer(step)
        if self.watcher is not None:
            self.watcher.complete(result)
        self.engine.complete(result, 0.0)
        self._read()
        return True

    def said(self, name: str) -> int:
        """Outputs a request was given so far."""
        return self._said.get(name, 0)

    # -- the environment -----------------------------------------------------------------------

    def _answer(self, step: Step) -> StepResult:
        for op in step.ops:
            if isinstance(op, Open):
                self._names[op.seq] = op.request
                if op.request not in self._said:
                    extra = len(op.tokens) - self._num_prompt(op.request)
                    self._said[op.request] = max(0, extra)
        rows = []
        for row in step.rows:
            name = self._names[row.seq]
            if not row.emits:
                rows.append(RowResult(row.seq, ()))
                continue
            guesses = row.tokens.tokens(len(row.tokens) - row.drafts) if row.drafts else []
            rows.append(RowResult(row.seq, *self._say(name, guesses)))
        return StepResult(step.number, tuple(rows))

    def _num_prompt(self, name: str) -> int:
        report = self.reports.get(name)
        return report.num_prompt if report is not None else 0

    def _say(self, name: str, guesses: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Accepted guesses and one more token, then guesses for what follows."""
        script = self.outputs.get(name, ())
        at = self._said.get(name, 0)
        accepted = 0
        while accepted < len(guesses) and _at(script, at + accepted) == guesses[accepted]:
            accepted += 1
        report = self.reports.get(name)
        if report is not None:
            report.drafted += len(guesses)
            report.accepted += accepted
        tokens = tuple(_at(script, at + k) for k in range(accepted + 1)) if script else ()
        at += len(tokens)
        self._said[name] = at
        if not self.right:
            return tokens, (WRONG,) * self.options.num_drafts
        return tokens, tuple(_at(script, at + k) for k in range(self.options.num_drafts))

    # -- reading the log -----------------------------------------------------------------------

    def _read(self) -> None:
        for line in self.engine.take_log():
            self.lines.append(line)
            self._note(line)

    def _note(self, line: Line) -> None:
        report = self.reports.get(line.request or "")
        if report is None or line.slot is None:
            return
        if line.what == "child":
            self._inherit(report, line.numbers[0])
            return
        report.slot = line.slot
        if line.what == "rm":
            if not report.chunks:
                report.hit = line.numbers[0]
            report.chunks.append(line.numbers[0])
        elif line.what == "mem":
            report.mem.append((line.numbers[0], line.numbers[1]))
        elif line.what == "error":
            report.error = line.numbers[0]
        elif line.what == "stop":
            kept, truncated, sent = line.numbers
            report.kept, report.truncated, report.num_outputs = kept, bool(truncated), sent
            report.ended = True
            report.outputs = list(self.outputs.get(report.request, ())[:sent])

    def _inherit(self, parent: Report, slot: int) -> None:
        """The next child, now on ``slot``, reports its parent's hit."""
        parent.num_children += 1
        child = self.reports[f"{parent.request}#{parent.num_children}"]
        child.slot, child.hit = slot, parent.hit


def _at(script: Sequence[int], index: int) -> int:
    """The scripted output, or a token that nothing equals beyond its end."""
    return script[index] if index < len(script) else -(index + 2)
