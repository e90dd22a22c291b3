"""What every adapter must keep, whatever its rules: a suite that third parties can run, too.

    from handoff.conformance.contract import check_adapter
    check_adapter(load("mine"))

Random streams of related requests are served through a small pool; every Step is checked
(``StepChecker``), the tag pass must find no fault, and a second run must give the same Steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from handoff.adapter import Adapter, Engine, make_options
from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, Seq
from handoff.runner import RunOutcome, run
from handoff.store.tags import TagStore
from handoff.types import Request, Step, StepResult
from handoff.types.checks import StepChecker
from handoff.workload.arrivals import Arrival, When

__all__ = ["check_adapter", "random_stream", "serve"]

POOL_TOKENS = 1024


class _Log:
    """Keeps every Step and result as text, for comparing two runs."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, step: Step) -> None:
        self.lines.append(repr(step))

    def complete(self, result: StepResult) -> None:
        self.lines.append(repr(result))


class _Probing:
    """Asks the engine what a look-up would find, between any two Steps."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._requests = requests
        self._at = 0

    def step(self, step: Step) -> None:
        self._probe()

    def complete(self, result: StepResult) -> None:
        self._probe()

    def _probe(self) -> None:
        request = self._requests[self._at % len(self._requests)]
        self._at += 1
        match = self._engine.probe(request)
        assert 0 <= match.hit_tokens < len(request.prompt) or match.hit_tokens == 0


def random_stream(seed: int, *, concurrent: bool, longest: int = 200) -> list[Arrival]:
    """Requests that repeat, extend and quote each other: shared heads, outputs, near misses."""
    rng = random.Random(seed)
    heads = [Seq.virtual(VIRTUAL + (k + 1) * (1 << 32), longest) for k in range(3)]
    found: list[Arrival] = []
    for index in range(rng.randrange(6, 12)):
        name = f"r{index}"
        prompt = Seq()
        kind = rng.random()
        earlier = [a.request for a in found if a.request is not None]
        if earlier and kind < 0.5:
            source = rng.choice(earlier)
            prompt.extend(source.prompt, 0, rng.randrange(1, len(source.prompt) + 1))
            if len(prompt) == len(source.prompt) and source.outputs and rng.random() < 0.7:
                prompt.extend(source.outputs, 0, rng.randrange(0, source.max_tokens + 1))
        elif kind < 0.9:
            prompt.extend(rng.choice(heads), 0, rng.randrange(1, longest))
        room = longest - len(prompt)
        if room > 0 and (rng.random() < 0.8 or not len(prompt)):
            unique = VIRTUAL + (index + 9) * (1 << 32)
            prompt.extend(Seq.virtual(unique, longest), 0, rng.randrange(1, room + 1))
        outputs = rng.randrange(1, 30)
        when = When()
        if found and not (concurrent and rng.random() < 0.7):
            when = When("after", found[-1].id)
        request = Request(
            name,
            prompt,
            outputs,
            Seq.virtual(VIRTUAL + (index + 99) * (1 << 32), outputs),
            salt=rng.choice((None, None, "s")),
        )
        found.append(Arrival(name, when, request))
    return found


def serve(
    engine: Engine, arrivals: Sequence[Arrival], sinks: Sequence[Any] = (), seed: int = 0
) -> RunOutcome:
    """Run with the Step checker and the tag pass; both raise on the first fault."""
    return run(
        engine,
        arrivals,
        sinks=[StepChecker(engine.layout), TagStore(engine.layout), *sinks],
        seed=seed,
    )


def check_adapter(
    adapter: Adapter,
    *,
    values: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = range(6),
    pool_tokens: int = POOL_TOKENS,
    on_outcome: Callable[[RunOutcome], None] | None = None,
) -> None:
    """Asserts the contract for one set of option values; ``AssertionError`` says what broke."""
    _check_words(adapter)
    given = dict(values or {})
    budget = dict(adapter.budget(pool_tokens, make_options(adapter, given)))
    options = make_options(adapter, {**budget, **given})
    for seed in seeds:
        for concurrent in (False, True):
            arrivals = random_stream(seed, concurrent=concurrent)
            first, second = _Log(), _Log()
            outcome = serve(adapter.engine(options), arrivals, [first], seed)
            _check_served(outcome, arrivals)
            engine = adapter.engine(options)
            requests = [a.request for a in arrivals if a.request is not None]
            serve(engine, arrivals, [second, _Probing(engine, requests)], seed)
            assert first.lines == second.lines, "a second run, probed in between, differs"
            if on_outcome:
                on_outcome(outcome)


def _check_words(adapter: Adapter) -> None:
    assert isinstance(adapter, Adapter), "the adapter lacks parts of the protocol"
    assert adapter.name.isidentifier() and adapter.title and adapter.upstream
    assert issubclass(adapter.options, pydantic.BaseModel)
    try:
        make_options(adapter, {"no_such_option": 1})
    except BadInput:
        return
    raise AssertionError("unknown options must be refused")


def _check_served(outcome: RunOutcome, arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        request = arrival.request
        assert request is not None
        served = request.id in outcome.finished
        assert served or request.id in outcome.refused, f"{request.id} was forgotten"
        if served:
            given = outcome.outputs[request.id]
            assert given == request.outputs, f"{request.id} generated {given!r}"
