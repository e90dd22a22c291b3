"""The truth test of whole adapters, and the planted faults that prove it can fail.

Every scenario is executed; rows whose tags are clean are compared with a cold run under the same
rule, the others with the untruncated model (``engine.truth``). Then the recorded runs are replayed
with one fault each: the tags or the logits must notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .adapter import Engine, load
from .engine.broken import BROKEN, BrokenExecutor
from .engine.faults import FAULTS
from .engine.planting import Fault, Feed, Recorder, Scan
from .engine.truth import TOLERANCE, Approximation, Causes, TruthCheck
from .errors import Refused, Unsupported
from .experiment import POOL_TOKENS, Stream, options_of, rows_of
from .index.spans import VIRTUAL, Seq
from .runner import Sink, run
from .store.faults import TagFault
from .store.tags import TagStore
from .types import Layout, Load, Open, Request, Step, StepResult
from .types.checks import StepChecker
from .workload.arrivals import Arrival, When

__all__ = ["Exact", "Planted", "VerifyReport", "verify"]


@dataclass
class Exact:
    """Rows that must equal a cold run under the same rule; ``worst`` names the largest error."""

    requests: int = 0
    rows: int = 0
    max_rel_error: float = 0.0
    ok: bool = True
    worst: str = ""


@dataclass
class Approximate:
    """Rows that descend from an approximation, against the untruncated model.

    ``tainted`` counts computed tokens by cause; ``mean_kl`` is in nats, ``top1`` the share of rows
    with the same most likely token.
    """

    rows: int = 0
    max_rel_error: float = 0.0
    mean_kl: float = 0.0
    top1: float = 1.0
    tainted: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Planted:
    """One fault in one adapter's run: where it was planted and who caught it.

    ``tags`` and ``logits`` are what each catcher said, ``None`` if it noticed nothing.
    """

    adapter: str
    fault: str
    what: str
    scenario: str
    tags: str | None
    logits: str | None

    @property
    def caught(self) -> bool:
        """Somebody noticed."""
        return self.tags is not None or self.logits is not None


@dataclass
class VerifyReport:
    """Everything ``handoff verify`` says; ``as_json`` is its ``--json``."""

    dtype: str
    tolerance: float
    exact: dict[str, Exact] = field(default_factory=dict)
    approximate: dict[str, Approximate] = field(default_factory=dict)
    planted: list[Planted] = field(default_factory=list)
    not_applicable: list[tuple[str, str, str]] = field(default_factory=list)
    """(adapter, fault, why)."""
    complete: bool = False
    """Whether the streams are meant to let every kind of fault be planted somewhere."""

    @property
    def uncaught(self) -> list[Planted]:
        """Planted faults that nobody noticed."""
        return [each for each in self.planted if not each.caught]

    @property
    def unplanted(self) -> list[str]:
        """Kinds of faults that no adapter's runs could carry."""
        planted = {each.fault for each in self.planted}
        return sorted({fault for _, fault, _ in self.not_applicable} - planted)

    @property
    def ok(self) -> bool:
        """All exact rows agree, something was compared and planted, every fault was caught."""
        exact = all(each.ok and each.rows for each in self.exact.values())
        tried = {each.adapter for each in self.planted} == set(self.exact)
        return exact and tried and not self.uncaught and not (self.complete and self.unplanted)

    def as_json(self) -> dict[str, Any]:
        """Plain data; the keys of the documented output first."""
        return {
            "ok": self.ok,
            "dtype": self.dtype,
            "tolerance": self.tolerance,
            "exact": {name: asdict(each) for name, each in self.exact.items()},
            "approximate": {name: asdict(each) for name, each in self.approximate.items()},
            "faults": {
                "planted": len(self.planted),
                "caught": len(self.planted) - len(self.uncaught),
                "kinds": len({each.fault for each in self.planted}),
                "uncaught": [asdict(each) for each in self.uncaught],
                "unplanted": self.unplanted,
                "not_applicable": [
                    {"adapter": adapter, "fault": fault, "why": why}
                    for adapter, fault, why in self.not_applicable
                ],
                "list": [asdict(each) for each in self.planted],
            },
        }


@dataclass(frozen=True)
class _Run:
    """One healthy run, kept for planting."""

    scenario: str
    layout: Layout
    feed: Feed
    causes: Causes
    taint: Counter[str]


