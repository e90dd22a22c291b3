"""A whole run: sources times rows, kept part by part, with everything a report says about it.

``execute`` is what ``handoff run`` and ``handoff.run`` share. A finished row is on disk before the
next one starts, so an interrupted run loses nothing and can be resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapter import load, make_options
from .errors import BadInput
from .experiment import (
    RowSpec,
    Stream,
    Work,
    check_scenario,
    merge_info,
    rows_of,
    run_row,
    stream_of,
)
from .ledger.entries import Ledger, read_ledger
from .report.info import Expectation, RowInfo, RunInfo, ScenarioInfo
from .types import Request
from .workload.arrivals import Arrival, When
from .workload.scenario import Scenario, builtin, load_scenario

try:
    import fcntl
except ImportError:  # no POSIX: runs cannot lock their folder there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Finished", "Result", "RunPlan", "execute", "forget_parts"]

LOGGED = 200
"""Streams of at most so many requests keep a log of their Steps (timeline, Perfetto)."""


@dataclass(frozen=True)
class RunPlan:
    """What ``handoff run`` was asked for; paths and names are checked when it is executed."""

    sources: Sequence[str | Scenario]
    adapters: Sequence[str]
    command: str
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    pool_tokens: int | None = None
    execute: bool | None = None
    limit: int | None = None
    model: str = "llama-3.1-8b"
    device: str = "H200"
    seed: int = 0
    out: Path | None = None
    skip_bad: bool = False
    resume: bool = False
    extra: Sequence[RowSpec] = ()
    today: str | None = None

    def __post_init__(self) -> None:
        if self.today is not None and not _is_day(self.today):
            raise BadInput(f"{self.today!r} is no date of the form YYYY-MM-DD", field="date")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclass
class _Source:
    """One stream with what the report says about it."""

    stream: Stream
    info: ScenarioInfo
    execute: bool
    digest: str
    skipped: list[str] = field(default_factory=list)


@dataclass
class Finished:
    """One row over one stream, as it is kept on disk."""

    ledger: Ledger
    info: RowInfo
    expectations: list[Expectation]
    steps: pd.DataFrame | None = None


@dataclass
class Result:
    """What a run left: the ledger, the facts about it, the log of Steps where one was kept.

    ``stopped`` is what ended the run early, if anything did; what was finished is all here.
    """

    ledger: Ledger
    info: RunInfo
    steps: pd.DataFrame | None
    seconds: float
    stopped: KeyboardInterrupt | Exception | None = None

    @property
    def fine(self) -> bool:
        """Every executed row equals its cold recompute and every expectation is met."""
        truths = [row.truth.ok for row in self.info.rows if row.truth is not None]
        kept = [each.ok for scenario in self.info.scenarios for each in scenario.expectations]
        return all(truths) and all(kept)


def execute(plan: RunPlan, say: Callable[[str], None] = lambda text: None) -> Result:
    """Serve everything; ``say`` gets progress, one line at a time.

    Raises what stopped it only if nothing was finished by then.
    """
    sources = [_source(name, plan, say) for name in plan.sources or builtin()]
    _distinct([source.stream.name for source in sources])
    jobs = [
        (spec, source)
        for source in sources
        for spec in rows_of(source.stream.scenario, plan.adapters, plan.sets, plan.extra)
    ]
    if not jobs:
        raise BadInput(f"no scenario has a row of {', '.join(plan.adapters)}")
    for spec, _ in jobs:  # every mistake in options is found before anything runs
        make_options(load(spec.adapter), spec.values)
    smallest = _smallest([spec for spec, _ in jobs], say)
    parts = _Parts(plan)
    finished: list[tuple[_Source, Finished]] = []
    began = time.perf_counter()
    stopped: KeyboardInterrupt | Exception | None = None
    try:
        with parts.alone():
            for at, (spec, source) in enumerate(jobs):
                if len(sources) > 1 and (not at or jobs[at - 1][1] is not source):
                    say(f"{source.stream.name} ({sources.index(source) + 1} of {len(sources)})")
                with _fitting(spec):
                    finished.append((source, _serve(spec, source, plan, parts, say)))
    except (KeyboardInterrupt, Exception) as error:  # whatever it was, what is finished is kept
        if not finished:
            raise
        stopped = error
    for _, done in finished:
        done.info = done.info.model_copy(update={"smallest_prompt": smallest[done.info.run]})
    logs = [done.steps for _, done in finished if done.steps is not None]
    return Result(
        Ledger(entry for _, done in finished for entry in done.ledger),
        _run_info(plan, sources, finished),
        _joined(logs),
        time.perf_counter() - began,
        stopped,
    )


def _smallest(specs: Sequence[RowSpec], say: Callable[[str], None]) -> dict[str, int | None]:
    """The shortest prompt that can hit, per row; says at the start where none ever can."""
    from .explain.compare import smallest_of

    found: dict[str, int | None] = {}
    for spec in specs:
        if spec.label in found:
            continue
        with _fitting(spec):
            found[spec.label] = smallest_of(spec)
        if found[spec.label] is None:
            say(f"warning {spec.label}: a prompt sent again can never hit under these options")
    return found


@contextmanager
def _fitting(spec: RowSpec) -> Iterator[None]:
    """A pool that no memory can hold is a mistake in the row's options."""
    try:
        yield
    except (MemoryError, OverflowError) as error:
        raise BadInput(
            f"row {spec.label}: this machine has no memory for what its options ask ({error})"
        ) from None


