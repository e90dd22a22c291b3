"""Speed of a planner on a public trace, with what is needed to check that it is exact.

Two modes:

* ``serial``: one request after the other, through the cache half alone: look up, allocate the whole
  prompt, free. Engines that can do this satisfy ``ServeAlone``.
* ``scheduler``: the whole engine; one Step every ``step_ms`` of trace time, scripted outputs. A
  request joins at the first step that is not before its arrival; idle time is skipped.

Only the calls of the engine are timed; reading the trace, answering and checking are not.
"""

from __future__ import annotations

import math
import resource
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .adapter import Engine, load, make_options
from .errors import HandoffError, Refused
from .runner import Environment
from .types import Bind, Close, Cut, Handoff, Request, Step, StepResult
from .workload.mooncake import read_mooncake

__all__ = ["ServeAlone", "TraceBench", "bench_trace"]

MODES = ("serial", "scheduler")


@runtime_checkable
class ServeAlone(Protocol):
    """Engines whose cache half can serve a request without a scheduler."""

    def serve_alone(self, request: Request) -> Handoff:
        """Look up, allocate the whole prompt, free; the Handoff holds hit and tables.

        ``Refused`` if the prompt does not fit the pool.
        """


@dataclass(slots=True)
class TraceBench:
    """What one pass over a trace gave: seconds of planning, and the answers to compare."""

    seconds: float = 0.0
    prompt_tokens: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    """crc32 of each request's first table right after allocation, as 32-bit little-endian ids."""
    finished: list[tuple[str, int]] = field(default_factory=list)
    """Requests in order of finishing, with the crc32 of their last table."""
    refused: list[str] = field(default_factory=list)

    def admitted(self, handoff: Handoff) -> None:
        """Note an admission; only the first of a request counts."""
        if handoff.attempt == 0:
            self.hits[handoff.request] = handoff.hit_tokens
            if handoff.groups:
                self.tables[handoff.request] = table_crc(handoff.groups[0].table)


def table_crc(table: Sequence[int]) -> int:
    """crc32 of a block table as 32-bit little-endian ids."""
    return zlib.crc32(array("i", table).tobytes())


def bench_trace(
    trace: Path,
    adapter_name: str,
    options: Mapping[str, Any] | None = None,
    *,
    pool_tokens: int | None = None,
    limit: int | None = None,
    mode: str = "serial",
    step_ms: float = 20.0,
    answers: bool = False,
) -> dict[str, Any]:
    """Replay a Mooncake-format trace through one adapter and measure its planning.

    Returns ``adapter, requests, prompt_tokens, hit_tokens, cpu_s`` (planning alone),
    ``total_cpu_s`` (the process so far), ``requests_per_cpu_s, peak_mb``; with ``answers`` also
    ``hits``, ``table_crc`` (per request, in trace order) and ``finish``.
    """
    if mode not in MODES:
        raise HandoffError(f"no mode {mode!r}; there are {' and '.join(MODES)}")
    adapter = load(adapter_name)
    chosen = make_options(adapter, options or {})
    if pool_tokens is not None:
        chosen = make_options(adapter, {**(options or {}), **adapter.budget(pool_tokens, chosen)})
    engine = adapter.engine(chosen)
    names: list[str] = []
    requests = _noted(read_mooncake(trace, limit), names)
    if mode == "serial":
        found = _serial(engine, requests, adapter.title)
    else:
        found = _scheduled(engine, requests, step_ms, answers)
    return _report(adapter.name, found, names, answers)


def _noted(requests: Iterator[Request], names: list[str]) -> Iterator[Request]:
    for request in requests:
        names.append(request.id)
        yield request


