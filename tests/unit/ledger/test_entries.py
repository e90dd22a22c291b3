"""Entries cannot be built with wrong sums, and a ledger survives its parquet file."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.errors import BadInput
from handoff.ledger.entries import CLASSES, Entry, Ledger, Run, read_ledger
from handoff.types import Deduction


def example(**changes: object) -> Entry:
    """40 tokens, 35 of them seen before, block 16: 32 granted, replay of the last 4 of them."""
    values: dict[str, object] = {
        "run": "vllm",
        "adapter": "vllm",
        "title": "vLLM",
        "upstream": "0.32.0",
        "evidence": "ran",
        "options": {"num_gpu_blocks": 64},
        "describe": "block 16",
        "scenario": "twins",
        "request": "b",
        "attempt": 0,
        "arrival_s": 0.5,
        "prompt_tokens": 40,
        "known_tokens": 40,
        "shared_tokens": 35,
        "raw_tokens": 32,
        "hit_tokens": 32,
        "start": 28,
        "unit": 16,
        "runs": (
            Run("reused", 0, 28),
            Run("replay", 28, 32),
            Run("alignment", 32, 35),
            Run("fresh", 35, 40),
        ),
        "computed_tokens": 12,
        "output_tokens": 3,
        "cold_flops": 1000,
        "spent_flops": 320,
        "deductions": (Deduction("alignment", 32, 35, "5"),),
        "lanes": {"full": (Run("reused", 0, 40),)},
        "answers": {"matcher": "scheduler"},
        "counters": {"prefix_cache_hits": 32},
    }
    return Entry(**{**values, **changes})  # type: ignore[arg-type]


def test_token_columns_are_counted_from_the_runs() -> None:
    entry = example()
    assert entry.count("reused") == 28 and entry.count("evicted") == 0
    assert entry.lost == {"alignment": 3, "replay": 4}
    assert sum(entry.count(kind) for kind in CLASSES) == entry.prompt_tokens
    assert entry.counted and not example(attempt=1, hit_tokens=0).counted


def test_token_weights_close_the_waterfall() -> None:
    entry = example()
    assert entry.saved_flops == 680
    assert entry.token_weights_flops == 680 - 1000 * 28 // 40 == -20


@pytest.mark.parametrize(
    "changes",
    [
        {"hit_tokens": 31},  # not reused + moved + replay
        {"runs": (Run("reused", 0, 32), Run("fresh", 33, 40))},  # a gap
        {"runs": (Run("reused", 0, 32), Run("fresh", 31, 40))},  # twice
        {"runs": (Run("reused", 0, 32),)},  # short of the prompt
        {"runs": (Run("reused", 0, 32), Run("gone", 32, 40))},  # no such class
        {"lanes": {"full": (Run("reused", 0, 39),)}},
        {"status": "refused: too long"},
    ],
)
def test_a_wrong_account_cannot_be_built(changes: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        example(**changes)


def test_parquet_round_trip(tmp_path: Path) -> None:
    ledger = Ledger([example(), example(request="c", estimate_tokens=34, ttft_s=0.25)])
    ledger.append(example(request="d", runs=(), lanes={}, hit_tokens=0, status="refused: too long"))
    ledger.write_parquet(tmp_path / "ledger.parquet")
    again = read_ledger(tmp_path / "ledger.parquet")
    assert list(again) == list(ledger)
    frame = ledger.to_pandas()
    assert list(frame.columns[18:22]) == ["reused", "moved", "fresh", "not_stored"]
    assert list(frame.columns) == list(Ledger().to_pandas().columns)
    assert frame["saved_flops"].tolist() == [680, 680, 680]


def test_rows_and_scenarios_are_selected() -> None:
    ledger = Ledger([example(), example(run="sglang"), example(scenario="chat")])
    assert ledger.runs == ["vllm", "sglang"] and ledger.scenarios == ["twins", "chat"]
    assert len(ledger.select(run="vllm", scenario="chat")) == 1
    assert "3 entries" in repr(ledger)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(BadInput):
        read_ledger(tmp_path / "a.parquet")
    Ledger([example()]).to_pandas().drop(columns=["hit_tokens"]).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(BadInput, match="hit_tokens"):
        read_ledger(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("runs", '[["reused",0,40],["fresh",41,40]]'),
        ("runs", '[["reused",0]]'),
        ("runs", '[["reused","a",40]]'),
        ("runs", "[[[]]]"),
        ("runs", '[["nonsense",0,40]]'),
        ("runs", "null"),
        ("runs", "[[" * 9),
        ("lanes", '{"full":[["reused",0,39]]}'),
        ("lanes", "[]"),
        ("lanes", '{"full":3}'),
        ("deductions", "[[1]]"),
        ("deductions", "[3]"),
        ("answers", "x"),
        ("counters", "[]"),
        ("options", ""),
        ("unsound", "{}"),
        ("status", None),
        ("run", None),
        ("hit_tokens", None),
        ("hit_tokens", "many"),
        ("cold_flops", "many"),
        ("arrival_s", "late"),
        ("estimate_tokens", "many"),
        ("ttft_s", "late"),
    ],
)
def test_a_damaged_cell_names_file_and_row(tmp_path: Path, column: str, value: object) -> None:
    frame = Ledger([example(), example(request="c")]).to_pandas().astype({column: object})
    frame.loc[1, column] = value
    path = tmp_path / "c.parquet"
    if isinstance(value, str):
        frame[column] = frame[column].astype(str)  # a parquet column has one type
    frame.to_parquet(path)
    with pytest.raises(BadInput, match=r"c.parquet.*row [12]"):
        read_ledger(path)
