"""Drives one engine over a stream of arrivals on a virtual clock.

The planner asserts, the environment answers: the runner samples tokens, proposes drafts, keeps the
time and reports finished transfers. Everything it decides is a function of (seed, request, output
index), so neither batch order nor framework can change what is generated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from zlib import crc32

from .adapter import Engine
from .errors import HandoffError, Refused, Unsupported
from .index.spans import LATE, VIRTUAL, Seq, common
from .types import Load, Open, Request, Row, RowResult, Step, StepResult
from .types.ops import Copy
from .workload.arrivals import Arrival

__all__ = ["Acts", "Environment", "RunOutcome", "Sink", "run"]

SAMPLED = VIRTUAL + (1 << 61)
"""First virtual number of outputs that nobody scripted."""
WRONG = VIRTUAL + (1 << 62)
"""First virtual number of guesses that are wrong; no output is that high."""


class Sink(Protocol):
    """Sees Steps and results in order: tag pass, executor, ledger."""

    def step(self, step: Step) -> None:
        """A Step was planned."""

    def complete(self, result: StepResult) -> None:
        """The result of the oldest Step is about to be handed to the engine."""


@runtime_checkable
class Acts(Protocol):
    """Engines that know actions besides requests (``reset_prefix_cache``, ``slot_save`` ...)."""

    def act(self, action: str, options: dict[str, object], now: float) -> None:
        """Do it; ``Unsupported`` if the action is not known."""


@dataclass(slots=True)
class RunOutcome:
    """What came of a run. Times are seconds of the virtual clock."""

    finished: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    submitted: dict[str, float] = field(default_factory=dict)
    first_token: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, Seq] = field(default_factory=dict)
    steps: int = 0
    now: float = 0.0


class Environment:
    """Sampler, drafter and acceptance: answers Steps, remembers who generated what."""

    def __init__(self, seed: int, num_drafts: int, acceptance: float) -> None:
        self._seed = seed
        self._num_drafts = num_drafts
        self._acceptance = acceptance
        self._requests: dict[str, Request] = {}
        self._of_seq: dict[int, str] = {}
        self._drafts: dict[int, tuple[int, ...]] = {}
        self.emitted: dict[str, Seq] = {}
        self.transfers: list[int] = []

    def add(self, request: Request) -> None:
        """Make a request's scripted outputs known."""
        self._requests[request.id] = request
        self.emitted.setdefault(request.id, Seq())

    def see(self, step: Step) -> None:
        """Note who owns which sequence and which transfers were started."""
        for op in step.ops:
            if type(op) is Open:
                self._of_seq[op.seq] = op.request
                self._take_back(op)
            elif isinstance(op, (Copy, Load)) and op.transfer is not None:
                self.transfers.append(op.transfer)

    def _take_back(self, op: Open) -> None:
        """A resumed request generates again what its planner dropped.

        A preempted request may have a Step in flight whose output is not kept (SGLang's retraction
        under overlap). A text that is no prefix of prompt and outputs (context shift) says nothing.
        """
        request, emitted = self._requests.get(op.request), self.emitted.get(op.request)
        if request is None or not emitted:
            return
        length = len(request.prompt)
        kept = len(op.tokens) - length
        if (
            0 <= kept < len(emitted)
            and common(op.tokens, 0, request.prompt, 0, length) == length
            and common(op.tokens, length, emitted, 0, kept) == kept
        ):
            self.emitted[op.request] = emitted.slice(0, kept)

    def request_of(self, seq: int) -> str:
        """The request (or branch) that a sequence generates for."""
        return self._of_seq[seq]

    def output(self, request: str, index: int) -> int:
        """Output ``index`` of a request: scripted, else a number of its own."""
        scripted = self._scripted(request)
        if scripted is not None and index < len(scripted):
            return scripted[index]
        return SAMPLED + (crc32(f"{self._seed}/{request}".encode()) << 24) + index

    def wanted(self, request: str) -> int:
        """Outputs that a request still wants."""
        found = self._owner(request)
        done = len(self.emitted[request]) if request in self.emitted else 0
        return (found.max_tokens if found else 1 << 60) - done

    def answer(self, row: Row) -> RowResult:
        """What one row produced."""
        request = self._of_seq[row.seq]
        emitted = self.emitted.setdefault(request, Seq())
        wanted = self.wanted(request)
        if row.emits == 0 or wanted <= 0:
            return RowResult(row.seq, ())
        first = len(emitted)
        proposed = self._drafts.pop(row.seq, ())
        accepted = 0
        if row.drafts:
            guesses = row.tokens.tokens(len(row.tokens) - row.drafts)
            for at, guess in enumerate(guesses):
                if guess == LATE:
                    guess = proposed[at] if at < len(proposed) else WRONG
                if guess != self.output(request, first + at):
                    break
                accepted += 1
        tokens = tuple(self.output(request, first + at) for at in range(min(accepted + 1, wanted)))
        for token in tokens:
            emitted.append(token)
        drafts = self._propose(request, first + len(tokens)) if self._num_drafts else ()
        self._drafts[row.seq] = drafts
        return RowResult(row.seq, tokens, drafts)

    def _propose(self, request: str, index: int) -> tuple[int, ...]:
        return tuple(self._guess(request, index + k) for k in range(self._num_drafts))

    def _guess(self, request: str, index: int) -> int:
        luck = crc32(f"{self._seed}/{request}/{index}".encode()) / 2**32
        if luck < self._acceptance:
            return self.output(request, index)
        return WRONG + (crc32(request.encode()) << 24) + index

    def _owner(self, request: str) -> Request | None:
        """The submitted request, also for a branch named ``id#...`` of it."""
        return self._requests.get(request) or self._requests.get(request.partition("#")[0])

    def _scripted(self, request: str) -> Seq | None:
        found = self._requests.get(request)
        return found.outputs if found else None


