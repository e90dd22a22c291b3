"""What ``handoff run`` and ``handoff conform`` do, apart from reading the command line."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from .adapter import load, make_options
from .conformance.conform import Outcome, conform
from .errors import BadInput, HandoffError
from .experiment import RowSpec, Stream, Work, merge_info, rows_of, run_row, stream_of
from .ledger.entries import Ledger, read_ledger
from .lines import read_json
from .report.info import Expectation, RowInfo, RunInfo, ScenarioInfo
from .types import Request
from .workload.arrivals import Arrival, When
from .workload.scenario import builtin, load_scenario

__all__ = ["RunPlan", "conform_command", "execute_plan"]


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
    _progress(
        f"{time.perf_counter() - began:.1f} s. Wrote {', '.join(str(path) for path in paths)}"
    )
    if stopped is not None:
        _progress("stopped early; the rows that were finished are kept. Go on with --resume")
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
    from .workload.mooncake import read_mooncake

    skipped: list[str] = []
    requests = list(read_mooncake(path, plan.limit, skip_bad=skipped if plan.skip_bad else None))
    if not requests:
        raise BadInput("holds no request", file=path)
    for line in skipped:
        _progress(f"skipped {line}")
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
            _progress(f"{self._name}  {self._done:,}/{self._total:,}")

    def end(self, work: Work) -> None:
        """The row is done."""
        if self._live:
            print("\r\033[K", end="", file=sys.stderr)
        if self._total >= 100:
            _progress(f"{self._name}  {self._done:,} requests in {work.seconds:.1f} s")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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
    from .report.page import write_report

    try:
        out.mkdir(parents=True, exist_ok=True)
        ledger.write_parquet(out / "ledger.parquet")
        (out / "run.json").write_text(info.model_dump_json(indent=2))
        return [*write_report(ledger.to_pandas(), info, out), out / "ledger.parquet"]
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", file=out) from None


def _show(ledger: Ledger, info: RunInfo) -> None:
    from rich.console import Console

    from .report.tables import render_run

    render_run(Console(), ledger.to_pandas(), info)


def _summary(ledger: Ledger, info: RunInfo) -> dict[str, Any]:
    """Totals per row and scenario, expectations and checks, for ``--json``."""
    from .report.totals import totals

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


def report_command(paths: Sequence[Path], formats: Sequence[str], out: Path) -> None:
    """Write the report of one or more ledgers, with the facts that ``run.json`` beside them has."""
    from .report.page import FORMATS, write_report

    wrong = [each for each in formats if each not in FORMATS]
    if wrong:
        raise BadInput(f"--format {wrong[0]}: give {' or '.join(FORMATS)}, or both")
    ledger = Ledger(entry for path in paths for entry in read_ledger(path))
    infos = [_read_info(path.with_name("run.json")) for path in paths]
    written = write_report(ledger.to_pandas(), _joined(infos), out, tuple(formats))
    _progress(f"Wrote {', '.join(str(path) for path in written)}")


def _read_info(path: Path) -> RunInfo:
    from pydantic import ValidationError

    try:
        return RunInfo.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{first['msg']}", file=path, field=place) from None


def _joined(infos: Sequence[RunInfo]) -> RunInfo:
    """Several runs as one: rows merged, scenarios side by side, commands in order."""
    first = infos[0]
    return first.model_copy(
        update={
            "command": "; ".join(dict.fromkeys(info.command for info in infos)),
            "date": max(info.date for info in infos),
            "rows": tuple(merge_info([row for info in infos for row in info.rows])),
            "scenarios": tuple(each for info in infos for each in info.scenarios),
            "files": {name: sha for info in infos for name, sha in info.files.items()},
            "executed": any(info.executed for info in infos),
        }
    )


# -- explain, verify, bench ----------------------------------------------------------------------


def explain_command(
    paths: Sequence[Path],
    *,
    shorthand: tuple[int, int] | None,
    request: tuple[str, Path, str | None] | None,
    tokenizer: Path | None,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    what_ifs: Sequence[str],
    pool_tokens: int | None,
    model: str,
    device: str,
    six: bool | None,
    steps: bool,
    as_json: bool,
) -> None:
    """Print the account of one prompt; exactly one source of prompts must be given."""
    from . import explain as explaining

    if sum((bool(paths), shorthand is not None, request is not None)) != 1:
        raise BadInput("explain needs prompts, or --shared N, or --request ID (one of them)")
    if request is not None:
        name, ledger, scenario = request
        found = explaining.explain_request(read_ledger(ledger), name, scenario)
    else:
        prompts = (
            explaining.shorthand(*shorthand)
            if shorthand is not None
            else [explaining.read_prompt(path, tokenizer) for path in paths]
        )
        if not all(len(prompt.tokens) for prompt in prompts):
            raise BadInput("a prompt needs at least one token")
        found = explaining.explain(
            prompts,
            rows_of(None, adapters, sets),
            what_ifs=[each for text in what_ifs for each in explaining.what_if(text, adapters)],
            pool_tokens=pool_tokens,
            model=model,
            device=device,
        )
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, sort_keys=True, ensure_ascii=False))
        return
    from rich.console import Console

    from .explain.text import render

    render(Console(), found, six=six, steps=steps)


def verify_command(
    names: Sequence[str],
    *,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    dtype: str,
    device: str,
    seed: int,
    as_json: bool,
) -> int:
    """Truth test and planted faults; 0 if everything agrees and every fault is caught."""
    if dtype not in ("float32", "float64"):
        raise BadInput(f"--dtype is float32 or float64, not {dtype}")
    streams = [stream_of(load_scenario(name)) for name in names or builtin()]
    import torch

    from .verify import render_verify, verify

    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no CUDA device here")
    if device not in ("cpu", "cuda"):
        raise BadInput(f"--device is cpu or cuda, not {device}")
    torch.set_num_threads(1)  # the models are small: threads only wait for each other
    found = verify(
        streams,
        adapters,
        sets=sets,
        dtype=dtype,
        device=device,
        seed=seed,
        progress=_progress,
    )
    if as_json:
        print(json.dumps(found.as_json(), indent=2, sort_keys=True, ensure_ascii=False))
    else:
        print(render_verify(found))
    return 0 if found.ok else 1


def bench_trace_command(
    trace: Path,
    *,
    adapter: str,
    sets: dict[str, dict[str, Any]],
    pool_tokens: int | None,
    limit: int | None,
    mode: str,
    step_ms: float,
    references: dict[str, Path | None],
    as_json: bool,
) -> int:
    """Measure planning on a trace; 1 if a request differs from a given replay of upstream."""
    from .bench import bench_trace

    given = {name: path for name, path in references.items() if path is not None}
    found = bench_trace(
        trace,
        adapter,
        sets.get(adapter, {}),
        pool_tokens=pool_tokens,
        limit=limit,
        mode=mode,
        step_ms=step_ms,
        answers=bool(given),
    )
    differing = {}
    for name, path in given.items():
        differing[name] = _count_different(found[name], read_json(path), name, path)
    summary = {k: v for k, v in found.items() if k not in references}
    if differing:
        summary["differ"] = differing
    if as_json:
        print(json.dumps(summary, indent=2, sort_keys=True))
    else:
        for name, value in summary.items():
            print(f"{name:18} {value:,}" if isinstance(value, int) else f"{name:18} {value}")
    return 1 if any(differing.values()) else 0


def bench_kernels_command(
    device: str | None, repeats: int, out: Path | None, *, as_json: bool
) -> int:
    """Measure and print; 1 if a ratio that the embedded path has to keep is missed."""
    import torch

    from .bench_kernels import bench_kernels, write_json

    if device not in (None, "cpu", "cuda"):
        raise BadInput(f"--device is cpu or cuda, not {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no CUDA device here")
    found = bench_kernels(device, repeats)
    if out is not None:
        write_json(found, out)
    rows = [*found["cpu"], *(found["gpu"]["rows"] if found["gpu"] else ())]
    if as_json:
        print(json.dumps(found, indent=2, sort_keys=True))
    else:
        for row in rows:
            kept = f", at most {row['at_most']}" if "at_most" in row else ""
            ratios = ", ".join(f"{value} x {name}" for name, value in row["ratio"].items())
            print(
                f"{row['shape']:34} {row['median_s']['handoff'] * 1e3:9.3f} ms  "
                f"{row['gflops_per_s']:9,.1f} GFLOP/s  {ratios}{kept}"
            )
        if found["gpu"] is None:
            print("No CUDA device: only the CPU path was measured, no GPU figure is given.")
    return 0 if all(row.get("ok", True) for row in rows) else 1


def _count_different(ours: list[Any], replay: Any, name: str, path: Path) -> int:
    """Requests whose value is not upstream's; a trace cut by ``--limit`` compares its head."""
    theirs = replay.get(name) if isinstance(replay, dict) else replay
    if not isinstance(theirs, list):
        raise BadInput(f"holds no list {name!r}", file=path, field=name)
    if len(theirs) < len(ours):
        raise BadInput(f"holds {len(theirs):,} values, the trace {len(ours):,}", file=path)
    return sum(list_of(a) != list_of(b) for a, b in zip(ours, theirs))


