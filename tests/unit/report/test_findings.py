import pandas as pd

from handoff.ledger.entries import Entry
from handoff.report import findings, trust
from handoff.report.info import RowInfo, RunInfo, ScenarioInfo, Truth
from handoff.report.strip import strip
from handoff.report.totals import named, served, totals

from . import ledgers


def test_the_answer_names_the_denominator_and_the_range(chat: pd.DataFrame) -> None:
    rows = totals(chat)
    low = min(rows, key=lambda row: row.saved_ratio or 0)
    high = max(rows, key=lambda row: row.saved_ratio or 0)
    assert findings.answer(rows, "chat") == (
        "chat: 46.1 % of 4,048 prompt tokens had been computed before; the five frameworks save"
        f" {100 * (low.saved_ratio or 0):.1f} to {100 * (high.saved_ratio or 0):.1f} %"
        " of the prefill compute."
    )


def test_answers_without_anything_shared_saved_or_finished() -> None:
    cold = totals(ledgers.frame([ledgers.entry("vllm", [("fresh", 40)])]))
    assert findings.answer(cold) == (
        "None of 40 prompt tokens had been computed before; nothing to save."
    )
    lost = totals(ledgers.frame([ledgers.entry("vllm", [("alignment", 34), ("fresh", 6)])]))
    assert findings.answer(lost).endswith("no prefill compute is saved.")
    gone = totals(ledgers.frame([ledgers.entry("vllm", [("fresh", 4)], status="aborted")]))
    assert findings.answer(gone, "x").startswith("x: no request finished")
    assert findings.gap(gone) == "No row has a hit."


def test_rows_of_one_framework_are_rows() -> None:
    parts = [("reused", 32), ("fresh", 8)]
    entries = [ledgers.entry("vllm", parts, run=run) for run in ("vllm", "vllm:block_size=32")]
    assert "the two rows save" in findings.answer(totals(ledgers.frame(entries)))
    assert "; vLLM saves" in findings.answer(totals(ledgers.frame(entries[:1])))


def test_the_gap_names_its_cause(chat: pd.DataFrame) -> None:
    assert findings.gap(totals(chat)).startswith("Biggest gap: llama.cpp reports 42.4 % hits")
    replay = ledgers.entry("deepinfer", [("reused", 10), ("replay", 80), ("fresh", 10)])
    assert "since replay computes 80.0 % again." in findings.gap(totals(ledgers.frame([replay])))
    moved = ledgers.entry("llamacpp", [("fresh", 5000), ("moved", 5000)], shared_tokens=0)
    assert "chunks from the middle" in findings.gap(totals(ledgers.frame([moved])))
    weights = [
        ledgers.entry("vllm", [("fresh", 100)], request="a"),
        ledgers.entry("vllm", [("reused", 9000), ("fresh", 10)], request="b"),
    ]
    assert "longer prompts" in findings.gap(totals(ledgers.frame(weights)))


def test_a_small_gap_has_no_story() -> None:
    same = ledgers.entry("vllm", [("reused", 34), ("fresh", 6)])
    text = findings.gap(totals(ledgers.frame([same])))
    assert text == "Hit ratio and saved ratio differ by at most 0.3 points in every row."


def test_scenarios_that_are_not_summed_are_named() -> None:
    assert findings.not_summed(["a", "b", "c"], ["b"]) == (
        "Not summed, since their rows differ: a and c."
    )
    assert findings.not_summed(["a"], ["a"]) == ""


def test_the_window_says_what_is_counted(chat: pd.DataFrame, info: RunInfo) -> None:
    rows = totals(chat)
    assert findings.window(rows, info) == (
        "All 2 requests, 4,048 prompt tokens, pool 1,048,576 tokens,"
        " FLOPs of tiny reference model, seed 0"
    )
    half = info.model_copy(update={"window": "last half"})
    assert findings.window(rows, half).startswith("Last half: 2 requests, ")
    tight = ScenarioInfo(name="chat", pool_tokens=512)
    assert "pool 512 tokens" in findings.window(rows, info, tight)


