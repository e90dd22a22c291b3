"""``handoff run``: serve scenarios or a trace, write ledger and report, print the tables."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from handoff.adapter import load, make_options
from handoff.errors import BadInput, HandoffError
from handoff.experiment import RowSpec, Stream, Work, merge_info, rows_of, run_row, stream_of
from handoff.ledger.entries import Ledger, read_ledger
from handoff.report.info import Expectation, RowInfo, RunInfo, ScenarioInfo
from handoff.types import Request
from handoff.workload.arrivals import Arrival, When
from handoff.workload.scenario import builtin, load_scenario

from .progress import say

__all__ = ["RunPlan", "execute_plan"]


@dataclass(frozen=True)
class RunPlan:
    """What ``handoff run`` was asked for; paths and names are checked when it is executed."""

    sources: Sequence[str]
    adapters: Sequence[str]
    command: str
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    pool_tokens: int | None = None
    execute: bool | None = None
    limit: int | None = None
    model: str = "llama-3.1-8b"
    device: str = "H200"
    seed: int = 0
    out: Path = Path("out")
    skip_bad: bool = False
    resume: bool = False
    extra: Sequence[RowSpec] = ()


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


def execute_plan(plan: RunPlan, *, as_json: bool = False) -> int:
    """Serve everything, write ledger and report, print the tables; 0, or 1 if a check failed."""
    sources = [_source(name, plan) for name in plan.sources or builtin()]
    jobs = [
        (spec, source)
        for source in sources
        for spec in rows_of(source.stream.scenario, plan.adapters, plan.sets, plan.extra)
    ]
    for spec, _ in jobs:  # every mistake in options is found before anything runs
        make_options(load(spec.adapter), spec.values)
    parts = _Parts(plan.out / ".parts", plan)
    finished: list[tuple[_Source, Finished]] = []
    began = time.perf_counter()
    stopped: KeyboardInterrupt | HandoffError | None = None
    try:
        for spec, source in jobs:
            finished.append((source, _serve(spec, source, plan, parts)))
    except (KeyboardInterrupt, HandoffError) as error:
        if not finished:
            raise
        stopped = error
    ledger = Ledger(entry for _, done in finished for entry in done.ledger)
    info = _run_info(plan, sources, finished)
    paths = _write(ledger, info, plan.out)
    if as_json:
        print(json.dumps(_summary(ledger, info), indent=2, sort_keys=True))
    else:
        _show(ledger, info)
    say(f"{time.perf_counter() - began:.1f} s. Wrote {', '.join(str(path) for path in paths)}")
    if stopped is not None:
        say("stopped early; the rows that were finished are kept. Go on with --resume")
        raise stopped
    parts.clear()
    return 0 if _fine(info) else 1


def _fine(info: RunInfo) -> bool:
    truths = [row.truth.ok for row in info.rows if row.truth is not None]
    kept = [each.ok for scenario in info.scenarios for each in scenario.expectations]
    return all(truths) and all(kept)


# -- sources -----------------------------------------------------------------------------------


def _source(name: str, plan: RunPlan) -> _Source:
    path = Path(name)
    if name == "-" or path.name.endswith((".jsonl", ".jsonl.gz", ".json", ".gz")):
        return _trace(path, plan)
    scenario = load_scenario(name)
    text = json.dumps(scenario.model_dump(mode="json"), sort_keys=True)
    info = ScenarioInfo(
        name=scenario.name,
        question=scenario.question,
        notice=" ".join(scenario.notice.split()),
        source=name if path.suffix else f"built-in scenario {name}",
        pool_tokens=plan.pool_tokens or scenario.pool_tokens,
    )
    execute = plan.execute is not False
    return _Source(stream_of(scenario), info, execute, _sha(text.encode()))


def _trace(path: Path, plan: RunPlan) -> _Source:
    """A Mooncake-format file as a stream; read once, prompts stay virtual spans."""
    from handoff.workload.mooncake import read_mooncake

    skipped: list[str] = []
    requests = list(read_mooncake(path, plan.limit, skip_bad=skipped if plan.skip_bad else None))
    if not requests:
        raise BadInput("holds no request", file=path)
    for line in skipped:
        say(f"skipped {line}")
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


def _digest(requests: Sequence[Request]) -> str:
    text = repr([(r.id, repr(r.prompt), r.max_tokens, r.arrival) for r in requests])
    return _sha(text.encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- serving -----------------------------------------------------------------------------------


def _serve(spec: RowSpec, source: _Source, plan: RunPlan, parts: _Parts) -> Finished:
    kept = parts.load(spec, source)
    if kept is not None:
        return kept
    report = _Progress(f"{source.stream.name}: {spec.label}", source)
    work = run_row(
        spec,
        source.stream,
        pool_tokens=plan.pool_tokens,
        execute=source.execute,
        seed=plan.seed,
        model=plan.model,
        device=plan.device,
        on_finish=report.finished,
    )
    report.end(work)
    done = Finished(Ledger(work.entries), work.info, work.expectations)
    parts.save(spec, source, done)
    return done


class _Progress:
    """Progress on standard error: a live line on a terminal, one line per 10 % otherwise."""

    def __init__(self, name: str, source: _Source) -> None:
        self._name = name
        self._live = sys.stderr.isatty()
        scenario = source.stream.scenario
        self._total = len(scenario.requests) if scenario else len(source.stream.arrivals())
        self._done = 0
        self._shown = 0
        self._began = time.perf_counter()

    def finished(self, request: str, now: float) -> None:
        """One more request is done."""
        self._done += 1
        if self._total < 100:
            return
        if self._live and self._done % 20 == 0:
            rate = self._done / max(1e-9, time.perf_counter() - self._began)
            left = (self._total - self._done) / rate
            print(
                f"\r{self._name}  {self._done:,}/{self._total:,}  {rate:,.0f} req/s"
                f"  {left:.0f} s left \033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif not self._live and self._done * 10 // self._total > self._shown:
            self._shown = self._done * 10 // self._total
            say(f"{self._name}  {self._done:,}/{self._total:,}")

    def end(self, work: Work) -> None:
        """The row is done."""
        if self._live:
            print("\r\033[K", end="", file=sys.stderr)
        if self._total >= 100:
            say(f"{self._name}  {self._done:,} requests in {work.seconds:.1f} s")


class _Parts:
    """Finished rows on disk, so that an interrupted run loses nothing and can be resumed."""

    def __init__(self, folder: Path, plan: RunPlan) -> None:
        self._folder = folder
        self._plan = plan
        if not plan.resume:
            self.clear()

    def _key(self, spec: RowSpec, source: _Source) -> Path:
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
        facts = key.with_suffix(".json")
        if not self._plan.resume or not facts.exists():
            return None
        stored = json.loads(facts.read_text())
        return Finished(
            read_ledger(key.with_suffix(".parquet")),
            RowInfo.model_validate(stored["info"]),
            [Expectation.model_validate(each) for each in stored["expectations"]],
        )

    def save(self, spec: RowSpec, source: _Source, done: Finished) -> None:
        """Keep a finished row; its facts are written last, so a torn one is never read."""
        self._folder.mkdir(parents=True, exist_ok=True)
        key = self._key(spec, source)
        done.ledger.write_parquet(key.with_suffix(".parquet"))
        facts = {
            "info": done.info.model_dump(mode="json"),
            "expectations": [each.model_dump(mode="json") for each in done.expectations],
        }
        temporary = key.with_suffix(".tmp")
        temporary.write_text(json.dumps(facts))
        temporary.rename(key.with_suffix(".json"))

    def clear(self) -> None:
        """Forget all parts."""
        if self._folder.exists():
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()


# -- what is written and shown ------------------------------------------------------------------


def _run_info(
    plan: RunPlan, sources: Sequence[_Source], finished: Sequence[tuple[_Source, Finished]]
) -> RunInfo:
    from importlib.metadata import version

    from handoff.model.presets import load_model

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
        date=date.today().isoformat(),
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


def _write(ledger: Ledger, info: RunInfo, out: Path) -> list[Path]:
    from handoff.report.page import write_report

    try:
        out.mkdir(parents=True, exist_ok=True)
        ledger.write_parquet(out / "ledger.parquet")
        (out / "run.json").write_text(info.model_dump_json(indent=2))
        return [*write_report(ledger.to_pandas(), info, out), out / "ledger.parquet"]
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", file=out) from None


def _show(ledger: Ledger, info: RunInfo) -> None:
    from rich.console import Console

    from handoff.report.tables import render_run

    render_run(Console(), ledger.to_pandas(), info)


def _summary(ledger: Ledger, info: RunInfo) -> dict[str, Any]:
    """Totals per row and scenario, expectations and checks, for ``--json``."""
    from handoff.report.totals import totals

    frame = ledger.to_pandas()
    return {
        "run": info.model_dump(mode="json"),
        "scenarios": {
            name: {
                total.run: {
                    "requests": total.requests,
                    "refused": total.refused,
                    "prompt_tokens": total.prompt,
                    "shared_tokens": total.shared,
                    "hit_tokens": total.hit,
                    "reused_tokens": total.reused,
                    "moved_tokens": total.moved,
                    "fresh_tokens": total.fresh,
                    "lost_tokens": {k: v for k, v in total.lost.items() if v},
                    "computed_tokens": total.computed,
                    "cold_flops": total.cold_flops,
                    "saved_flops": total.saved_flops,
                    "evidence": total.evidence,
                }
                for total in totals(frame[frame["scenario"] == name])
            }
            for name in ledger.scenarios
        },
    }
