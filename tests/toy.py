"""A sixth framework in sixty lines: one slot of cells that keeps its last text.

Serves one request at a time; the longest common prefix with what the slot still holds is reused,
at least one token is computed. It exists to test the core without any real adapter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from handoff.adapter import Options
from handoff.errors import Refused
from handoff.index.spans import Seq, common
from handoff.types import (
    Bind,
    Close,
    Deduction,
    Event,
    Group,
    GroupAnswer,
    Handoff,
    Layer,
    Layout,
    Match,
    Op,
    Open,
    Pool,
    Request,
    Row,
    Step,
    StepResult,
)


class ToyOptions(Options):
    cells: int = 1024


class ToyEngine:
    depth = 1
    num_drafts = 0

    def __init__(self, options: ToyOptions) -> None:
        self.cells = options.cells
        self.layout = Layout(
            (Pool("cells", options.cells),), (Group("full", "cells"),), (Layer("full"),) * 2
        )
        self.waiting: deque[Request] = deque()
        self.running: Request | None = None
        self.text, self.computed, self.emitted = Seq(), 0, 0
        self.seq = self.number = -1

    def submit(self, request: Request, now: float) -> None:
        if len(request.prompt) + request.max_tokens > self.cells:
            raise Refused(f"needs {len(request.prompt) + request.max_tokens} cells")
        self.waiting.append(request)

    def abort(self, request_id: str, now: float) -> None:
        self.waiting = deque(r for r in self.waiting if r.id != request_id)
        if self.running and self.running.id == request_id:
            self.running = None

    def probe(self, request: Request) -> Match:
        found = common(self.text, 0, request.prompt, 0, self.computed)
        return Match(found, min(found, len(request.prompt) - 1))

    def step(self, now: float) -> Step | None:
        ops: list[Op] = []
        handoffs: tuple[Handoff, ...] = ()
        if self.running is None:
            if not self.waiting:
                return None
            handoffs = (self.admit(self.waiting.popleft(), ops),)
        fresh = range(self.computed, len(self.text))
        ops.append(Bind(self.seq, "full", self.computed, tuple(fresh), True))
        self.number += 1
        row = Row(self.seq, self.computed, self.text.slice(self.computed, len(self.text)))
        insert = Event("insert", "full", seq=self.seq, tokens=len(self.text))
        return Step(
            self.number, self.number, self.number - 1, tuple(ops), (row,), handoffs, (insert,)
        )

    def admit(self, request: Request, ops: list[Op]) -> Handoff:
        match = self.probe(request)
        hit, raw = match.hit_tokens, match.raw_tokens
        if self.seq >= 0:
            ops.append(Close(self.seq))
        self.running, self.emitted, self.seq = request, 0, self.seq + 1
        self.text, self.computed = request.prompt.slice(0, len(request.prompt)), hit
        ops.append(Open(self.seq, request.id, self.text.slice(0, len(self.text)), request.lora))
        if hit:
            ops.append(Bind(self.seq, "full", 0, tuple(range(hit)), False))
        lost = (Deduction("last_token", hit, raw, "toy"),) if raw > hit else ()
        answer = GroupAnswer("full", raw, tuple(range(hit)), hit, hit)
        return Handoff(
            self.seq, request.id, len(request.prompt), len(request.prompt), raw, hit, hit, lost,
            (answer,), matcher="slot", references="none",
        )  # fmt: skip

    def complete(self, result: StepResult, now: float) -> None:
        self.computed = len(self.text)
        for row in result.rows:
            for token in row.tokens:
                self.text.append(token)
                self.emitted += 1
        if self.running and self.emitted >= self.running.max_tokens:
            self.running = None

    def drain(self) -> Step | None:
        return None

    def next_event(self) -> float | None:
        return None

    def observe(self) -> Mapping[str, Any]:
        return {"tokens": self.text.tokens(), "computed": self.computed}


class Toy:
    name, title, upstream, evidence = "toy", "Toy", "0", "read"
    left_out: Mapping[str, str] = {}
    options = ToyOptions

    def engine(self, options: ToyOptions) -> ToyEngine:
        return ToyEngine(options)

    def budget(self, pool_tokens: int, options: ToyOptions) -> Mapping[str, Any]:
        return {"cells": pool_tokens}

    def describe(self, options: ToyOptions) -> str:
        return "one slot"

    def recordings(self) -> None:
        return None
