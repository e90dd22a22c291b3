"""The Python API: what it returns, shows, draws and refuses; plan only."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

import handoff
from handoff import api
from handoff.api import Explanation, Run
from handoff.errors import BadInput, HandoffError

TRACE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 20, "hash_ids": [0, 1, 2]},
    {"timestamp": 10, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]},
    {"timestamp": 4000, "input_length": 1300, "output_length": 3, "hash_ids": [0, 1, 2]},
]


@pytest.fixture(scope="module")
def found() -> Run:
    return handoff.run("mid-block", rows=["vllm:block_size=2"], date="2026-01-01")


@pytest.fixture(scope="module")
def why() -> Explanation:
    return handoff.explain(shared=34, tail=6, what_ifs=["vllm.block_size=1"])


def test_examples() -> None:
    results = doctest.testmod(api)
    assert results.failed == 0 and results.attempted > 10


def test_the_package_and_the_function_explain_are_one() -> None:
    code = (
        "import handoff.explain.text, handoff\n"
        "from handoff.explain import Prompt, what_if\n"
        "print(handoff.explain(shared=3, adapters=['sglang']).answers[0].entry.hit_tokens)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"


def test_importing_loads_nothing_heavy() -> None:
    code = "import handoff, sys; print(sorted({'pandas', 'torch', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_run_has_a_row_per_adapter_and_extra_row(found: Run) -> None:
    assert [row.label for row in found.totals][:2] == ["vLLM", "vLLM block_size=2"]
    assert len(found.totals) == 6
    assert {row.run: row.hit for row in found.totals}["vllm:block_size=2"] == 34
    assert found.fine and not found.info.executed
    assert found.info.command == "handoff.run('mid-block', rows=['vllm:block_size=2'])"
    frame = found.to_pandas()
    frame["hit_tokens"] = 0
    assert found.to_pandas()["hit_tokens"].sum() > 0, "callers get a copy"


def test_a_run_shows_itself(found: Run) -> None:
    assert "vLLM block_size=2" in repr(found) and "█" in repr(found)
    html = found._repr_html_()
    assert "<script" not in html and "<style" not in html and "vLLM block_size=2" in html


def test_an_explanation_shows_itself(why: Explanation) -> None:
    assert "shares 34 of its 40 tokens" in repr(why)
    assert "shares 34 of its 40 tokens" in why._repr_html_()
    assert why.what_ifs[0].hit == 34
    assert len(why.to_pandas()) == 2 * len(why.answers)


def test_names_are_escaped_in_html() -> None:
    from handoff.explain import Prompt
    from handoff.index.spans import Seq

    prompts = [Prompt("<b>", Seq.of([1, 2])), Prompt("<i>", Seq.of([1, 2]))]
    html = handoff.explain(prompts, adapters=["sglang"])._repr_html_()
    assert "&lt;i&gt;" in html and "<i>" not in html


def test_what_a_row_refuses_is_said() -> None:
    rows = ["vllm:max_model_len=64"]
    why = handoff.explain(shared=100, tail=4, adapters=["sglang"], rows=rows)
    assert list(why.refused) == rows and len(why.answers) == 1
    assert "refused" in why._repr_html_() and "refused" in repr(why)


@pytest.mark.parametrize("name", ["strip", "waterfall", "hit_vs_saved", "block_map", "timeline"])
def test_figures_of_a_run(found: Run, name: str) -> None:
    picture = getattr(found.plot, name)()
    assert picture.alt and picture.png().startswith(b"\x89PNG")


def test_figures_of_an_explanation(why: Explanation) -> None:
    assert "40 tokens" in why.plot.strip(request="prompt-2").title
    assert "prompt-2" in why.plot.block_map("prompt-2", run="vllm").title
    assert why.plot.staircase().alt


@pytest.mark.parametrize(
    ("name", "says"),
    [("pool_curve", r"handoff\.sweep"), ("staircase", r"handoff\.stairs")],
)
def test_what_a_run_cannot_draw_names_what_can(found: Run, name: str, says: str) -> None:
    with pytest.raises(HandoffError, match=says):
        getattr(found.plot, name)()


def test_what_cannot_be_drawn_is_an_error(found: Run, why: Explanation) -> None:
    with pytest.raises(HandoffError, match="no log of Steps"):
        why.plot.timeline()
    with pytest.raises(HandoffError, match="no request 'nobody'"):
        found.plot.strip(request="nobody")
    with pytest.raises(HandoffError, match="rows: vllm"):
        found.plot.block_map("second", run="nobody")
    with pytest.raises(HandoffError, match="no steps of run"):
        found.plot.timeline("nobody")
    with pytest.raises(HandoffError, match="no ledger"):
        handoff.stairs(lengths=[16, 17], adapters=["vllm"]).plot.strip()


def test_written_and_read_again_is_the_same_run(found: Run, tmp_path: Path) -> None:
    paths = found.write(tmp_path / "a")
    assert {path.name for path in paths} == {"index.html", "report.md", "ledger.parquet"}
    again = handoff.load_ledger(tmp_path / "a")
    assert repr(again) == repr(found)
    again.write(tmp_path / "b")
    for name in ("index.html", "report.md", "ledger.parquet", "run.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    one = again.explain("second")
    assert len(one.answers) == 6
    with pytest.raises(BadInput, match="cannot be read"):
        handoff.load_ledger(tmp_path)


def test_a_run_is_read_once_and_its_facts_must_be_facts(found: Run, tmp_path: Path) -> None:
    found.write(tmp_path / "a")
    found.write(tmp_path / "b")
    with pytest.raises(BadInput, match="would count twice: the file is given twice"):
        handoff.load_ledger(tmp_path / "a", tmp_path / "a" / "ledger.parquet")
    with pytest.raises(BadInput, match=r"would count twice: it is in .*a.ledger.parquet too"):
        handoff.load_ledger(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / "run.json").write_text("[]")
    with pytest.raises(BadInput, match=r"run.json: Input should be"):
        handoff.load_ledger(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text('{"command": 3}')
    with pytest.raises(BadInput, match=r"run.json, field command: "):
        handoff.load_ledger(tmp_path / "a")


def test_an_explanation_is_written(why: Explanation, tmp_path: Path) -> None:
    names = [path.name for path in why.write(tmp_path)]
    assert names == ["explain.json", "explain.txt", "strip.svg"]
    assert json.loads((tmp_path / "explain.json").read_text())["prompt_tokens"] == 40


def test_prompts_in_every_form() -> None:
    first, second = [5, 6, 7, 8], [5, 6, 7, 9]
    why = handoff.explain([first, second], adapters=["sglang"])
    assert why.answers[0].entry.hit_tokens == 3
    assert why.difference is not None and why.difference.after == 9


def test_prompts_from_files(tmp_path: Path) -> None:
    for name, ids in (("a", [1, 2, 3]), ("b", [1, 2, 4])):
        (tmp_path / f"{name}.json").write_text(json.dumps(ids))
    why = handoff.explain([tmp_path / "a.json", tmp_path / "b.json"], adapters=["sglang"])
    assert why.comparison.name == "b" and why.answers[0].entry.hit_tokens == 2


def test_a_sweep_over_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    curve = handoff.sweep(trace, [2048, 8192], adapters=["vllm", "sglang"])
    assert curve.ceiling.hit_tokens == 1024 + 1299
    points = curve.to_pandas()
    assert set(points["pool_tokens"]) == {2048, 8192}
    assert (points["hit_ratio"] <= curve.ceiling.hit_ratio).all()
    for size, best in curve.best.items():
        assert (points.loc[points["pool_tokens"] == size, "hit_ratio"] <= best.hit_ratio).all()
    assert "ceiling" in curve.plot.pool_curve().svg() or curve.plot.pool_curve().alt
    names = [path.name for path in curve.write(tmp_path / "out")]
    assert names == ["sweep.csv", "pool_curve.svg"]


def test_stairs_are_written(tmp_path: Path) -> None:
    found = handoff.stairs(lengths=[10, 20, 40], adapters=["vllm"])
    points = found.to_pandas().set_index("prompt_tokens")["hit_tokens"].to_dict()
    assert (points[16], points[17], points[32], points[33]) == (0, 16, 16, 32), "edges are exact"
    assert [path.name for path in found.write(tmp_path)] == ["stairs.csv", "staircase.svg"]
    assert "hit_tokens" in repr(found) and "<table" in found._repr_html_()


def test_wrong_calls_are_one_line() -> None:
    calls = {
        "either prompts or shared": lambda: handoff.explain(),
        "needs a token": lambda: handoff.explain([[1], []]),
        "list of names": lambda: handoff.run("mid-block", adapters="vllm"),
        "no adapter 'vlm'": lambda: handoff.run("mid-block", adapters=["vlm"]),
        "no scenario or file": lambda: handoff.run("no-such"),
        "has no option": lambda: handoff.run("mid-block", options={"vllm": {"blok": 1}}),
        "at least two": lambda: handoff.sweep("mid-block", [1024]),
    }
    for says, call in calls.items():
        with pytest.raises(HandoffError, match=says):
            call()


def test_a_registered_adapter_is_a_row_like_any_other() -> None:
    from handoff.adapter import load, names, register

    from ...toy import Toy

    register(Toy())  # type: ignore[arg-type]
    again = Toy()
    register(again)  # type: ignore[arg-type]
    assert load("toy") is again and names()[-1] == "toy"
    assert handoff.run("mid-block", adapters=["toy"]).totals[0].hit == 34
    with pytest.raises(BadInput, match="lacks parts"):
        register(type("Half", (), {"name": "half"})())
    taken = Toy()
    taken.name = "vllm"
    with pytest.raises(BadInput, match="is installed"):
        register(taken)  # type: ignore[arg-type]
