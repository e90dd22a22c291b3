"""An engine with its environment while a recording is replayed, and the recordings' notation."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.types import Copy, Event, Request, Row, RowResult, Step, StepResult

from .engine import VllmEngine
from .options import VllmOptions
from .scheduler import Scheduled

__all__ = ["Model", "Run", "copies", "crc", "pack"]

STEPS_OF_A_LOAD = 3
"""The fake store's loads end at the third processed output after admission."""


def pack(ids: Sequence[int]) -> str:
    """A list of ids as the recordings write it: ``a-b``, ``a~b``, ``a*n`` for runs of 3 or more."""
    parts = []
    at = 0
    while at < len(ids):
        first = ids[at]
        for sign, step in (("-", 1), ("~", -1), ("*", 0)):
            stop = at + 1
            while stop < len(ids) and ids[stop] - ids[stop - 1] == step:
                stop += 1
            if stop - at >= 3:
                last = stop - at if sign == "*" else ids[stop - 1]
                parts.append(f"{first}{sign}{last}")
                break
        else:
            stop = at + 1
            parts.append(str(first))
        at = stop
    return " ".join(parts)


def crc(items: Iterable[object]) -> str:
    """crc32 of the comma-joined items, as 8 hex digits."""
    return f"{zlib.crc32(','.join(map(str, items)).encode()):08x}"


class Model:
    """The environment: emits the scripted outputs and accepts as many drafts as was recorded.

    Drafts are the coming outputs themselves, so that accepted ones are what was computed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        spec = config.get("spec") or {}
        self._num_drafts = spec.get("k", 0) if spec.get("drafts") == "mixed" else 0
        self._outputs: dict[str, list[int]] = {}
        self._emitted: dict[str, int] = {}

    def add(self, request: Request) -> None:
        assert request.outputs is not None
        self._outputs[request.id] = request.outputs.tokens()
        self._emitted.setdefault(request.id, 0)

    def answer(
        self, request: str, row: Row, *, padded: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens of a row that samples, and the drafts for the next one."""
        outputs = self._outputs[request]
        done = self._emitted[request]
        right = 0
        if self._num_drafts and not padded:
            first = row.stop - row.drafts  # where the row's first sampled token will stand
            right = min((first * 7 + 3) % (self._num_drafts + 1), row.drafts)
        tokens = tuple(outputs[done : done + right + 1])
        done += len(tokens)
        self._emitted[request] = done
        drafts = (*outputs[done:], *(0,) * self._num_drafts)[: self._num_drafts]
        return tokens, drafts


class Run:
    """An engine with its environment; remembers what each call told."""

    def __init__(self, case: Case, options: VllmOptions) -> None:
        assert case.config is not None
        self.engine = VllmEngine(options)
        self.model = Model(case.config)
        self.watcher = case.watch(self.engine.layout) if case.watch else None
        self._batches: deque[tuple[Step, list[tuple[Scheduled, bool]]]] = deque()
        self._loads: dict[int, int] = {}  # transfer -> processed outputs until it ends
        self._told = 0  # events of the outbox that were seen already

    def submit(self, request: Request) -> None:
        self.engine.enqueue(request)
        self.model.add(request)

    def schedule(self) -> tuple[Step | None, list[Event]]:
        """One ``schedule()``; the Step if it runs something, and the new events."""
        engine = self.engine
        step = engine.step(0.0)
        if step is None:
            return None, self.news()
        events = list(step.events[self._told :])
        self._told = 0
        batch = engine.batch
        for state in batch.loads:
            assert state.transfer is not None
            self._loads[state.transfer] = STEPS_OF_A_LOAD
        if self.watcher:
            self.watcher.step(step)
        rows = [(row, row.hit is not None) for row in batch.rows]
        self._batches.append((step, rows))
        return step, events

    def update(self) -> list[Event]:
        """One ``update_from_output()`` of the oldest batch."""
        arrived = []
        for transfer in list(self._loads):
            self._loads[transfer] -= 1
            if not self._loads[transfer]:
                del self._loads[transfer]
                arrived.append(transfer)
        if self._batches:
            step, rows = self._batches.popleft()
            answers = []
            for row, (scheduled, admitted) in zip(step.rows, rows):
                tokens: tuple[int, ...] = ()
                drafts: tuple[int, ...] = ()
                if row.emits and not scheduled.dropped:
                    tokens, drafts = self.model.answer(scheduled.state.id, row, padded=admitted)
                answers.append(RowResult(row.seq, tokens, drafts))
            result = StepResult(step.number, tuple(answers), arrived=tuple(arrived))
            self.engine.complete(result, 0.0)
            if self.watcher:
                self.watcher.complete(result)
        return self.news()

    def news(self) -> list[Event]:
        """Events since the last look that wait for the next Step."""
        events = self.engine.out.events[self._told :]
        self._told += len(events)
        return events


def copies(step: Step) -> list[list[int]]:
    """Block copies ``[source, target]`` of a Step, in order."""
    found = []
    for op in step.ops:
        if isinstance(op, Copy):
            ((source, target, slots),) = op.runs
            found.append([source // slots, target // slots])
    return found