def _report(adapter: str, found: TraceBench, names: list[str], answers: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "adapter": adapter,
        "requests": len(names),
        "prompt_tokens": found.prompt_tokens,
        "hit_tokens": sum(found.hits.values()),
        "cpu_s": found.seconds,
        "total_cpu_s": time.process_time(),
        "requests_per_cpu_s": len(names) / found.seconds if found.seconds else 0.0,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if found.refused:
        report["refused"] = len(found.refused)
    if answers:
        number = {name: index for index, name in enumerate(names)}
        report["hits"] = [found.hits.get(name) for name in names]
        report["table_crc"] = [found.tables.get(name) for name in names]
        report["finish"] = [[number[name], crc] for name, crc in found.finished]
    return report


def _serial(engine: Engine, requests: Iterator[Request], title: str) -> TraceBench:
    if not isinstance(engine, ServeAlone):
        raise HandoffError(f"{title} has no serial replay; use --mode scheduler")
    found, clock, serve = TraceBench(), time.process_time, engine.serve_alone
    for request in requests:
        found.prompt_tokens += len(request.prompt)
        begin = clock()
        try:
            handoff = serve(request)
        except Refused:
            found.refused.append(request.id)
        else:
            found.seconds += clock() - begin
            found.admitted(handoff)
    return found


def _scheduled(
    engine: Engine, requests: Iterator[Request], step_ms: float, answers: bool
) -> TraceBench:
    found, clock = TraceBench(), time.process_time
    environment = Environment(0, engine.num_drafts, 0.7)
    flying: deque[Step] = deque()
    tables = _LastTables() if answers else None
    waiting = deque(requests)
    tick = 0
    while True:
        now = tick * step_ms / 1000
        while waiting and _first_tick(waiting[0], step_ms) <= tick:
            request = waiting.popleft()
            found.prompt_tokens += len(request.prompt)
            environment.add(request)
            begin = clock()
            try:
                engine.submit(request, now)
            except Refused:
                found.refused.append(request.id)
            found.seconds += clock() - begin
        begin = clock()
        step = engine.step(now)
        found.seconds += clock() - begin
        if step is not None:
            flying.append(step)
            environment.see(step)
            for handoff in step.handoffs:
                found.admitted(handoff)
            if tables:
                tables.fold(step, found)
        if flying and (len(flying) == engine.depth or step is None):
            result = _result(environment, flying.popleft())
            begin = clock()
            engine.complete(result, now)
            found.seconds += clock() - begin
        elif step is None:
            if not waiting:
                break
            tick = max(tick + 1, _first_tick(waiting[0], step_ms))
            continue
        tick += 1
    last = engine.drain()
    if tables and last is not None:
        tables.fold(last, found)
    return found


def _first_tick(request: Request, step_ms: float) -> int:
    """The first step that is not before the request's arrival."""
    return math.ceil(round(request.arrival * 1000, 6) / step_ms)


def _result(environment: Environment, step: Step) -> StepResult:
    arrived = tuple(environment.transfers)
    environment.transfers.clear()
    return StepResult(
        step.number, tuple(environment.answer(row) for row in step.rows), arrived=arrived
    )


class _LastTables:
    """Folds the operations on each sequence's first table, to know it when the request ends."""

    def __init__(self) -> None:
        self._open: dict[int, list[int]] = {}
        self._closed: dict[int, list[int]] = {}
        self._group: str | None = None

    def fold(self, step: Step, found: TraceBench) -> None:
        """Apply a Step's operations and note the requests that its events say have finished."""
        for op in step.ops:
            if type(op) is Bind:
                self._group = self._group or op.group
                if op.group == self._group:
                    table = self._open.setdefault(op.seq, [])
                    table[op.column : op.column + len(op.ids)] = op.ids
            elif type(op) is Cut and op.group == self._group:
                self._open[op.seq][op.first : op.last] = [-1] * (op.last - op.first)
            elif type(op) is Close:
                self._closed[op.seq] = self._open.pop(op.seq, [])
        for event in step.events:
            if event.kind == "finish" and event.seq is not None and event.request is not None:
                found.finished.append((event.request, table_crc(self._closed[event.seq])))
        self._closed.clear()
