"""The command line as a user meets it: a process, its output, its exit code."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from handoff import session
from handoff.cli import main
from handoff.experiment import RowSpec, Work

from ..conftest import RECORDINGS

NAMES = ["vllm", "sglang", "llamacpp", "tensorrt_llm", "deepinfer"]
TITLES = ["vLLM", "SGLang", "llama.cpp", "TensorRT-LLM", "DeepInfer"]


def handoff(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **env},
        timeout=280,
    )


TRACE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 20, "hash_ids": [0, 1, 2]},
    {"timestamp": 10, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]},
    {"timestamp": 4000, "input_length": 1300, "output_length": 3, "hash_ids": [0, 1, 2]},
    {"timestamp": 5000, "input_length": 99_000, "output_length": 3, "hash_ids": list(range(194))},
]


@pytest.fixture()
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    return path


def test_run_executes_a_scenario_with_all_five(tmp_path: Path) -> None:
    done = handoff("run", "mid-block", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for title in TITLES:
        assert title in done.stdout
    assert {"index.html", "ledger.parquet", "run.json"} <= {
        p.name for p in (tmp_path / "o").iterdir()
    }
    again = handoff("run", "mid-block", "--out", "o2", cwd=tmp_path)
    assert again.stdout == done.stdout
    for name in ("ledger.parquet", "report.md"):
        first, second = (tmp_path / o / name for o in ("o", "o2"))
        if first.exists() and name.endswith(".parquet"):
            assert first.read_bytes() == second.read_bytes()


def test_run_on_a_trace_plans_and_counts_refusals(tmp_path: Path, trace: Path) -> None:
    done = handoff(
        "run", str(trace), "--plan-only", "--pool-tokens", "16384", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["scenarios"]["trace"]
    assert list(rows) == sorted(NAMES)
    for row in rows.values():
        lost = sum(row["lost_tokens"].values())
        total = row["reused_tokens"] + row["moved_tokens"] + row["fresh_tokens"] + lost
        assert total == row["prompt_tokens"]
        assert row["requests"] + row["refused"] == 4
    assert rows["vllm"]["refused"] == 1


def test_unfulfilled_expectations_fail(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nquestion: Why?\nrequests:\n"
        "  - {id: a, spans: [{shared: s, len: 40}]}\n"
        "  - {id: b, when: 'after:a', spans: [{shared: s, len: 40}]}\n"
        "expect:\n  vllm: {hit: {b: 33}}\n"
    )
    done = handoff("run", "s.yaml", "--adapters", "vllm", "--plan-only", cwd=tmp_path)
    assert done.returncode == 1
    assert "33" in done.stdout and "got 32" in done.stdout


BAD = [
    (["run", "nothing"], "nothing"),
    (["run", "--adapters", "nobody"], "nobody"),
    (["run", "mid-block", "--set", "vllm.block_sise=32"], "Did you mean block_size"),
    (["run", "mid-block", "--set", "vllm"], "ADAPTER.OPTION=VALUE"),
    (["run", "mid-block", "--set", "vllm.block_size=many"], "block_size"),
    (["run", "mid-block", "--set", "vllm.num_gpu_blocks=1000000000000"], "no memory"),
    (["run", "mid-block", "--pool-tokens", "1000000000"], "268,435,456"),
    (["run", "mid-block", "mid-block"], "2 sources are named mid-block"),
    (["run", "missing.yaml"], "missing.yaml"),
    (["run", "mid-block", "--date", "yesterday"], "field date: 'yesterday' is no date"),
    (["run", "mid-block", "--date", "20260101"], "YYYY-MM-DD"),
    (["run", "mid-block", "--date", "2026-02-30"], "YYYY-MM-DD"),
    (["adapters", ""], "no adapter ''"),
    (["adapters", "", "--json"], "no adapter ''"),
    (["run", "missing.jsonl.gz"], "missing.jsonl.gz"),
    (["run", "--no-such-option"], "--no-such-option"),
    (["conform", "missing"], "missing"),
    (["conform", "."], "no adapter"),
    (["adapters", "nobody"], "nobody"),
    (["frobnicate"], "frobnicate"),
    (["run", "mid-block", "--model", "no-such-model"], "no-such-model"),
    (["run", "mid-block", "--device", "no-such-device"], "no-such-device"),
]


@pytest.mark.parametrize(
    ("args", "word"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else ""
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, args: list[str], word: str) -> None:
    done = handoff(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert word in done.stderr and done.stderr.startswith("error ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_bad_trace_line_is_named_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(TRACE[0]) + "\n" + json.dumps({**TRACE[1], "hash_ids": [1]}) + "\n")
    done = handoff("run", "t.jsonl", "--plan-only", "--adapters", "vllm", cwd=tmp_path)
    assert done.returncode == 2 and "t.jsonl, line 2, field hash_ids" in done.stderr
    kept = handoff(
        "run", "t.jsonl", "--plan-only", "--adapters", "vllm", "--bad-lines", "skip", cwd=tmp_path
    )
    assert kept.returncode == 0 and "skipped" in kept.stderr


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("rows: [{adapter: nobody}]", "s.yaml, field rows.0: no adapter 'nobody'"),
        ("rows: [{adapter: vllm, set: {blok: 1}}]", "s.yaml, field rows.0: vLLM has no option"),
        ("rows: [{adapter: vllm}]\nexpect: {sglang: {}}", "s.yaml, field expect.sglang: names no"),
        ("options: {nobody: {a: 1}}", "s.yaml, field options.nobody: no adapter"),
        ("options: {vllm: {block_size: null}}", "s.yaml, field options.vllm: vLLM option block"),
        ("expect: {vlm: {}}", "s.yaml, field expect.vlm: names no row; rows are vllm, sglang"),
        ("rows: [{adapter: sglang}]", "no scenario has a row of vllm"),
    ],
)
def test_names_in_a_scenario_exist(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\nquestion: Why?\nrequests:\n  - {id: a, spans: [{shared: s, len: 40}]}\n" + text
    )
    done = handoff("run", "s.yaml", "--adapters", "vllm", "--plan-only", cwd=tmp_path)
    assert done.returncode == 2 and where in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_conform_counts_and_requires(tmp_path: Path) -> None:
    folder = str(RECORDINGS / "vllm")
    done = handoff("conform", folder, "--config", "b16", "--require", "66", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert (found["adapter"], found["agree"], found["differ"]) == ("vllm", 66, 0)
    assert found["fields"] > 1000 and found["first_difference"] is None
    assert handoff("conform", folder, "--config", "b16", "--require", "67").returncode == 1


def test_adapters_are_listed_quickly_and_without_torch() -> None:
    done = handoff("adapters")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[1:6]] == NAMES
    assert min(_seconds() for _ in range(3)) < 0.5
    code = (
        "import sys; from handoff.cli import main\n"
        "try: main(['adapters'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def _seconds() -> float:
    """CPU seconds of the command; wall time says more about the machine's other work."""
    before = os.times()
    handoff("adapters")
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )


def test_one_adapter_shows_options_and_gaps() -> None:
    done = handoff("adapters", "vllm")
    assert "block_size = 16" in done.stdout
    assert handoff("adapters", "vllm", "--left-out").returncode == 0
    facts = json.loads(handoff("adapters", "--json").stdout)
    assert [each["name"] for each in facts] == NAMES
    assert {each["evidence"] for each in facts} <= {"ran", "transcribed", "read"}


def test_an_interrupted_run_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    line = {"timestamp": 0, "input_length": 1024, "output_length": 400}
    path.write_text(
        "".join(json.dumps({**line, "hash_ids": [2 * k, 2 * k + 1]}) + "\n" for k in range(1500))
    )
    args = ["run", "mid-block", "long.jsonl", "--plan-only", "--adapters", "vllm", "--out", "o"]
    process = subprocess.Popen(
        [sys.executable, "-m", "handoff", *args],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    parts = tmp_path / "o" / ".parts"
    for _ in range(600):
        if parts.exists() and any(p.suffix == ".json" for p in parts.iterdir()):
            break
        time.sleep(0.05)
    process.send_signal(2)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "mid-block" in out and (tmp_path / "o" / "ledger.parquet").exists()
    done = handoff(*args[:2], *args[3:], "--resume", cwd=tmp_path)
    assert done.returncode == 0


def test_without_file_locks_a_run_is_written_all_the_same(tmp_path: Path) -> None:
    out = str(tmp_path)
    args = ["run", "mid-block", "--plan-only", "--adapters", "vllm", "--out", out]
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import handoff\n"
        f"handoff.run('mid-block', adapters=['vllm'], execute=False).write({out!r})\n"
        f"from handoff.cli import main; main({args!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ledger.parquet").exists() and "Wrote" in done.stderr + done.stdout


