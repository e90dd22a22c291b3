"""Replay a folder or a file of recordings against an adapter and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handoff.adapter import Adapter
from handoff.errors import BadInput, HandoffError, Unsupported
from handoff.lines import read_json, read_objects

from .compare import ABSENT, Difference, count_kept, count_left, difference, keep, without
from .recording import Case, Kind, Recordings, Watch

__all__ = ["Outcome", "conform"]


@dataclass(slots=True)
class Outcome:
    """Counts over all cases; ``first_difference`` names file, line, case, path, both values."""

    adapter: str
    cases: int = 0
    agree: int = 0
    differ: int = 0
    skipped: int = 0
    requests: int = 0
    fields: int = 0
    followed: Counter[str] = field(default_factory=Counter)
    skipped_reasons: Counter[str] = field(default_factory=Counter)
    first_difference: dict[str, Any] | None = None
    differing: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "adapter": self.adapter,
            "cases": self.cases,
            "agree": self.agree,
            "differ": self.differ,
            "skipped": self.skipped,
            "requests": self.requests,
            "fields": self.fields,
            "followed": dict(sorted(self.followed.items())),
            "skipped_reasons": dict(sorted(self.skipped_reasons.items())),
            "first_difference": self.first_difference,
        }


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _kind_of(path: Path, recordings: Recordings) -> str | None:
    stem = _stem(path)
    fitting = [
        kind
        for kind in recordings.kinds
        if stem == kind or stem.startswith((f"{kind}_", f"{kind}."))
    ]
    return max(fitting, key=len, default=None)


def files_of(path: Path, recordings: Recordings) -> list[Path]:
    """The recordings below ``path`` (or ``path`` itself), by name."""
    if path.is_dir():
        found = sorted(
            file
            for file in path.iterdir()
            if file.name.endswith((".jsonl", ".jsonl.gz")) and _kind_of(file, recordings)
        )
        if not found:
            raise BadInput(f"holds no recordings of {', '.join(recordings.kinds)}", file=path)
        return found
    if not path.exists():
        raise BadInput("no such file or folder", file=path)
    if _kind_of(path, recordings) is None:
        raise BadInput(f"its name starts with none of {', '.join(recordings.kinds)}", file=path)
    return [path]


def _beside(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    return None


def config_name(line: Mapping[str, Any]) -> str | None:
    """The name of the configuration a line was recorded under, if it names one."""
    name = line.get("config")
    return name if isinstance(name, str) else None


def conform(
    path: Path,
    adapter: Adapter,
    *,
    configs: Sequence[str] = (),
    workloads_file: Path | None = None,
    configs_file: Path | None = None,
    line_number: int | None = None,
    watch: Watch | None = None,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Replay every case of ``path``; raises ``BadInput`` for what cannot be read.

    ``configs`` restricts to lines recorded under these configurations.
    """
    recordings = adapter.recordings()
    if recordings is None:
        raise HandoffError(f"adapter {adapter.name} declares no recordings")
    files = files_of(path, recordings)
    folder = path if path.is_dir() else path.parent
    configs_path = configs_file or _beside(folder, "configs.json")
    known = read_json(configs_path) if configs_path else {}
    if not isinstance(known, dict):
        raise BadInput("is not a JSON object", file=configs_path)
    for name in configs:
        if recordings.config_entry(known, name) is None:
            raise BadInput(f"no configuration {name!r}", file=configs_path or folder)
    workloads_path = workloads_file or _beside(folder.parent / "workloads", "common.jsonl")
    workloads: dict[str, dict[str, Any]] | None = None
    outcome = Outcome(adapter.name)
    for file in files:
        kind_name = _kind_of(file, recordings)
        assert kind_name is not None
        if progress:
            progress(file.name)
        for number, line in read_objects(file):
            if line_number is not None and number != line_number:
                continue
            if configs and config_name(line) not in configs:
                continue
            workload = None
            if "workload" in line:
                if workloads is None:
                    workloads = _workloads(workloads_path, folder)
                workload = workloads.get(str(line["workload"]))
                if workload is None:
                    raise BadInput(
                        f"no workload {line['workload']!r} in {workloads_path}",
                        file=file,
                        line=number,
                        field="workload",
                    )
            _one(outcome, recordings, kind_name, file, number, line, known, workload, watch)
    if not outcome.cases:  # else a damaged folder would pass
        raise BadInput("holds no such case", file=path, line=line_number)
    return outcome


def _workloads(path: Path | None, folder: Path) -> dict[str, dict[str, Any]]:
    if path is None:
        raise BadInput("needs --workloads: there is no ../workloads/common.jsonl", file=folder)
    found: dict[str, dict[str, Any]] = {}
    for number, line in read_objects(path):
        if "id" not in line:
            raise BadInput("a workload needs an id", file=path, line=number, field="id")
        found[str(line["id"])] = line
    return found


def _one(
    outcome: Outcome,
    recordings: Recordings,
    kind_name: str,
    file: Path,
    number: int,
    line: dict[str, Any],
    known: Mapping[str, Any],
    workload: Mapping[str, Any] | None,
    watch: Watch | None,
) -> None:
    """Replay one line and count it."""
    kind: Kind = recordings.kinds[kind_name]
    name = config_name(line)
    try:
        case = Case(
            kind=kind_name,
            line=keep(line, kind.inputs),
            followed=keep(line, kind.followed) if kind.followed else {},
            configs=known,
            config=recordings.config_entry(known, name) if name else None,
            workload=workload,
            watch=watch,
        )
        expected = without(line, kind.inputs, kind.followed)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise BadInput(
            f"the line or its configuration is no recording of kind {kind_name}: {error}",
            file=file,
            line=number,
        ) from None
    outcome.cases += 1
    try:
        found = _compared(kind, case, expected)
    except Unsupported as error:
        outcome.skipped += 1
        outcome.skipped_reasons[str(error)] += 1
        return
    except BadInput as error:
        raise BadInput(str(error), file=file, line=number) from None
    if found is None:
        outcome.agree += 1
        outcome.requests += kind.requests(line)
        outcome.fields += count_left(line, kind.inputs, kind.followed)
        if kind.followed:
            count_kept(case.followed, outcome.followed)
        return
    label = str(line.get("trace") or line.get("workload") or line.get("test") or number)
    outcome.differ += 1
    outcome.differing.append(f"{file.name}:{number} {label} {name or ''}".strip())
    if outcome.first_difference is None:
        outcome.first_difference = {
            "file": str(file),
            "line": number,
            "case": f"{label}/{name}" if name else label,
            "path": found.path,
            "expected": _shown(found.expected),
            "got": _shown(found.got),
        }


def _compared(kind: Kind, case: Case, expected: Any) -> Difference | None:
    """The first difference of a replay; a crash of the driver is one, with what it said."""
    try:
        produced = dict(kind.replay(case))
    except (Unsupported, BadInput):
        raise
    except Exception as error:
        return Difference("(crash)", None, f"{type(error).__name__}: {error}")
    got = without(produced, kind.inputs, kind.followed)
    return difference(kind.canonical(expected), kind.canonical(got))


def _shown(value: Any) -> Any:
    return None if value is ABSENT else list(value) if isinstance(value, tuple) else value
