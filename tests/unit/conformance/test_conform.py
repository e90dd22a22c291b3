"""The conformance core must not be able to flatter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handoff.conformance.compare import count_kept, count_left, difference, keep, without
from handoff.conformance.conform import conform
from handoff.conformance.recording import Case, Kind, Recordings
from handoff.errors import BadInput, Unsupported

INPUTS = {"workload": True, "config": True, "ops": {"op": True, "n": True}}


def replay(case: Case) -> Mapping[str, Any]:
    """Doubles n; sees neither the recorded double nor anything else that is an output."""
    assert "double" not in json.dumps(case.line)
    if case.config == {"left": "out"}:
        raise Unsupported("left out")
    return {
        "ops": [
            {"double": 2 * op["n"], **case.followed["ops"][i]}
            for i, op in enumerate(case.line["ops"])
        ]
    }


KIND = Kind(inputs=INPUTS, replay=replay, followed={"ops": {"admitted": True}})


def adapter(kind: Kind = KIND) -> Any:
    recordings = Recordings({"native": kind}, options=lambda config: None)  # type: ignore[arg-type,return-value]
    return SimpleNamespace(name="x", recordings=lambda: recordings)


LINE = {"config": "c", "ops": [{"op": "a", "n": 2, "double": 4, "admitted": [1, 2]}]}


def folder(tmp_path: Path, *lines: Any) -> Path:
    (tmp_path / "configs.json").write_text('{"c": {}, "d": {"left": "out"}}')
    text = "".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines)
    (tmp_path / "native_a.jsonl").write_text(text)
    return tmp_path


def test_counts(tmp_path: Path) -> None:
    outcome = conform(folder(tmp_path, LINE, {**LINE, "config": "d"}), adapter())
    assert (outcome.cases, outcome.agree, outcome.differ, outcome.skipped) == (2, 1, 0, 1)
    assert outcome.fields == 1 and outcome.followed == {"admitted": 2}
    assert outcome.skipped_reasons == {"left out": 1}
    only = conform(tmp_path, adapter(), configs=["d"])
    assert (only.cases, only.agree) == (1, 0)


@pytest.mark.parametrize(
    ("op", "path"),
    [
        ({"op": "a", "n": 2, "double": 5, "admitted": []}, "ops[0].double"),
        ({"op": "a", "n": 2, "double": True, "admitted": []}, "ops[0].double"),
        ({"op": "a", "n": 2, "admitted": []}, "ops[0].double"),
        ({"op": "a", "n": 2, "double": 4, "unread": 1, "admitted": []}, "ops[0].unread"),
    ],
)
def test_every_kind_of_difference_counts(tmp_path: Path, op: Any, path: str) -> None:
    outcome = conform(folder(tmp_path, LINE, {**LINE, "ops": [op]}), adapter())
    assert (outcome.agree, outcome.differ) == (1, 1)
    assert outcome.first_difference is not None
    assert outcome.first_difference["path"] == path and outcome.first_difference["line"] == 2


def test_a_crash_of_the_driver_is_a_difference(tmp_path: Path) -> None:
    broken = Kind(inputs=INPUTS, replay=lambda case: 1 / 0)  # type: ignore[arg-type,return-value]
    outcome = conform(folder(tmp_path, LINE), adapter(broken))
    assert outcome.differ == 1 and "ZeroDivisionError" in str(outcome.first_difference)


@pytest.mark.parametrize("text", ["{", "[]", '{"workload": "w", "ops": []}'])
def test_bad_recordings_name_file_and_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput, match=r"native_a.jsonl, line 2|needs --workloads"):
        conform(folder(tmp_path, LINE, text + "\n"), adapter())


def test_unknown_places(tmp_path: Path) -> None:
    folder(tmp_path, LINE)
    for call in (
        lambda: conform(tmp_path / "nothing", adapter()),
        lambda: conform(tmp_path / "configs.json", adapter()),
        lambda: conform(tmp_path, adapter(), configs=["zz"]),
    ):
        with pytest.raises(BadInput):
            call()


def test_a_place_without_a_case_never_passes(tmp_path: Path) -> None:
    path = folder(tmp_path, {"config": "a", "ops": [{"op": "x", "n": 1, "double": 2}]})
    with pytest.raises(BadInput, match="line 7: holds no such case"):
        conform(path, adapter(), line_number=7)
    with pytest.raises(BadInput, match="holds no such case"):
        conform(folder(tmp_path), adapter())


def test_a_schema_that_cannot_read_a_line_names_it(tmp_path: Path) -> None:
    schema = {"config": True, "ops": lambda op: {"n": op["kind"]}}
    path = folder(tmp_path, {"config": "a", "ops": [5]})
    with pytest.raises(BadInput, match="line 1: the line or its configuration is no recording"):
        conform(path, adapter(Kind(inputs=schema, replay=replay)))


def test_schemas_take_and_leave() -> None:
    line = {"op": "s", "rows": [["a", 1]], "o": {"a": 3, "b": 4}}
    schema = {"op": True, "o": "keys"}
    assert keep(line, schema) == {"op": "s", "o": {"a": None, "b": None}}
    assert without(line, schema) == {"rows": [["a", 1]], "o": {"a": 3, "b": 4}}
    assert without({"a": {"x": 1, "y": 2}}, {"a": {"x": True}}) == {"a": {"y": 2}}
    assert difference([1, 2], (1, 2)) is None
    found = difference({"a": [1]}, {"a": [1, 2]})
    assert found is not None and found.path == "a[1]"


def test_only_what_is_compared_is_counted() -> None:
    """Neither the gap of a taken item nor a container that the schema emptied is a value."""
    assert count_left({"a": [1, [2, 3]], "b": {}}) == 4
    schema = {"op": True, "v": {"[1]": True}, "given": {"x": True}}
    line = {"op": "a", "v": ["r", 3, None], "given": {"x": 1}, "empty": []}
    assert without(line, schema) == {"v": ["r", None, None], "given": {}, "empty": []}
    assert count_left(line, schema) == 3  # "r", the recorded None and the empty list
    taken: Counter[str] = Counter()
    count_kept(keep(line, schema), taken)
    assert taken == {"op": 1, "v": 1, "x": 1}
