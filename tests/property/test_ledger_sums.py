"""Over all adapters and random streams: classes sum to the prompt, hit^2 <= saved <= hit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handoff.adapter import ORDER, load, names
from handoff.experiment import RowSpec, Stream, Work, run_row
from handoff.ledger.entries import CLASSES, Entry
from handoff.model.presets import preset
from handoff.workload.scenario import RequestSpec, Span, build_arrivals

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "vllm": [
        {},
        {"speculative_method": "eagle", "num_speculative_tokens": 2},
        {"groups": [{"type": "full"}, {"type": "swa", "window": 24}]},
        {"groups": [{"type": "full"}, {"type": "mamba"}], "max_num_batched_tokens": 64},
        {"groups": [{"type": "full"}, {"type": "swa_mla_replay", "window": 32}]},
        {"enable_prefix_caching": False},
    ],
    "sglang": [
        {},
        {"page_size": 16, "chunked_prefill_size": 64, "schedule_policy": "lpm"},
        {"attention": "swa", "sliding_window_size": 24},
        {"attention": "mamba"},
        {"enable_hierarchical_cache": True},
        {"disable_radix_cache": True},
    ],
    "llamacpp": [
        {},
        {"cache_reuse": 8, "parallel": 2, "cache_ram": 0},
        {"memory": "window", "n_swa": 24, "n_layer_swa": 16, "ubatch_size": 64},
        {"memory": "hybrid", "batch_size": 64, "ubatch_size": 32},
        {"cache_prompt": False},
    ],
    "tensorrt_llm": [
        {},
        {"enable_partial_reuse": False, "enable_chunked_prefill": True, "max_num_tokens": 64},
        {"max_attention_window": [64, 1024], "max_seq_len": 1024},
        {"blocks_in_secondary_pool": 16},
        {"enable_block_reuse": False},
    ],
    "deepinfer": [
        {},
        {
            "model": "yoco16",
            "yoco_prefill_truncation_mode": "compact",
            "yoco_prefill_keep_tokens": 22,
        },
        {"outside_policy": "anchor", "outside_rollback": 8, "use_nextn_decode": 0},
        {"outside_policy": "none"},
    ],
}
"""Option sets to try besides each adapter's defaults."""

ROWS = [(name, values) for name in names() for values in OPTIONS.get(name, [{}])]
HEAD = 2 * preset("llama-3.1-8b").head


@st.composite
def streams(draw: st.DrawFn) -> list[RequestSpec]:
    """Up to eight requests over a few shared streams; some wait, some come together."""
    specs: list[RequestSpec] = []
    for at in range(draw(st.integers(2, 8))):
        spans = [
            Span(shared=draw(st.sampled_from("ab")), len=draw(st.integers(1, 120))),
            Span(shared=draw(st.sampled_from("cd")), len=draw(st.integers(1, 60))),
            Span(unique=f"u{at}", len=draw(st.integers(1, 40))),
        ]
        quoted = [spec for spec in specs if spec.output_len > 1]
        if quoted and draw(st.booleans()):
            spec = draw(st.sampled_from(quoted))
            spans = [*spec.spans, Span(output_of=spec.id, len=spec.output_len), spans[2]]
        kinds = ["start"] if not specs else ["start", "after", "with", "during_decode"]
        kind = draw(st.sampled_from(kinds))
        target = draw(st.sampled_from(specs)).id if kind != "start" else ""
        specs.append(
            RequestSpec(
                id=f"r{at}",
                when=f"{kind}:{target}" if target else kind,
                spans=tuple(spans[: draw(st.integers(1, len(spans)))]),
                output_len=draw(st.integers(1, 30)),
                salt=draw(st.sampled_from([None, None, "A"])),
            )
        )
    return specs


def served(name: str, values: dict[str, Any], specs: list[RequestSpec], pool: int) -> Work:
    stream = Stream("random", lambda: build_arrivals(tuple(specs)))
    return run_row(RowSpec(name, name, values), stream, pool_tokens=pool, check_tags=False)


def excused(entry: Entry) -> set[str]:
    """What may explain a saving outside the band."""
    found = {kind for kind in ("replay", "budget", "moved") if entry.count(kind)}
    flags = {run.kind for lane in entry.lanes.values() for run in lane}
    return found | (flags & {"recomputed", "unneeded"})


@pytest.mark.parametrize(
    ("name", "values"), ROWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROWS)]
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(specs=streams(), pool=st.sampled_from([768, 4096]))
def test_every_position_has_one_class(
    name: str, values: dict[str, Any], specs: list[RequestSpec], pool: int
) -> None:
    work = served(name, values, specs, pool)
    first = [entry for entry in work.entries if entry.attempt == 0]
    assert {entry.request for entry in first} >= {spec.id for spec in specs}
    for entry in first:
        if entry.status != "done":
            continue
        n, hit, cold, saved = (
            entry.prompt_tokens,
            entry.hit_tokens,
            entry.cold_flops,
            entry.saved_flops,
        )
        assert sum(entry.count(kind) for kind in CLASSES) == n
        assert entry.computed_tokens == n - entry.start
        assert entry.shared_tokens + entry.fresh + entry.moved >= n
        ways_out = excused(entry)
        if "moved" not in ways_out:
            assert saved * n <= hit * cold, f"{entry} saves more than it hits"
        if not ways_out - {"moved"}:
            assert hit * hit * (cold - HEAD) <= saved * n * n, f"{entry} saves too little"


def test_every_adapter_is_tried() -> None:
    assert {name for name, _ in ROWS} == set(ORDER)
    for name in OPTIONS:
        load(name)