def test_different_pools_are_named_row_by_row(chat: pd.DataFrame) -> None:
    rows = (RowInfo(run="vllm", pool="9 blocks"), RowInfo(run="sglang", pool="80 slots"))
    words = findings.pools(totals(chat), ledgers.info(rows=rows))
    assert words == "pools: vLLM 9 blocks; SGLang 80 slots"


def test_rows_that_refused_requests_are_starred_and_not_compared() -> None:
    refused = ledgers.refused("tensorrt_llm", "huge", 9000, "longer than the pool")
    entries = [
        *(
            ledgers.entry(a, [("reused", 10), ("fresh", 90)], request="s")
            for a in ledgers.FRAMEWORKS
        ),
        *(
            ledgers.entry(a, [("fresh", 9000)], request="huge")
            for a in ledgers.FRAMEWORKS
            if a != "tensorrt_llm"
        ),
        refused,
    ]
    rows = totals(ledgers.frame(entries))
    assert "0.1 % of 9,100 prompt tokens" in findings.answer(rows)
    assert "the four frameworks that served every request save" in findings.answer(rows)
    assert list(named(rows).values())[3] == "TensorRT-LLM *"
    assert findings.window(rows, ledgers.info()).startswith(
        "All 2 requests, 9,100 prompt tokens (TensorRT-LLM served 1 request), pool "
    )
    assert served(rows) == {"tensorrt_llm": "1 of 2 requests"}
    assert findings.refusals(rows) == (
        "* Not every request is counted: TensorRT-LLM refused 1, the first: longer than the pool"
        " (its rates count the other 1)."
    )
    assert "TensorRT-LLM" not in findings.gap(rows)


def test_what_is_not_counted_is_said() -> None:
    entries = [
        ledgers.entry("vllm", [("fresh", 50)]),
        ledgers.entry("vllm", [("fresh", 50)], request="gone", status="aborted"),
        ledgers.entry("vllm", [("fresh", 50)], request="r", attempt=1, recomputed_tokens=27),
    ]
    assert findings.refusals(totals(ledgers.frame(entries))) == (
        "* Not every request is counted: vLLM aborted 1 (its rates count the other 1)."
        " Re-admitted after preemption: vLLM 1 time (27 tokens computed again)."
    )
    assert findings.refusals(totals(ledgers.frame(ledgers.chat()))) == ""


def test_strip_titles(chat: pd.DataFrame, both: pd.DataFrame) -> None:
    title = findings.strip_title(strip(chat, "chat", "turn-2"))
    assert title == "2,048 tokens, 1,867 shared: five hits, from 1,715 to 1,867"
    short = findings.strip_title(strip(both, "same-twice", "r2"))
    assert short == "40 tokens, 34 shared: hits of 16, 34, 34, 34 and 32"
    cold = findings.strip_title(strip(chat, "chat", "turn-1"))
    assert cold == "2,000 tokens, 0 shared: no hit"
    same = ledgers.frame(
        [ledgers.entry(a, [("reused", 8), ("fresh", 1)]) for a in ("vllm", "sglang")]
    )
    assert findings.strip_title(strip(same, "chat", "turn-2")) == "9 tokens, 8 shared: both hit 8"


def moved_rows() -> list[Entry]:
    parts = [("reused", 40), ("moved", 60), ("fresh", 20)]
    return [
        ledgers.entry("vllm", [("reused", 40), ("fresh", 80)]),
        ledgers.entry("llamacpp", parts, shared_tokens=40, tainted_tokens=60, unsound=("11.1",)),
    ]


def test_reused_text_that_is_no_prefix_is_told_from_the_prefix() -> None:
    rows = totals(ledgers.frame(moved_rows()))
    text = findings.answer(rows, "chat")
    assert text.startswith("chat: 33.3 % of 120 prompt tokens repeat a prefix that was computed")
    assert text.endswith("; llama.cpp also reuses text that is no prefix.")
    alone = totals(ledgers.frame(moved_rows()[1:]))
    assert findings.answer(alone).endswith("; it also reuses text that is no prefix.")