def verify(
    streams: Sequence[Stream],
    adapters: Sequence[str],
    *,
    sets: Mapping[str, Mapping[str, Any]] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    faults: Sequence[Fault] = FAULTS,
    broken: Sequence[BrokenExecutor] = BROKEN,
    complete: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> VerifyReport:
    """Execute ``streams`` with every adapter, compare, then plant each fault once per adapter.

    ``complete`` demands that each kind can be planted with at least one of the adapters. Set torch
    to one thread before calling: the models are small.
    """
    options = {"seed": seed, "dtype": dtype, "device": device, "exact": device != "cpu"}
    report = VerifyReport(dtype, TOLERANCE[dtype], complete=complete)
    for name in adapters:
        progress(f"{name}: executing {len(streams)} scenario{'s' * (len(streams) != 1)}")
        runs = _healthy(name, streams, sets or {}, options, report)
        progress(f"{name}: planting {len(faults) + len(broken)} kinds of faults")
        _plant_steps(name, runs, faults, options, report)
        _plant_executors(name, runs, broken, options, report)
        _plant_isolation(name, (sets or {}).get(name, {}), options, report)
    return report


# -- healthy runs -------------------------------------------------------------------------------


def _healthy(
    name: str,
    streams: Sequence[Stream],
    sets: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, Any],
    report: VerifyReport,
) -> list[_Run]:
    runs: list[_Run] = []
    exact = report.exact[name] = Exact()
    total = Approximation()
    tainted: Counter[str] = Counter()
    for stream in streams:
        for spec in rows_of(stream.scenario, [name], sets):
            engine = _engine(spec.adapter, spec.values, stream.pool_tokens)
            recorder, truth = Recorder(), TruthCheck(engine.layout, **options)
            sinks: list[Sink] = [StepChecker(engine.layout), recorder, truth]
            run(engine, stream.arrivals(), sinks=sinks, acceptance=stream.acceptance)
            truth.finish()
            assert truth.tags is not None
            _add(exact, truth, f"{stream.name}, {spec.label}")
            total.merge(truth.approximate)
            tainted += truth.tags.taint
            runs.append(
                _Run(
                    f"{stream.name} ({spec.label})",
                    engine.layout,
                    recorder.feed,
                    truth.causes,
                    truth.tags.taint,
                )
            )
    report.approximate[name] = Approximate(
        total.rows,
        total.max_error,
        total.kl / max(1, total.rows),
        total.top1 / total.rows if total.rows else 1.0,
        dict(tainted),
    )
    return runs


def _engine(name: str, values: Mapping[str, Any], pool_tokens: int | None) -> Engine:
    adapter = load(name)
    options, _, _ = options_of(adapter, values, pool_tokens or POOL_TOKENS)
    return adapter.engine(options)


def _add(exact: Exact, truth: TruthCheck, where: str) -> None:
    exact.requests += len(truth.requests)
    exact.rows += truth.rows
    exact.ok &= truth.ok
    error = max(truth.max_error, truth.moved_error)
    if error >= exact.max_rel_error:
        exact.max_rel_error, exact.worst = error, f"{where}: {truth.worst}"


# -- faults -------------------------------------------------------------------------------------


def _replay(feed: Feed, sink: TagStore | TruthCheck, mutant: Step | None = None) -> None:
    for item in feed:
        if isinstance(item, StepResult):
            sink.complete(item)
        else:
            sink.step(mutant if mutant is not None and mutant.number == item.number else item)


def _by_tags(run: _Run, mutant: Step | None, tags: TagStore | None = None) -> str | None:
    """What the tags say to a changed run: a fault, or other taint than the healthy run has."""
    tags = tags or TagStore(run.layout)
    try:
        _replay(run.feed, tags, mutant)
    except TagFault as fault:
        return str(fault)
    more, less = tags.taint - run.taint, run.taint - tags.taint
    if more:
        return f"taint {min(more)}: {tags.first[min(more)]}"
    if less:
        return f"taint {min(less)} of the healthy run is missing"
    return None


def _blind(run: _Run, options: Mapping[str, Any]) -> TruthCheck:
    """A truth check that knows the healthy run's taint and nothing else of its tags."""
    return TruthCheck(run.layout, check_tags=False, causes=dict(run.causes), **options)


def _by_logits(run: _Run, mutant: Step | None, truth: TruthCheck) -> str | None:
    """What the logits say to a changed run."""
    try:
        _replay(run.feed, truth, mutant)
        truth.finish()
    except TagFault:
        return None  # the executor's own tables stopped it: the tags' merit, not the logits'
    if truth.ok:
        return None
    if truth.not_finite:
        return f"{truth.not_finite} rows with missing numbers"
    return f"error {max(truth.max_error, truth.moved_error):.1e} ({truth.worst or 'moved keys'})"