def run(
    engine: Engine,
    arrivals: Iterable[Arrival] | Sequence[Arrival],
    *,
    sinks: Sequence[Sink] = (),
    seed: int = 0,
    acceptance: float = 0.7,
    step_seconds: Callable[[Step], float] = lambda step: 0.02,
    on_submit: Callable[[Request, float], None] | None = None,
    on_refused: Callable[[Request, str], None] | None = None,
    on_finish: Callable[[str, float], None] | None = None,
) -> RunOutcome:
    """Serve all arrivals; returns when the engine is idle and nothing can arrive any more.

    Up to ``engine.depth`` Steps are planned ahead; the oldest is run and completed. A request that
    can never be admitted is refused (and counted) as soon as nothing else moves.
    """
    loop = _Loop(engine, list(arrivals), seed, acceptance, step_seconds)
    loop.sinks = tuple(sinks)
    loop.on_submit, loop.on_refused, loop.on_finish = on_submit, on_refused, on_finish
    return loop.run()


class _Loop:
    def __init__(
        self,
        engine: Engine,
        arrivals: list[Arrival],
        seed: int,
        acceptance: float,
        step_seconds: Callable[[Step], float],
    ) -> None:
        self.engine = engine
        self.step_seconds = step_seconds
        self.sinks: tuple[Sink, ...] = ()
        self.on_submit: Callable[[Request, float], None] | None = None
        self.on_refused: Callable[[Request, str], None] | None = None
        self.on_finish: Callable[[str, float], None] | None = None
        self.env = Environment(seed, engine.num_drafts, acceptance)
        self.outcome = RunOutcome(outputs=self.env.emitted)
        self.flying: deque[Step] = deque()
        self.active: dict[str, Request] = {}
        timed = [a for a in arrivals if a.when.kind == "start" and a.request is not None]
        self.timed = deque(sorted(timed, key=lambda a: a.request.arrival if a.request else 0.0))
        self.held = [a for a in arrivals if a.when.kind != "start" or a.request is None]
        self.done: set[str] = set()
        self.now = 0.0
        self.idle = True

    def run(self) -> RunOutcome:
        while True:
            self.admit_due()
            while len(self.flying) < self.engine.depth:
                step = self.engine.step(self.now)
                if step is None:
                    break
                self.plan(step)
            self.idle = not self.flying
            if self.flying:
                self.answer(self.flying.popleft())
            elif not self.wait():
                break
        self.drain()
        self.outcome.now = self.now
        return self.outcome

    # -- arrivals ---------------------------------------------------------------------------

    def admit_due(self) -> None:
        """Submit everything whose condition holds, in order."""
        while self.timed:
            request = self.timed[0].request
            assert request is not None
            if request.arrival > self.now:
                break
            self.submit(self.timed.popleft())
        progress = bool(self.held)
        while progress:
            progress = False
            for at, arrival in enumerate(self.held):
                if self.due(arrival):
                    del self.held[at]
                    self.submit(arrival)
                    progress = True
                    break

    def due(self, arrival: Arrival) -> bool:
        when = arrival.when
        if when.kind == "start":  # an action at the start
            return True
        if when.kind == "with":
            return when.target in self.outcome.submitted
        if when.kind == "during_decode":
            emitted = self.env.emitted.get(when.target)
            reached = emitted is not None and len(emitted) >= when.count
            return reached or when.target in self.done
        if when.target not in self.done:
            return False
        return bool(self.active) or self.idle

    def submit(self, arrival: Arrival) -> None:
        self.outcome.submitted[arrival.id] = self.now
        if arrival.request is None:
            self.act(arrival)
            return
        request = arrival.request
        self.env.add(request)
        if self.on_submit:
            self.on_submit(request, self.now)
        try:
            self.engine.submit(request, self.now)
        except Refused as error:
            self.refuse(request, str(error))
            return
        self.active[request.id] = request
        self.idle = False

    def act(self, arrival: Arrival) -> None:
        assert arrival.action is not None
        if not isinstance(self.engine, Acts):
            raise Unsupported(f"request {arrival.id}: this adapter knows no actions")
        try:
            self.engine.act(arrival.action, dict(arrival.options), self.now)
        except HandoffError as error:
            raise type(error)(f"request {arrival.id}: {error}") from None
        self.done.add(arrival.id)

    def refuse(self, request: Request, why: str) -> None:
        self.outcome.refused[request.id] = why
        self.done.add(request.id)
        self.active.pop(request.id, None)
        if self.on_refused:
            self.on_refused(request, why)

    # -- steps ------------------------------------------------------------------------------

    def plan(self, step: Step) -> None:
        self.env.see(step)
        self.flying.append(step)
        self.outcome.steps += 1
        for sink in self.sinks:
            sink.step(step)
        for event in step.events:
            if event.kind == "refuse" and event.request in self.active:
                self.refuse(self.active[event.request], event.rule or "refused")

    def answer(self, step: Step) -> None:
        seconds = self.step_seconds(step)
        self.now += seconds
        arrived, self.env.transfers = tuple(self.env.transfers), []
        result = StepResult(
            step.number,
            tuple(self.env.answer(row) for row in step.rows),
            forward_s=seconds,
            arrived=arrived,
        )
        for sink in self.sinks:
            sink.complete(result)
        self.engine.complete(result, self.now)
        for row in result.rows:
            if row.tokens:
                request = self.env.request_of(row.seq)
                self.outcome.first_token.setdefault(request, self.now)
                if self.env.wanted(request) <= 0:
                    self.finish(request)
        for event in step.events:
            if event.kind in ("finish", "abort") and event.request in self.active:
                self.finish(event.request)

    def finish(self, request: str) -> None:
        if self.active.pop(request, None) is None:
            return
        self.done.add(request)
        self.outcome.finished[request] = self.now
        if self.on_finish:
            self.on_finish(request, self.now)

    # -- when nothing can be planned --------------------------------------------------------

    def wait(self) -> bool:
        """Move the clock to what comes next; False if nothing ever will."""
        self.drain()
        self.idle = True
        if any(self.due(arrival) for arrival in self.held):
            return True
        times = [self.timed[0].request.arrival] if self.timed and self.timed[0].request else []
        event = self.engine.next_event()
        if event is not None and event > self.now:
            times.append(event)
        if times:
            self.now = max(self.now, min(times))
            return True
        if self.active:
            request = next(iter(self.active.values()))
            self.engine.abort(request.id, self.now)
            self.refuse(request, "never admitted: it does not fit the pool beside what is held")
            return True
        for arrival in self.held:
            if arrival.request is not None:
                self.refuse(arrival.request, f"waits for {arrival.when.target} in vain")
        self.held = []
        return False

    def drain(self) -> None:
        step = self.engine.drain()
        if step is not None:
            self.plan(step)
            self.answer(self.flying.pop())