def list_of(value: Any) -> Any:
    """Tuples as lists, so that JSON and Python values compare."""
    return list(value) if isinstance(value, tuple) else value


# -- conform -------------------------------------------------------------------------------------


def conform_command(
    path: Path,
    *,
    adapter: str | None,
    configs: Sequence[str],
    require: int,
    workloads: Path | None,
    configs_file: Path | None,
    line: int | None,
    tags: bool,
    as_json: bool,
) -> int:
    """Replay and print; 0 if nothing differs and enough agree, else 1."""
    if path.name in ("cases.jsonl", "cases.jsonl.gz"):
        from .conformance.field_cases import conform_field_cases

        outcome = conform_field_cases(path)
    else:
        name = adapter or (path if path.is_dir() else path.parent).resolve().name
        watch = None
        if tags:
            from .store.tags import TagStore

            watch = TagStore
        outcome = conform(
            path,
            load(name),
            configs=configs,
            workloads_file=workloads,
            configs_file=configs_file,
            line_number=line,
            watch=watch,
            progress=_live_name() if sys.stderr.isatty() else None,
        )
    if as_json:
        print(json.dumps(outcome.as_dict(), indent=2, sort_keys=True, ensure_ascii=False))
    else:
        _show_outcome(outcome, require)
    return 0 if outcome.differ == 0 and outcome.agree >= require else 1