def _plant_steps(
    name: str,
    runs: Sequence[_Run],
    faults: Sequence[Fault],
    options: Mapping[str, Any],
    report: VerifyReport,
) -> None:
    left = {fault.name: fault for fault in faults}
    for each in runs:
        scan = Scan(each.layout, list(left.values()))
        _replay(each.feed, scan)
        for found, mutant in scan.found.items():
            fault = left.pop(found)
            tags, logits = _by_tags(each, mutant), _by_logits(each, mutant, _blind(each, options))
            report.planted.append(Planted(name, found, fault.what, each.scenario, tags, logits))
    report.not_applicable += [(name, fault.name, fault.absent) for fault in left.values()]


def _plant_executors(
    name: str,
    runs: Sequence[_Run],
    broken: Sequence[BrokenExecutor],
    options: Mapping[str, Any],
    report: VerifyReport,
) -> None:
    left = {kind.name: kind for kind in broken}
    for each in runs:
        able = Scan(each.layout, FAULTS)
        _replay(each.feed, able)
        for kind in list(left.values()):
            if kind.needs and kind.needs not in able.found:
                continue
            truth = _blind(each, options)
            if not kind.plant(truth.executor, each.feed, each.causes):
                continue
            del left[kind.name]
            said = _by_logits(each, None, truth)
            report.planted.append(Planted(name, kind.name, kind.what, each.scenario, None, said))
    report.not_applicable += [(name, kind.name, kind.absent) for kind in left.values()]


# -- isolation ----------------------------------------------------------------------------------


def _plant_isolation(
    name: str, values: Mapping[str, Any], options: Mapping[str, Any], report: VerifyReport
) -> None:
    """The planner forgets LoRA or salt: the same prompt twice under two keys."""
    for key in ("lora", "salt"):
        fault = f"{key} ignored"
        prompt = Seq.virtual(VIRTUAL, 300)
        requests = [
            Request(f"{key}-{at}", prompt, 3, **{key: word})  # type: ignore[arg-type]
            for at, word in enumerate(("red", "blue"))
        ]
        salts = {request.id: request.salt for request in requests}
        try:
            healthy = _keyed(name, values, requests, ignored=False)
            run = _keyed(name, values, requests, ignored=True)
        except (Refused, Unsupported) as error:
            report.not_applicable.append((name, fault, str(error)))
            continue
        why = _not_isolated(key, healthy, run, salts)
        if why:
            report.not_applicable.append((name, fault, why))
            continue
        tags = _by_tags(run, None, TagStore(run.layout, salts=salts))
        logits = _by_logits(run, None, _blind(run, options))
        what = f"the {key} is left out of the key"
        report.planted.append(Planted(name, fault, what, run.scenario, tags, logits))


def _not_isolated(
    key: str, healthy: _Run, run: _Run, salts: Mapping[str, str | None]
) -> str | None:
    """Why leaving ``key`` out is no fault of these runs, if so."""
    steps = (step for step in run.feed if isinstance(step, Step))
    if any(isinstance(op, Load) for step in steps for op in step.ops):
        return "hits come from a remote that is not simulated: it answers with the right values"
    before = TagStore(healthy.layout, salts=salts)
    _replay(healthy.feed, before)
    if before.taint:
        return f"upstream itself does not separate by {key}"
    return None


def _keyed(
    name: str, values: Mapping[str, Any], requests: Sequence[Request], *, ignored: bool
) -> _Run:
    """Run the requests one after the other; ``ignored``: the engine is not told their keys."""
    engine = _engine(name, values, None)
    shown = [replace(each, lora=None, salt=None) if ignored else each for each in requests]
    arrivals = [
        Arrival(request.id, When("after", shown[at - 1].id) if at else When(), request)
        for at, request in enumerate(shown)
    ]
    recorder = Recorder()
    outcome = run(engine, arrivals, sinks=[recorder])
    if outcome.refused:
        raise Refused("; ".join(outcome.refused.values()))
    loras = {request.id: request.lora for request in requests}
    feed = [item if isinstance(item, StepResult) else _told(item, loras) for item in recorder.feed]
    return _Run("the same prompt under two keys", engine.layout, feed, {}, Counter())


def _told(step: Step, loras: Mapping[str, str | None]) -> Step:
    """The Step with the LoRA that each sequence really runs under."""
    ops = tuple(
        op._replace(lora=loras[op.request.partition("#")[0]]) if isinstance(op, Open) else op
        for op in step.ops
    )
    return replace(step, ops=ops)