def test_one_run_a_folder_and_a_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in ("file", "file/below", "/dev/null"):
        done = handoff("run", "mid-block", "--adapters", "vllm", "--out", out, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(f"error {out}: cannot be written")
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    args = ["run", "mid-block", "--plan-only", "--adapters", "vllm", "--out", "."]
    done = handoff(*args, cwd=tmp_path)
    os.close(held)
    assert done.returncode == 2 and "another run is writing" in done.stderr
    assert handoff(*args, cwd=tmp_path).returncode == 0 and not (tmp_path / ".parts").exists()


def test_any_locale_and_width_will_do(tmp_path: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for columns in ("20", "300"):
        done = handoff("explain", "--shared", "40", COLUMNS=columns, cwd=tmp_path, **ascii_only)
        assert done.returncode == 0 and done.stdout.isascii(), done.stderr


def test_a_reader_that_stops_early_is_no_failure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "handoff", "run", "mid-block", "--plan-only"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "out" / "ledger.parquet").exists()


def test_a_broken_invariant_is_one_line_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = session.run_row

    def faulty(spec: RowSpec, *args: Any, **options: Any) -> Work:
        if spec.adapter == "sglang":
            raise AssertionError("blocks are missing")
        return serve(spec, *args, **options)

    monkeypatch.setattr(session, "run_row", faulty)
    monkeypatch.chdir(tmp_path)
    for adapters, kept in (("vllm,sglang", True), ("sglang,vllm", False)):
        with pytest.raises(SystemExit) as done:
            main(["run", "mid-block", "--plan-only", "--adapters", adapters, "--out", adapters])
        out, err = capsys.readouterr()
        assert done.value.code == 1 and ("vLLM" in out) is kept
        assert (tmp_path / adapters / "ledger.parquet").exists() is kept
        last = err.splitlines()[-1]
        assert last.startswith("internal error AssertionError: blocks are missing (test_cli.py, ")


def test_version_and_help() -> None:
    assert handoff("--version").stdout.startswith("handoff 0.")
    assert "conform" in handoff("--help").stdout


def test_a_past_request_is_shown_as_it_was(tmp_path: Path) -> None:
    done = handoff("run", "mid-block", "--plan-only", "--out", "o", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    past = ["explain", "--request", "second", "--ledger", "o/ledger.parquet"]
    one = handoff(*past, "--only", "vllm", cwd=tmp_path)
    assert one.returncode == 0 and "vLLM" in one.stdout and "SGLang" not in one.stdout
    changed = handoff(*past, "--what-if", "vllm.block_size=32", cwd=tmp_path)
    assert changed.returncode == 2 and "as it was" in changed.stderr


def test_a_prompt_without_a_hit_takes_its_cold_time(tmp_path: Path) -> None:
    """In chunks as the options say: small micro-batches read the weights more often."""
    from handoff.ledger.entries import read_ledger

    args = ["--set", "llamacpp.batch_size=64", "--set", "llamacpp.ubatch_size=32"]
    done = handoff(
        "run", "system-prompt", "--plan-only", "--adapters", "llamacpp", *args, "--out", "o",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = read_ledger(tmp_path / "o" / "ledger.parquet")[0]
    assert first.hit_tokens == 0 and first.ttft_s is not None and first.cold_ttft_s is not None
    assert abs(first.ttft_s - first.cold_ttft_s) < 0.02 * first.cold_ttft_s