def test_approximate_hits_are_marked_and_measured() -> None:
    rows = totals(ledgers.frame(moved_rows()))
    assert list(named(rows).values()) == ["vLLM", "llama.cpp †"]
    assert rows[1].marked == "llama.cpp †"
    head = "† Reuses KV that a cold run would not hold, an approximation: llama.cpp"
    head += " (60 tokens moved to other positions, rule 11.1 of docs/rules/llamacpp.md, "
    truth = Truth(ok=True, max_error=0, tolerance=1e-4, rows=3, approximate_rows=2,
                  approximate_max_error=0.25)  # fmt: skip
    said = trust.approximations(rows, ledgers.info(rows=(RowInfo(run="llamacpp", truth=truth),)))
    assert said == head + "2 rows of logits off by up to 0.25 of the largest logit)."
    assert trust.approximations(rows, ledgers.info(rows=())) == head + "not executed)."
    assert trust.approximations(rows[:1], ledgers.info()) == ""


def test_a_tainted_hit_is_marked_without_moving_anything() -> None:
    entry = ledgers.entry("vllm", [("reused", 16), ("fresh", 4)], tainted_tokens=16)
    rows = totals(ledgers.frame([entry]))
    assert named(rows) == {"vllm": "vLLM †"}
    assert "(16 tokens of another context, no logits behind it compared)" in (
        trust.approximations(rows, ledgers.info())
    )


def test_rows_that_share_differently_are_told_by_the_most() -> None:
    entries = [
        ledgers.entry("vllm", [("reused", 34), ("fresh", 6)]),
        ledgers.entry("sglang", [("reused", 32), ("fresh", 8)]),
    ]
    rows = totals(ledgers.frame(entries))
    assert findings.answer(rows).startswith("Up to 85.0 % of 40 prompt tokens had been computed")
    assert "compute: up to 85.0 % becomes" in findings.waterfall_title(rows)


def test_a_sum_over_some_scenarios_says_so() -> None:
    rows = totals(ledgers.frame(moved_rows()))
    assert findings.summed(["a", "b", "c"], ["a", "c"], rows) == (
        "2 of 3 scenarios have the same two rows"
    )
    assert findings.summed(["a", "b"], ["a", "b"], rows) == "2 scenarios"


def test_lanes_and_evidence_are_put_into_words(chat: pd.DataFrame) -> None:
    one = strip(chat, "chat", "turn-2")
    assert findings.lanes_note(one.rows[0]) == ""
    assert findings.lanes_note(one.rows[4]) == (
        "DeepInfer: consumer layers compute at most 140 positions, hit or not."
    )
    assert findings.evidence_note(one.rows) == "Rules not run upstream: TensorRT-LLM transcribed."


def test_the_truth_is_reported_good_or_bad(info: RunInfo) -> None:
    assert trust.truth(info) == (
        "Truth test: 60 rows of logits equal a cold recompute"
        " (float32, largest error 3.1e-06 of the largest logit, allowed 1e-04)."
    )
    moved = Truth(ok=True, max_error=1e-6, tolerance=1e-4, rows=3, approximate_rows=2,
                  approximate_max_error=0.25)  # fmt: skip
    assert trust.truth(ledgers.info(rows=(RowInfo(run="a", truth=moved),))).endswith(
        " Apart from them 2 rows behind an approximation (a) are off the untruncated model by up to"
        " 0.25 of the largest logit."
    )
    bad = Truth(ok=False, max_error=0.5, tolerance=1e-4, rows=1)
    failed = ledgers.info(rows=(RowInfo(run="vllm", truth=bad),))
    assert trust.truth(failed).startswith("Truth test FAILED for vllm: largest error 5.0e-01")
    planned = ledgers.info(rows=(), executed=False)
    assert trust.truth(planned).startswith("Planned only")
    assert trust.tags(info) == "Content tags: 200 steps checked, 0 faults."
    assert trust.planted(info) == "12 of 12 planted faults caught."


def test_titles_of_the_other_figures(chat: pd.DataFrame) -> None:
    rows = totals(chat)
    assert findings.waterfall_title(rows).startswith(
        "From shared prefix to saved compute: 46.1 % becomes 39.1 to "
    )
    assert findings.ratio_title(rows, 0, 0).endswith("every request lies in the band")
    assert findings.ratio_title(rows, 2, 0).endswith("; 2 marks below the band")
    assert findings.ratio_title(rows, 2, 1).endswith("; 2 below and 1 above the band")
