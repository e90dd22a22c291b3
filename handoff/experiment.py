"""One run: rows (an adapter with one set of options each) over scenarios or a trace.

A row gets a fresh engine per scenario. Whoever wants to know what happened is a sink: the Step
checker and the tag pass always, the ledger's accountant always, the executor with its truth test
when something is executed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .adapter import Adapter, Cites, Counts, Engine, Isolates, Options, load, make_options, names
from .errors import BadInput
from .ledger.attribution import Accountant, Label
from .ledger.costs import Costs
from .ledger.entries import Entry
from .ledger.roofline import device as find_device
from .ledger.seen import ISOLATING
from .model.presets import load_model
from .report.info import Expectation, RowInfo, Tags, Truth
from .report.steplog import StepLog
from .runner import RunOutcome, Sink, run
from .store.tags import TagStore
from .types.checks import StepChecker
from .workload.arrivals import Arrival
from .workload.scenario import LARGEST_POOL, Scenario
from .workload.scenario import Expectation as Expected

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "POOL_TOKENS",
    "RowSpec",
    "Stream",
    "Work",
    "check_scenario",
    "label_of",
    "rows_of",
    "run_row",
    "stream_of",
]

POOL_TOKENS = 16_384
"""Memory budget of every row, in tokens, where neither scenario nor caller states one."""


@dataclass(frozen=True)
class RowSpec:
    """One row of a run: the label in all tables, the adapter, and raw option values."""

    label: str
    adapter: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """Named arrivals with the budget they ask for and what is expected of them."""

    name: str
    arrivals: Callable[[], Sequence[Arrival]]
    scenario: Scenario | None = None
    pool_tokens: int | None = None
    acceptance: float = 0.7


@dataclass
class Work:
    """What one row made of one stream."""

    spec: RowSpec
    stream: str
    entries: list[Entry]
    outcome: RunOutcome
    info: RowInfo
    expectations: list[Expectation]
    seconds: float
    engine: Engine
    steps: pd.DataFrame | None = None


def stream_of(scenario: Scenario) -> Stream:
    """A scenario as a stream; its arrivals are built afresh for every row."""
    return Stream(
        scenario.name,
        scenario.arrivals,
        scenario,
        scenario.pool_tokens,
        scenario.acceptance,
    )


def rows_of(
    scenario: Scenario | None,
    adapters: Sequence[str],
    sets: Mapping[str, Mapping[str, Any]],
    extra: Sequence[RowSpec] = (),
) -> list[RowSpec]:
    """The rows of a stream: those that the scenario names, else one per adapter, then ``extra``.

    ``sets`` are option values by adapter; they win over the scenario's own, and what a row of
    ``extra`` states wins over them.
    """
    found = []
    if scenario is not None and scenario.rows:
        for row in scenario.rows:
            if row.adapter in adapters:
                found.append(RowSpec(row.label or row.adapter, row.adapter, row.set))
    else:
        found = [RowSpec(name, name) for name in adapters]
    shared = scenario.options if scenario is not None else {}
    found += extra
    labels = [row.label for row in found]
    if len(set(labels)) < len(labels):
        raise BadInput(f"two rows have the same label: {', '.join(labels)}")
    return [
        RowSpec(
            row.label,
            row.adapter,
            {**shared.get(row.adapter, {}), **row.values, **sets.get(row.adapter, {})}
            if row not in extra
            else {**shared.get(row.adapter, {}), **sets.get(row.adapter, {}), **row.values},
        )
        for row in found
    ]


def check_scenario(scenario: Scenario, file: object) -> None:
    """Every adapter, option, value and label that a scenario names exists.

    ``BadInput`` names file and field of the first that does not, also if this run leaves it out.
    """

    def check(field: str, adapter: str, values: Mapping[str, Any]) -> None:
        try:
            make_options(load(adapter), values)
        except BadInput as error:
            raise BadInput(str(error), file=file, field=field) from None

    for at, row in enumerate(scenario.rows):
        check(f"rows.{at}", row.adapter, {**scenario.options.get(row.adapter, {}), **row.set})
    for name, values in scenario.options.items():
        if all(row.adapter != name for row in scenario.rows):
            check(f"options.{name}", name, values)
    labels = [row.label or row.adapter for row in scenario.rows] or names()
    for label in scenario.expect:
        if label not in (*labels, "*"):
            raise BadInput(
                f"names no row; rows are {', '.join(labels)}", file=file, field=f"expect.{label}"
            )


def options_of(
    adapter: Adapter, values: Mapping[str, Any], pool_tokens: int
) -> tuple[Options, dict[str, Any], dict[str, Any]]:
    """Options with the budget put in; also the budget's values, and what is not upstream's default.

    A value that the caller gives wins over the budget.
    """
    if not 1 <= pool_tokens <= LARGEST_POOL:
        raise BadInput(f"a pool has 1 to {LARGEST_POOL:,} tokens, not {pool_tokens:,}")
    budget = dict(adapter.budget(pool_tokens, make_options(adapter, values)))
    options = make_options(adapter, {**budget, **values})
    changed = options.model_dump(mode="json", exclude_defaults=True)
    return options, budget, {k: v for k, v in changed.items() if k not in budget or k in values}


def label_of(
    adapter: Adapter,
    options: Options,
    *,
    run: str,
    scenario: str,
    changed: Mapping[str, Any] | None = None,
) -> Label:
    """What the ledger writes on every entry of a row, and what the adapter itself tells it."""
    return Label(
        run=run,
        adapter=adapter.name,
        title=adapter.title,
        upstream=adapter.upstream,
        evidence=adapter.evidence,
        scenario=scenario,
        describe=adapter.describe(options),
        options=changed or {},
        rules=adapter.rules if isinstance(adapter, Cites) else {},
        isolation_keys=adapter.isolation_keys if isinstance(adapter, Isolates) else ISOLATING,
    )


def run_row(
    spec: RowSpec,
    stream: Stream,
    *,
    pool_tokens: int | None = None,
    execute: bool = False,
    check_tags: bool = True,
    seed: int = 0,
    model: str = "llama-3.1-8b",
    device: str = "H200",
    log_steps: bool = False,
    on_finish: Callable[[str, float], None] | None = None,
    dtype: str = "float32",
) -> Work:
    """Serve ``stream`` with a fresh engine of ``spec``; all of it counted, checked, explained."""
    adapter = load(spec.adapter)
    tokens = pool_tokens or stream.pool_tokens or POOL_TOKENS
    options, budget, changed = options_of(adapter, spec.values, tokens)
    engine = adapter.engine(options)
    label = label_of(adapter, options, run=spec.label, scenario=stream.name, changed=changed)
    costs = Costs(load_model(model), engine.layout, find_device(device))
    counters = adapter.counters if isinstance(adapter, Counts) else None
    tags = TagStore(engine.layout) if check_tags else None
    tainted = tags.tainted if tags is not None else None
    accountant = Accountant(engine.layout, label, costs, counters, tainted)
    log = StepLog(spec.label, stream.name) if log_steps else None
    truth = None
    if execute:
        from .engine.truth import TruthCheck

        truth = TruthCheck(engine.layout, seed=seed, dtype=dtype)
    watching = (StepChecker(engine.layout), tags, accountant, log, truth)
    sinks: list[Sink] = [sink for sink in watching if sink is not None]
    began = time.perf_counter()
    outcome = run(
        engine,
        stream.arrivals(),
        sinks=sinks,
        seed=seed,
        acceptance=stream.acceptance,
        on_submit=accountant.submit,
        on_refused=accountant.refused,
        on_finish=on_finish,
        step_seconds=costs.step_seconds,
    )
    entries = accountant.finish()
    info = RowInfo(
        run=spec.label,
        pool=", ".join(
            f"{name} {value:,}"
            for name, value in {n: getattr(options, n) for n in budget}.items()
            if _is_count(value)
        ),
        pool_tokens=tokens,
        left_out=dict(adapter.left_out),
        truth=Truth(**asdict(truth.verdict())) if truth is not None else None,
        # A fault ends the run: where there is a record, every Step was clean.
        tags=Tags(steps=outcome.steps, tainted=tags.num_tainted) if tags else None,
    )
    kept = expectations(spec, adapter.name, stream, entries)
    return Work(
        spec,
        stream.name,
        entries,
        outcome,
        info,
        kept,
        time.perf_counter() - began,
        engine,
        log.to_pandas() if log is not None else None,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def merge_info(infos: Sequence[RowInfo]) -> list[RowInfo]:
    """One record per row over all streams: worst truth, summed tags."""
    merged: dict[str, RowInfo] = {}
    for info in infos:
        before = merged.get(info.run)
        merged[info.run] = info if before is None else _merged(before, info)
    return list(merged.values())


def _merged(a: RowInfo, b: RowInfo) -> RowInfo:
    truth, tags = a.truth or b.truth, a.tags or b.tags
    if a.truth and b.truth:
        truth = Truth(
            ok=a.truth.ok and b.truth.ok,
            max_error=max(a.truth.max_error, b.truth.max_error),
            tolerance=a.truth.tolerance,
            rows=a.truth.rows + b.truth.rows,
            dtype=a.truth.dtype,
            approximate_rows=a.truth.approximate_rows + b.truth.approximate_rows,
            approximate_max_error=max(a.truth.approximate_max_error, b.truth.approximate_max_error),
        )
    if a.tags and b.tags:
        tags = Tags(
            steps=a.tags.steps + b.tags.steps,
            faults=a.tags.faults + b.tags.faults,
            tainted=a.tags.tainted + b.tags.tainted,
        )
    same_pool = a.pool == b.pool
    return a.model_copy(
        update={
            "truth": truth,
            "tags": tags,
            "pool": a.pool if same_pool else "",
            "pool_tokens": a.pool_tokens if same_pool else None,
        }
    )


def expectations(
    spec: RowSpec, adapter: str, stream: Stream, entries: Sequence[Entry]
) -> list[Expectation]:
    """The scenario's expectations for this row, each in words and met or not."""
    if stream.scenario is None:
        return []
    wanted = stream.scenario.expect
    found: list[Expectation] = []
    plain = spec.label == adapter
    for key in dict.fromkeys((spec.label, *(["*"] if plain else []))):
        if key in wanted:
            found += _compare(spec.label, wanted[key], entries)
    return found


def _compare(label: str, wanted: Expected, entries: Sequence[Entry]) -> list[Expectation]:
    first = {entry.request: entry for entry in entries if entry.attempt == 0}
    values: dict[str, Callable[[Entry], int]] = {
        "hit": lambda e: e.hit_tokens,
        "start": lambda e: e.start,
        "compute": lambda e: e.computed_tokens,
        "moved": lambda e: e.moved,
    }
    found = []
    for part, read in values.items():
        for request, number in getattr(wanted, part).items():
            got = read(first[request]) if request in first else None
            words = f"{label} {request}: {part} {number:,}"
            ok = got == number
            if not ok:
                words += f", got {'nothing' if got is None else f'{got:,}'}"
            found.append(Expectation(words=words, ok=ok))
    for request, reasons in wanted.explain.items():
        entry = first.get(request)
        kinds = {run.kind for run in entry.runs} if entry is not None else set()
        for reason in reasons:
            ok = bool(kinds & set(reason.split("|")))
            words = f"{label} {request}: lost by {reason}"
            found.append(Expectation(words=words if ok else f"{words}, got {sorted(kinds)}", ok=ok))
    return found
