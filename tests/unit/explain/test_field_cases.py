"""Field cases are replayed from their line alone, and a wrong number is found."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from handoff.conformance.field_cases import cases_of, field_cases
from handoff.conformance.field_checks import numbers_in
from handoff.errors import BadInput

CASE: dict[str, Any] = {
    "id": "T-1",
    "framework": "vllm",
    "status": "covered",
    "config": {"groups": [{"type": "full", "block_size": 32}]},
    "requests": [
        {
            "id": "r1",
            "when": "start",
            "spans": [{"shared": "s", "len": 34}, {"unique": "u1", "len": 1}],
            "output_len": 1,
        },
        {
            "id": "r2",
            "when": "after:r1",
            "spans": [{"shared": "s", "len": 34}, {"unique": "u2", "len": 2}],
            "output_len": 1,
        },
    ],
    "expectation": {
        "hit": {"r1": 0, "r2": 32},
        "compute": {"r2": 4},
        "saved": {"r2": [30, 33]},
        "start": {"r2": 32},
        "chunks": {"r1": [[0, 35]], "r2": [4]},
        "step": {"r1": 1},
        "passes": [["r1"], ["r2"]],
        "compute_total": 39,
        "extra_compute_by_isolation": 0,
        "hit_matched": {"r2": 32},
        "group_hits": {"r2": {"full": 32}},
        "explain": {"r2": ["alignment|not_stored"], "r1": []},
        "must_say": "2 of 34 tokens are lost in the block",
        "why": "a remark",
        "taste": {"r2": 1},
        "variants": [
            {
                "name": "block 16",
                "set": {"groups": [{"type": "full", "block_size": 16}]},
                "hit": {"r2": 32},
            },
            {"name": "other", "status": "not_covered", "hit": {"r2": 99}},
            {
                "name": "llama",
                "framework": "llamacpp",
                "config": {"memory": "plain", "args": "-np 1 -c 1024 --cache-ram 0"},
                "hit": {"r2": 34},
                "explain": {"r2": []},
            },
        ],
    },
}


def outcome(tmp_path: Path, *cases: dict[str, Any], **options: Any) -> dict[str, Any]:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(case) for case in cases) + "\n")
    return field_cases(path, **options).as_dict()


def test_a_case_with_variants(tmp_path: Path) -> None:
    found = outcome(tmp_path, CASE)
    assert found["differences"] == [] and (found["agree"], found["cases"]) == (1, 1)
    assert found["runs"] == {"agree": 3, "differ": 0, "skipped": 1}
    assert found["skipped_reasons"] == {"not covered by the pinned rules: T-1/other": 1}
    assert found["unchecked"] == {"taste": 1}
    assert found["judge"][0]["must_say"].startswith("2 of 34")
    assert outcome(tmp_path, CASE, adapters=["llamacpp"])["runs"]["agree"] == 1
    assert outcome(tmp_path, CASE, adapters=["sglang"])["cases"] == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hit", {"r2": 34}),
        ("compute", {"r2": 5}),
        ("saved", {"r2": [33, 40]}),
        ("start", {"r2": 31}),
        ("chunks", {"r1": [[0, 34]]}),
        ("chunks", {"r1": [34]}),
        ("step", {"r1": 2}),
        ("passes", [["r2"]]),
        ("compute_total", 1),
        ("extra_compute_by_isolation", 2),
        ("hit_matched", {"r2": 34}),
        ("group_hits", {"r2": {"swa": 32}}),
        ("group_hits", {"r2": {"full": 31}}),
        ("explain", {"r2": ["evicted"]}),
        ("explain", {"r2": []}),
        ("explain", {"r9": []}),
        ("hit", {"r9": 0}),
        ("readmission", {"r2": 0}),
        ("must_say", "3,584 tokens"),
    ],
)
def test_what_is_wrong_is_a_difference(tmp_path: Path, key: str, value: Any) -> None:
    case = copy.deepcopy(CASE)
    case["expectation"][key] = value
    found = outcome(tmp_path, case)
    assert found["differ"] == 1 and found["agree"] == 0
    assert found["first_difference"]["path"].startswith(key)
    assert found["first_difference"]["line"] == 1


def test_a_refused_request_agrees_with_nothing(tmp_path: Path) -> None:
    case = copy.deepcopy(CASE)
    case["config"]["num_blocks"] = 2
    case["expectation"] = {"hit": {"r1": 0}}
    assert outcome(tmp_path, case)["first_difference"]["got"] is None


def test_several_frameworks_have_expectations_of_their_own() -> None:
    case = {
        **CASE,
        "framework": ["vllm", "llamacpp"],
        "config": {
            "vllm": CASE["config"],
            "llamacpp": {"memory": "plain", "args": "-np 1 -c 1024 --cache-ram 0"},
        },
        "expectation": {
            "hit": {"vllm": {"r2": 32}, "llamacpp": {"r2": 34}},
            "variants": [
                {"name": "both", "requests": CASE["requests"][:1], "hit": {"vllm": {"r1": 0}}},
                {
                    "name": "one",
                    "framework": "llamacpp",
                    "set": {"args": "-np 2"},
                    "hit": {"r1": 0},
                },
            ],
        },
    }
    runs = list(cases_of(case))
    assert [(run.label, run.framework) for run in runs] == [
        ("T-1/vllm", "vllm"),
        ("T-1/llamacpp", "llamacpp"),
        ("T-1/both/vllm", "vllm"),
        ("T-1/both/llamacpp", "llamacpp"),
        ("T-1/one/llamacpp", "llamacpp"),
    ]
    assert runs[1].expected["hit"] == {"r2": 34} and runs[3].expected["hit"] == {}
    assert runs[4].config == {"memory": "plain", "args": "-np 2"}
    assert len(runs[2].requests) == 1


def test_numbers_of_a_text() -> None:
    text = "b0: matched 2,014, of 3,584; r4 and the 128th, 1.5 %, 2,014 again"
    assert numbers_in(text) == ["2014", "3584", "128", "1.5"]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"line 1: is no field case"):
        outcome(tmp_path, {"id": "x"})
    broken = copy.deepcopy(CASE)
    broken["requests"][0]["spans"] = [{"len": 3}]
    found = outcome(tmp_path, broken)
    assert found["first_difference"]["path"] == "(crash)"
