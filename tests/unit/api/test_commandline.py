"""Rows from pasted server commands and from ``ADAPTER:OPTION=VALUE``."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handoff import commandline as module
from handoff.commandline import parse_row, parse_server
from handoff.errors import BadInput, HandoffError, Unsupported
from handoff.experiment import rows_of


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "adapter", "values", "ignored"),
    [
        (
            "vllm serve m/x --block-size 32 --max-num-batched-tokens=8192 --port 8000"
            " --no-enable-prefix-caching --gpu-memory-utilization 0.9 --enforce-eager",
            "vllm",
            {
                "block_size": 32,
                "max_num_batched_tokens": 8192,
                "enable_prefix_caching": False,
            },
            ("--port", "--gpu-memory-utilization", "--enforce-eager"),
        ),
        (
            "vllm serve --enable-chunked-prefill m/x --max-model-len 32k",
            "vllm",
            {"enable_chunked_prefill": True, "max_model_len": 32_000},
            (),
        ),
        (
            "VAR=1 python -m vllm.entrypoints.openai.api_server --model m --kv-cache-dtype fp8",
            "vllm",
            {},
            ("--model", "--kv-cache-dtype"),
        ),
        (
            'vllm serve m --speculative-config \'{"method": "eagle", "num_speculative_tokens": 3,'
            ' "model": "d"}\'',
            "vllm",
            {"speculative_method": "eagle", "num_speculative_tokens": 3},
            (),
        ),
        (
            "python3 -m sglang.launch_server --model-path m --page-size 16 \\\n"
            "  --chunked-prefill-size 4096 --disable-radix-cache --tp 2",
            "sglang",
            {"page_size": 16, "chunked_prefill_size": 4096, "disable_radix_cache": True},
            ("--model-path", "--tp"),
        ),
        (
            "./build/bin/llama-server -m model.gguf -np 1 --cache-reuse 256 -c 32768 -ngl 99"
            " --no-context-shift -fa on",
            "llamacpp",
            {"parallel": 1, "cache_reuse": 256, "ctx_size": 32768, "context_shift": False},
            ("-m", "-ngl", "-fa"),
        ),
    ],
)
def test_flags_become_options(
    text: str, adapter: str, values: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    found = parse_server(text)
    assert found.row.adapter == adapter
    assert dict(found.row.values) == values
    assert found.ignored == ignored


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("vllm serve m --kv-offloading-size 8", "--kv-offloading-size"),
        ("vllm serve m --some-new-cache-flag 8", "--some-new-cache-flag"),
        ("python -m sglang.launch_server --hicache-storage-backend file", "--hicache-storage"),
        ("python -m sglang.launch_server --dp-size 2", "--dp-size"),
        ("llama-server --mmproj p.gguf", "--mmproj"),
    ],
)
def test_flags_that_change_the_cache_are_never_dropped(text: str, flag: str) -> None:
    with pytest.raises(Unsupported, match=flag):
        parse_server(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tgi --port 80", "known servers: vllm serve"),
        ("vllm serve 'm", "No closing quotation"),
        ("vllm serve m --block-size many", "block_size"),
        ("vllm serve m --speculative-config 3", "no JSON object"),
        ("vllm serve m --speculative-config {", "no JSON"),
    ],
)
def test_mistakes_name_themselves(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_server(text)


def test_a_row_is_labelled_with_its_own_text() -> None:
    assert parse_row("vllm").label == "vllm"
    row = parse_row("sglang:page_size=16,chunked_prefill_size=2048")
    assert row.label == "sglang:page_size=16,chunked_prefill_size=2048"
    assert dict(row.values) == {"page_size": 16, "chunked_prefill_size": 2048}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nobody", "no adapter 'nobody'"),
        ("vllm:block_sise=3", "Did you mean block_size"),
        ("vllm:block_size", "give ADAPTER:OPTION=VALUE"),
        ("vllm:block_size=0", "block_size"),
    ],
)
def test_a_wrong_row_is_one_line(text: str, says: str) -> None:
    with pytest.raises(HandoffError, match=says):
        parse_row(text)


# -- the commands that take them -----------------------------------------------------------------


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handoff", *words], capture_output=True, text=True, cwd=folder
    )


def test_run_has_a_row_for_each(tmp_path: Path) -> None:
    row = ["--row", "vllm:block_size=2"]
    pasted = ["--from", "vllm serve m --block-size 32 --port 1"]
    words = ["run", "mid-block", "--plan-only", "--adapters", "vllm", *row, *pasted, "--json"]
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["scenarios"]["mid-block"]
    hits = {name: each["hit_tokens"] for name, each in rows.items()}
    assert hits == {"vllm": 32, "vllm:block_size=2": 34, "vllm:block_size=32": 32}
    assert "vllm:block_size=32: without effect here: --port" in done.stderr


def test_sweep_prints_pools_with_the_best_and_the_ceiling(tmp_path: Path) -> None:
    words = ["sweep", "small-pool", "--pools", "512,2048", "--adapters", "vllm"]
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "an unlimited pool hits 33.7 %" in done.stdout
    assert (tmp_path / "out/sweep.csv").exists() and (tmp_path / "out/pool_curve.svg").exists()
    facts = json.loads(command(*words, "--json", folder=tmp_path).stdout)
    assert facts["ceiling"]["hit_tokens"] == 420
    assert [each["hit_tokens"] for each in facts["points"]] == [256, 400]
    for pools in ("512", "a,b", "0,3"):
        wrong = command("sweep", "small-pool", "--pools", pools, folder=tmp_path)
        assert wrong.returncode == 2 and wrong.stderr.startswith("error ")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("vllm serve M --blok-size 32", "--block-size"),
        ("llama-server --cache-reus 256", "--cache-reuse"),
        ("python -m sglang.launch_server --page-sise 16", "--page-size"),
    ],
)
def test_a_misspelt_flag_is_no_harmless_one(command: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"Did you mean {meant}"):
        parse_server(command)


def test_what_a_row_states_wins_over_shared_values() -> None:
    row = parse_row("vllm:block_size=32")
    sets = {"vllm": {"block_size": 128, "max_num_seqs": 7}}
    plain, own = rows_of(None, ["vllm"], sets, [row])
    assert plain.values["block_size"] == 128
    assert own.values["block_size"] == 32 and own.values["max_num_seqs"] == 7