def _live_name() -> Callable[[str], None]:
    return lambda name: print(f"\r{name}\033[K", end="\r", file=sys.stderr, flush=True)


def _show_outcome(outcome: Outcome, require: int) -> None:
    cases = f"{outcome.cases:,} cases"
    if outcome.differ:
        print(f"{outcome.differ:,} of {cases} differ from the recordings.")
    elif not outcome.agree:
        print(f"None of {cases} could be compared.")
    else:
        print(f"All {outcome.agree:,} compared cases agree with the recordings.")
    print(
        f"adapter {outcome.adapter}: {outcome.agree:,} agree, {outcome.differ:,} differ, "
        f"{outcome.skipped:,} skipped; {outcome.requests:,} requests and "
        f"{outcome.fields:,} values compared"
    )
    for name, count in sorted(outcome.followed.items()):
        print(f"  followed, not compared: {name} {count:,}")
    for reason, count in sorted(outcome.skipped_reasons.items()):
        print(f"  skipped {count:,}: {reason}")
    first = outcome.first_difference
    if first:
        print(f"First difference  {first['file']}, line {first['line']:,}, {first['case']}")
        print(f"  field     {first['path']}")
        print(f"  recorded  {json.dumps(first['expected'], ensure_ascii=False)[:300]}")
        print(f"  ours      {json.dumps(first['got'], ensure_ascii=False, default=str)[:300]}")
        print(f"Reproduce: handoff conform {first['file']} --line {first['line']}")
    if outcome.agree < require:
        print(f"{require:,} agreeing cases were required, {outcome.agree:,} agree.")
