"""Conformance cannot flatter: one changed value in a recording makes exactly that case differ.

For every packaged file and every field name in it, one value of one line is changed. The replay of
a line is remembered by what the driver was shown; a changed output leaves that untouched, so the
line is replayed once and compared many times.
"""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handoff.adapter import load
from handoff.conformance.compare import without
from handoff.conformance.conform import conform
from handoff.conformance.recording import Case, Kind, Recordings

from ..conftest import RECORDINGS
from .test_recordings import recordings

MOST_FIELDS = 60  # of one file; keys below depth 3 (request ids and the like) share a name


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all leaves."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from places(item, (*path, index))
    else:
        yield path


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return 0 if value is None else [0]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        value = value[part]
    return value


def mutant(line: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    out = copy.deepcopy(line)
    last = at(out, path[:-1])
    last[path[-1]] = changed(last[path[-1]])
    return out


def remembered(kind: Kind) -> Kind:
    known: dict[str, Any] = {}

    def replay(case: Case) -> Mapping[str, Any]:
        key = json.dumps([case.line, case.followed], sort_keys=True)
        if key not in known:
            known[key] = json.dumps(dict(kind.replay(case)))
        found: Mapping[str, Any] = json.loads(known[key])
        return found

    return dataclasses.replace(kind, replay=replay)


def fields(path: Path, kind: Kind) -> dict[tuple[str, ...], tuple[dict[str, Any], tuple[Any, ...]]]:
    """Field name -> the first line that has it, and the place of its last value there."""
    found: dict[tuple[str, ...], tuple[dict[str, Any], tuple[Any, ...]]] = {}
    with gzip.open(path, "rt") as stream:
        for text in stream:
            line = json.loads(text)
            outputs = without(line, kind.inputs, kind.followed)
            mine: dict[tuple[str, ...], tuple[Any, ...]] = {}
            for place in places(outputs):
                keys = tuple(part for part in place if isinstance(part, str))[:3]
                if keys and at(line, place) == at(outputs, place):  # no item of inputs alone
                    mine[keys] = place
            for keys, place in mine.items():
                if len(found) < MOST_FIELDS:
                    found.setdefault(keys, (line, place))
    return found


@pytest.mark.parametrize("path", recordings(), ids=lambda p: f"{p.parent.name}-{p.name[:-9]}")
def test_each_changed_value_is_a_difference(path: Path, tmp_path: Path) -> None:
    adapter = load(path.parent.name)
    declared = adapter.recordings()
    assert declared is not None
    name = max((k for k in declared.kinds if path.name.startswith((f"{k}.", f"{k}_"))), key=len)
    kind = remembered(declared.kinds[name])
    double = SimpleNamespace(
        name=adapter.name,
        recordings=lambda: Recordings({name: kind}, declared.options, declared.config_entry),
    )
    cases = fields(path, kind)
    assert cases
    target = tmp_path / path.name.removesuffix(".gz")
    lines = [mutant(line, place) for line, place in cases.values()]
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = conform(
        target,
        double,  # type: ignore[arg-type]
        workloads_file=RECORDINGS / "workloads" / "common.jsonl.gz",
        configs_file=path.parent / "configs.json",
    )
    missed = outcome.agree + outcome.skipped
    wrong = {int(text.split(":")[1].split()[0]) for text in outcome.differing}
    names = [keys for number, keys in enumerate(cases, 1) if number not in wrong]
    assert missed == 0, f"changes not noticed: {names}"
    assert outcome.differ == len(lines)