def forget_parts(plan: RunPlan) -> None:
    """Drop what was kept for ``resume``; call it once the run's results are written."""
    _Parts(plan).clear()


def _joined(logs: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    if not logs:
        return None
    import pandas as pd

    return pd.concat(logs, ignore_index=True)


# -- sources -----------------------------------------------------------------------------------


def _source(name: str | Scenario, plan: RunPlan, say: Callable[[str], None]) -> _Source:
    if isinstance(name, Scenario):
        return _scenario(name, f"scenario {name.name}", plan)
    path = Path(name)
    if name == "-" or path.name.endswith((".jsonl", ".jsonl.gz", ".json", ".gz")):
        return _trace(path, plan, say)
    source = name if path.suffix else f"built-in scenario {name}"
    return _scenario(load_scenario(name), source, plan)


def _scenario(scenario: Scenario, source: str, plan: RunPlan) -> _Source:
    check_scenario(scenario, source)
    text = json.dumps(scenario.model_dump(mode="json"), sort_keys=True)
    info = ScenarioInfo(
        name=scenario.name,
        question=scenario.question,
        notice=" ".join(scenario.notice.split()),
        source=source,
        pool_tokens=plan.pool_tokens or scenario.pool_tokens,
    )
    execute = plan.execute is not False
    return _Source(stream_of(scenario), info, execute, _sha(text.encode()))


def _trace(path: Path, plan: RunPlan, say: Callable[[str], None]) -> _Source:
    """A Mooncake-format file as a stream; read once, prompts stay virtual spans."""
    from .workload.mooncake import read_mooncake

    skipped: list[str] = []
    requests = list(read_mooncake(path, plan.limit, skip_bad=skipped if plan.skip_bad else None))
    for line in skipped:
        say(f"skipped {line}")
    if not requests:
        raise BadInput(f"holds no {'readable ' if skipped else ''}request", file=path)
    name = path.name.split(".")[0] if str(path) != "-" else "stdin"
    arrivals = [Arrival(request.id, When(), request) for request in requests]
    whole = "" if plan.limit is None else f"first {len(requests):,} requests of "
    info = ScenarioInfo(
        name=name,
        source=f"{whole}{path.name}",
        notice=f"{len(skipped):,} unreadable lines were skipped" if skipped else "",
        pool_tokens=plan.pool_tokens,
    )
    return _Source(
        Stream(name, lambda: arrivals),
        info,
        bool(plan.execute),
        _sha(path.read_bytes()) if str(path) != "-" else _digest(requests),
        skipped,
    )


def _distinct(names: Sequence[str]) -> None:
    """Refuses two sources of one name: their entries could not be told apart."""
    for name, count in Counter(names).items():
        if count > 1:
            raise BadInput(f"{count} sources are named {name}: give each of them another name")


def _digest(requests: Sequence[Request]) -> str:
    text = repr([(r.id, repr(r.prompt), r.max_tokens, r.arrival) for r in requests])
    return _sha(text.encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- serving -----------------------------------------------------------------------------------


def _serve(
    spec: RowSpec,
    source: _Source,
    plan: RunPlan,
    parts: _Parts,
    say: Callable[[str], None],
) -> Finished:
    kept = parts.load(spec, source)
    if kept is not None:
        return kept
    report = _Progress(f"{source.stream.name}: {spec.label}", source, say)
    work = run_row(
        spec,
        source.stream,
        pool_tokens=plan.pool_tokens,
        execute=source.execute,
        seed=plan.seed,
        model=plan.model,
        device=plan.device,
        log_steps=report.total <= LOGGED,
        on_finish=report.finished,
    )
    report.end(work)
    done = Finished(Ledger(work.entries), work.info, work.expectations, work.steps)
    parts.save(spec, source, done)
    return done


class _Progress:
    """Progress on standard error: a live line on a terminal, one line per 10 % otherwise."""

    def __init__(self, name: str, source: _Source, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._live = sys.stderr.isatty()
        scenario = source.stream.scenario
        self.total = len(scenario.requests) if scenario else len(source.stream.arrivals())
        self._done = 0
        self._shown = 0
        self._began = time.perf_counter()

    def finished(self, request: str, now: float) -> None:
        """One more request is done."""
        self._done += 1
        if self.total < 100:
            return
        if self._live and self._done % 20 == 0:
            rate = self._done / max(1e-9, time.perf_counter() - self._began)
            left = (self.total - self._done) / rate
            print(
                f"\r{self._name}  {self._done:,}/{self.total:,}  {rate:,.0f} req/s"
                f"  {left:.0f} s left \033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif not self._live and self._done * 10 // self.total > self._shown:
            self._shown = self._done * 10 // self.total
            self._say(f"{self._name}  {self._done:,}/{self.total:,}")

    def end(self, work: Work) -> None:
        """The row is done."""
        if self._live:
            print("\r\033[K", end="", file=sys.stderr)
        if self.total >= 100:
            self._say(f"{self._name}  {self._done:,} requests in {work.seconds:.1f} s")


class _Parts:
    """Finished rows on disk, so that an interrupted run loses nothing and can be resumed."""

    def __init__(self, plan: RunPlan) -> None:
        self._folder = plan.out / ".parts" if plan.out is not None else None
        self._plan = plan

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The folder can be written and no other run writes into it; ``BadInput`` otherwise.

        Where the system has no such locks, nobody looks for another run.
        """
        if self._folder is None:
            yield
            return
        out = self._folder.parent
        held = None
        held = None
        try:
            out.mkdir(parents=True, exist_ok=True)
            if fcntl is not None:
                held = os.open(out, os.O_RDONLY)
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._plan.resume:
                self.clear()
            self._folder.mkdir(exist_ok=True)
        except BlockingIOError:
            raise BadInput("another run is writing into this folder", file=out) from None
        except OSError as error:
            raise BadInput(f"cannot be written: {error.strerror}", file=out) from None
        try:
            yield
        finally:
            if held is not None:
                os.close(held)  # and with it the lock

    def _key(self, spec: RowSpec, source: _Source) -> Path | None:
        if self._folder is None:
            return None
        plan = self._plan
        facts = [
            spec.label,
            spec.adapter,
            dict(spec.values),
            source.stream.name,
            source.digest,
            source.execute,
            plan.limit,
            plan.pool_tokens,
            plan.model,
            plan.device,
            plan.seed,
        ]
        return self._folder / _sha(json.dumps(facts, sort_keys=True, default=str).encode())[:24]

    def load(self, spec: RowSpec, source: _Source) -> Finished | None:
        """The row as an earlier run finished it, if ``--resume`` is on and it is there."""
        key = self._key(spec, source)
        if key is None or not self._plan.resume or not key.with_suffix(".json").exists():
            return None
        facts = key.with_suffix(".json")
        stored = json.loads(facts.read_text())
        return Finished(
            read_ledger(key.with_suffix(".parquet")),
            RowInfo.model_validate(stored["info"]),
            [Expectation.model_validate(each) for each in stored["expectations"]],
            _read_steps(key.with_suffix(".steps")),
        )

    def save(self, spec: RowSpec, source: _Source, done: Finished) -> None:
        """Keep a finished row; its facts are written last, so a torn one is never read."""
        key = self._key(spec, source)
        if key is None:
            return
        key.parent.mkdir(parents=True, exist_ok=True)
        done.ledger.write_parquet(key.with_suffix(".parquet"))
        if done.steps is not None:
            done.steps.to_parquet(key.with_suffix(".steps"), index=False)
        facts = {
            "info": done.info.model_dump(mode="json"),
            "expectations": [each.model_dump(mode="json") for each in done.expectations],
        }
        temporary = key.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts))
        temporary.rename(key.with_suffix(".json"))

    def clear(self) -> None:
        """Forget all parts."""
        if self._folder is not None and self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
            self._folder.rmdir()


# -- what the report says -----------------------------------------------------------------------


def _run_info(
    plan: RunPlan, sources: Sequence[_Source], finished: Sequence[tuple[_Source, Finished]]
) -> RunInfo:
    from importlib.metadata import version

    from .model.presets import load_model

    model = load_model(plan.model)
    scenarios = []
    for source in sources:
        mine = [done for owner, done in finished if owner is source]
        if mine:
            scenarios.append(
                source.info.model_copy(
                    update={
                        "expectations": tuple(each for done in mine for each in done.expectations),
                        "pools": {done.info.run: done.info.pool for done in mine},
                    }
                )
            )
    return RunInfo(
        command=plan.command,
        date=plan.today or date.today().isoformat(),
        seed=plan.seed,
        versions={"handoff": version("handoff")},
        model=model.title,
        hardware=plan.device,
        kv_bytes_per_token=model.kv_bytes_per_token,
        rows=tuple(merge_info([done.info for _, done in finished])),
        scenarios=tuple(scenarios),
        files={
            source.stream.name: source.digest for source in sources if not source.stream.scenario
        },
        executed=any(source.execute for source in sources),
    )


def _read_steps(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    import pandas as pd

    return pd.read_parquet(path)
