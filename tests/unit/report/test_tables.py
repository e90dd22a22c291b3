import io

import pandas as pd
import pytest
from rich.console import Console

from handoff.report.info import RunInfo
from handoff.report.tables import five_rows, render_run
from handoff.report.totals import totals

from . import ledgers


def printed(width: int, frame: pd.DataFrame, info: RunInfo, **options: bool) -> str:
    out = io.StringIO()
    render_run(Console(file=out, width=width), frame, info, **options)
    return out.getvalue()


def table(width: int, frame: pd.DataFrame) -> list[str]:
    out = io.StringIO()
    five_rows(Console(file=out, width=width), totals(frame))
    return out.getvalue().splitlines()


WIDE = """\
              hit %  saved %   gap  hit tokens  lost, % of prompt tokens, largest first  TTFT p50  evidence
──────────────────────────────────────────────────────────────────────────────────────────────────────────────
vLLM           45.5     43.4  −2.1       1,840  draft 0.4, alignment 0.3                  12.3 ms  ran
SGLang         45.8     43.9  −1.9       1,856  alignment 0.3                             12.3 ms  ran
llama.cpp †    42.4     39.1  −3.3       1,715  slot_choice 3.8                           12.3 ms  ran
TensorRT-LLM   46.1     44.3  −1.8       1,867  none                                      12.3 ms  transcribed
DeepInfer      44.3     41.7  −2.6       1,792  alignment 1.9                             12.3 ms  ran
"""  # noqa: E501

NARROW = """\
              hit %  saved %   gap  lost, % of prompt tokens  evidence
─────────────────────────────────────────────────────────────────────────
vLLM           45.5     43.4  −2.1  draft 0.4, alignment 0.3  ran
SGLang         45.8     43.9  −1.9  alignment 0.3             ran
llama.cpp †    42.4     39.1  −3.3  slot_choice 3.8           ran
TensorRT-LLM   46.1     44.3  −1.8  none                      transcribed
DeepInfer      44.3     41.7  −2.6  alignment 1.9             ran
Hit tokens: vLLM 1,840 · SGLang 1,856 · llama.cpp 1,715 · TensorRT-LLM 1,867 ·
DeepInfer 1,792
"""


def test_snapshots_of_both_layouts(chat: pd.DataFrame) -> None:
    assert table(120, chat) == WIDE.splitlines()
    assert table(80, chat) == NARROW.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 110, 120, 200])
def test_nothing_is_cut_or_too_wide(width: int, both: pd.DataFrame, info: RunInfo) -> None:
    text = printed(width, both, info)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= max(width, 60)
    for row in totals(both):
        assert row.label in text


def test_a_narrow_terminal_gets_blocks(chat: pd.DataFrame) -> None:
    lines = table(60, chat)
    assert lines[0] == "vLLM"
    assert lines[1] == "  hit 45.5 % (1,840 of 4,048), saved 43.4 %, gap −2.1"


def test_the_sentence_comes_first_and_provenance_follows(chat: pd.DataFrame, info: RunInfo) -> None:
    text = printed(120, chat, info)
    assert text.startswith("chat: 46.1 % of 4,048 prompt tokens had been computed before;")
    for part in ("pool 1,048,576 tokens", "Truth test: 60 rows", "not upstream's default: block"):
        assert part in text
    assert "█ reused" in text  # one scenario: with its strip


def test_several_scenarios_end_with_all_together(both: pd.DataFrame, info: RunInfo) -> None:
    text = printed(120, both, info, strips=False)
    assert text.startswith("2 scenarios: 46.5 % of 4,088 prompt tokens")
    assert "All scenarios together" in text
    assert "█ reused" not in text


def test_ascii_says_the_same(both: pd.DataFrame, info: RunInfo) -> None:
    text = printed(100, both, info, ascii_only=True)
    assert text.isascii()
    assert "################dddddddddddddddd" in text


def test_unmet_expectations_are_printed(chat: pd.DataFrame, info: RunInfo) -> None:
    from handoff.report.info import Expectation, ScenarioInfo

    unmet = ScenarioInfo(name="chat", expectations=(Expectation(words="hit 7", ok=False),))
    text = printed(100, chat, info.model_copy(update={"scenarios": (unmet,)}))
    assert "Expected, but not so: hit 7" in text


def test_marks_are_explained_below_the_table(chat: pd.DataFrame, info: RunInfo) -> None:
    text = printed(200, chat, info)
    assert "\n† Reuses KV that a cold run would not hold, an approximation: llama.cpp (512 " in text
    assert "\n^ Reuses KV" in printed(200, chat, info, ascii_only=True)


def test_options_are_printed_for_summed_rows_only(info: RunInfo) -> None:
    own = ledgers.entry("vllm", [("fresh", 9)], run="vllm:block_size=32", scenario="sizes")
    text = printed(120, ledgers.frame([*ledgers.chat(), own]), info)
    assert text.startswith("1 of 2 scenarios has these five rows: 46.1 % of")
    assert "1 more row with options of their own: see the report." in text
    assert text.count("Not summed") == 1
    assert text.index("All 2 requests") < text.index("Not summed, since its rows differ: sizes.")


def test_a_long_name_shortens_the_head_before_rows_become_blocks() -> None:
    entry = ledgers.entry("vllm", [("reused", 34), ("fresh", 6)], run="vLLM, " + "x" * 28)
    assert "lost, %  evidence" in table(80, ledgers.frame([entry]))[0]
    entry = ledgers.entry("vllm", [("reused", 34), ("fresh", 6)], run="vLLM, " + "x" * 60)
    assert table(80, ledgers.frame([entry]))[1].startswith("  hit 85.0 % (34 of 40)")


def test_more_reasons_than_fit_are_counted() -> None:
    parts = [("reused", 20)] + [
        (reason, 20) for reason in ("evicted", "tier", "group", "alignment", "draft")
    ]
    lines = table(110, ledgers.frame([ledgers.entry("vllm", parts)]))
    assert "+2 more" in lines[2] or "+3 more" in lines[2]
