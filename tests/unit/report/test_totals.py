import pandas as pd
import pytest

from handoff.report.totals import common, label, run_order, totals, waterfall

from . import ledgers


def test_sums_are_those_of_the_counted_entries(chat: pd.DataFrame) -> None:
    rows = totals(chat)
    assert [row.run for row in rows] == list(ledgers.FRAMEWORKS)
    vllm = rows[0]
    assert (vllm.prompt, vllm.shared, vllm.hit, vllm.fresh) == (4048, 1867, 1840, 2181)
    assert vllm.losses() == [("draft", 16), ("alignment", 11)]
    assert vllm.hit_ratio == pytest.approx(1840 / 4048)
    assert vllm.saved_ratio == pytest.approx(vllm.saved_flops / vllm.cold_flops)
    assert rows[4].split == 1  # DeepInfer's consumer layers


def test_refusals_aborts_and_second_attempts_stay_out_of_ratios() -> None:
    entries = [
        *ledgers.chat(),
        ledgers.refused("vllm", "huge", 9000, "longer than the pool"),
        ledgers.entry("vllm", [("fresh", 50)], request="gone", status="aborted"),
        ledgers.entry(
            "vllm", [("reused", 10), ("fresh", 40)], request="back", attempt=1, recomputed_tokens=40
        ),
    ]
    row = totals(ledgers.frame(entries))[0]
    assert (row.requests, row.refused, row.aborted, row.again) == (2, 1, 1, 1)
    assert row.prompt == 4048
    assert row.recomputed == 40
    assert row.why == "longer than the pool"


def test_flops_are_exact_beyond_64_bits() -> None:
    huge = 2**62
    entries = [
        ledgers.entry("vllm", [("fresh", 4)], request=str(at), cold_flops=huge, spent_flops=huge)
        for at in range(4)
    ]
    assert totals(ledgers.frame(entries))[0].cold_flops == 2**64


def test_the_waterfall_closes_at_every_level(both: pd.DataFrame) -> None:
    for row in totals(both):
        steps = waterfall(row)
        level = 0.0
        for step in steps:
            if step.kind == "total":
                assert step.value == pytest.approx(level) or step.name == "shared prefix"
                level = step.value
            else:
                assert step.before == pytest.approx(level)
                level += step.value
        assert steps[-1].name == "saved compute"
        assert steps[-1].value == pytest.approx(row.saved_flops / row.cold_flops)


def test_moved_inside_the_shared_prefix_is_no_extra_gain() -> None:
    inside = [("reused", 100), ("moved", 50), ("slot_choice", 30), ("fresh", 20)]
    beyond = [("reused", 100), ("evicted", 20), ("moved", 50), ("fresh", 30)]
    entries = [
        ledgers.entry("llamacpp", inside),
        ledgers.entry("llamacpp", beyond, run="llamacpp:b", shared_tokens=120),
    ]
    first, second = (
        {step.name: step.tokens for step in waterfall(row)}
        for row in totals(ledgers.frame(entries))
    )
    assert (first["shared prefix"], first["moved"], first["hit tokens"]) == (180, 0, 150)
    assert (second["shared prefix"], second["moved"], second["hit tokens"]) == (120, 50, 150)


def test_replay_is_granted_and_taken_again() -> None:
    row = totals(ledgers.frame([ledgers.entry("deepinfer", [("reused", 60), ("replay", 40)])]))[0]
    steps = {step.name: step.tokens for step in waterfall(row)}
    assert (steps["hit tokens"], steps["replay"]) == (100, -40)


def test_rows_without_prompts_have_no_waterfall() -> None:
    gone = ledgers.entry("vllm", [("fresh", 50)], status="aborted")
    row = totals(ledgers.frame([gone]))[0]
    assert row.hit_ratio is None and row.gap is None
    assert waterfall(row) == []


def test_rows_come_in_the_frameworks_order() -> None:
    entries = [
        ledgers.entry("sglang", [("fresh", 4)]),
        ledgers.entry("vllm", [("fresh", 4)], run="vllm:block_size=32"),
        ledgers.entry("vllm", [("fresh", 4)]),
    ]
    assert run_order(ledgers.frame(entries)) == ["vllm:block_size=32", "vllm", "sglang"]


def test_labels_tell_option_sets_apart() -> None:
    assert label("vllm", "vllm", "vLLM") == "vLLM"
    assert label("vllm:block_size=32", "vllm", "vLLM") == "vLLM block_size=32"
    assert label("vLLM, EAGLE", "vllm", "vLLM") == "vLLM, EAGLE"


def test_only_rows_of_equal_input_are_summed_over_scenarios() -> None:
    took_part = {
        "one": ["vllm", "sglang"],
        "two": ["vllm", "sglang", "vllm:block_size=32"],
        "three": ["vllm"],
        "four": ["vllm:block_size=8"],
    }
    entries = [
        ledgers.entry(run.partition(":")[0], [("fresh", 4)], scenario=scenario, run=run)
        for scenario, runs in took_part.items()
        for run in runs
    ]
    kept_entries = common(ledgers.frame(entries))
    assert set(kept_entries["run"]) == {"vllm", "sglang"}
    assert set(kept_entries["scenario"]) == {"one", "two"}
    assert len(kept_entries) == 4
