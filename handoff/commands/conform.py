"""``handoff conform``: recordings or field cases against the adapters."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from handoff.adapter import load
from handoff.conformance.conform import Outcome, conform
from handoff.errors import BadInput
from handoff.types import Layout, Step, StepResult

__all__ = ["conform_command"]


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
    if not path.exists():
        raise BadInput("no such file or folder", file=path)
    if path.name in ("cases.jsonl", "cases.jsonl.gz"):
        return _field_cases(path, adapter, require, as_json=as_json)
    name = adapter or (path if path.is_dir() else path.parent).resolve().name
    seen = _TagCount()
    outcome = conform(
        path,
        load(name),
        configs=configs,
        workloads_file=workloads,
        configs_file=configs_file,
        line_number=line,
        watch=seen.watch if tags else None,
        progress=_live_name() if sys.stderr.isatty() else None,
    )
    if as_json:
        shown = outcome.as_dict() | ({"tags": seen.as_dict()} if tags else {})
        print(json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        _show_outcome(outcome, require)
        if tags:
            print(seen.text())
    return 0 if outcome.differ == 0 and outcome.agree >= require else 1


class _TagCount:
    """Runs the tag pass over every replayed engine and sums up; a fault makes the case differ."""

    def __init__(self) -> None:
        self.engines = self.steps = self.tokens = self.tainted = 0
        self.causes: Counter[str] = Counter()

    def watch(self, layout: Layout) -> _Counted:
        """A tag store for a fresh engine whose counts are added here."""
        self.engines += 1
        return _Counted(self, layout)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "engines": self.engines,
            "steps": self.steps,
            "tokens": self.tokens,
            "tainted": self.tainted,
            "causes": dict(sorted(self.causes.items())),
        }

    def text(self) -> str:
        """One line."""
        causes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.causes.items()))
        return (
            f"tags: {self.steps:,} Steps of {self.engines:,} engines, {self.tokens:,} tokens; "
            f"{self.tainted:,} tainted{f' ({causes})' if causes else ''}"
        )


class _Counted:
    """A tag store that reports what it saw after every Step."""

    def __init__(self, total: _TagCount, layout: Layout) -> None:
        from handoff.store.tags import TagStore

        self._total = total
        self._tags = TagStore(layout)

    def step(self, step: Step) -> None:
        before = self._tags.num_tokens, self._tags.num_tainted, self._tags.taint.copy()
        self._tags.step(step)
        self._total.steps += 1
        self._total.tokens += self._tags.num_tokens - before[0]
        self._total.tainted += self._tags.num_tainted - before[1]
        self._total.causes += self._tags.taint - before[2]

    def complete(self, result: StepResult) -> None:
        self._tags.complete(result)


def _field_cases(path: Path, adapter: str | None, require: int, *, as_json: bool) -> int:
    """Field cases: hits, computed tokens and reasons that real users asked about."""
    from handoff.conformance.field_cases import field_cases

    found = field_cases(path, adapters=[adapter] if adapter else None)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, sort_keys=True, ensure_ascii=False))
        return 0 if found.differ == 0 and found.agree >= require else 1
    runs = ", ".join(f"{name} {count:,}" for name, count in sorted(found.runs.items()))
    print(
        f"{found.cases:,} field cases: {found.agree:,} agree, {found.differ:,} differ, "
        f"{found.skipped:,} skipped; {found.requests:,} requests, {found.fields:,} values ({runs})"
    )
    for reason, count in sorted(found.skipped_reasons.items()):
        print(f"  skipped {count:,}: {reason}")
    for name, count in sorted(found.unchecked.items()):
        print(f"  not checked, a remark only: {name} {count:,}")
    for each in found.differences:
        print("  differs  " + json.dumps(each, ensure_ascii=False, default=str))
    if found.judge:
        print(f"{len(found.judge):,} texts are for a reader to judge (--json lists them).")
    return 0 if found.differ == 0 and found.agree >= require else 1


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
