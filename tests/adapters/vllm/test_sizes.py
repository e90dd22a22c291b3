"""Sizes and switches: against upstream's own, and what upstream refuses at the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handoff.adapter import load, make_options
from handoff.errors import BadInput, Unsupported

from .play import FULL, FULL64, MAMBA64, SWA32, Play

CONFIGS = Path(__file__).parents[2] / "conformance" / "recordings" / "vllm" / "configs.json"
RECORDED: dict[str, Any] = json.loads(CONFIGS.read_text())["configs"]


@pytest.mark.parametrize("name", RECORDED)
def test_2_sizes_are_those_that_upstream_derived(name: str) -> None:
    config, derived = RECORDED[name], dict(RECORDED[name]["derived"])
    sizes = Play(**config).engine.sizes
    assert sizes.scheduler_block == derived["scheduler_block_size"]
    assert sizes.hash_block == derived["hash_block_size"]
    assert [group.block_size for group in sizes.groups] == derived["group_block_sizes"]
    assert sizes.fine_grained == derived["partial_hash_hits"]
    assert {sizes.alignment} == set(derived["hit_alignment"])
    assert [group.index for group in sizes.groups if group.eagle] == derived["eagle_groups"]
    assert sizes.lookahead == derived["lookahead"]
    assert sizes.prefill_lookahead == derived["prefill_lookahead"]
    assert sizes.uncertain == derived["reprefillable"]
    assert sizes.replay == derived["replay"]
    assert sizes.watermark_blocks == derived["watermark_blocks"]


LOCAL = {"type": "local", "chunk": 64, "block_size": 16}
EAGLE = {"method": "eagle", "k": 2}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"groups": [FULL, LOCAL], "spec": EAGLE}, "dropped for EAGLE"),
        ({"groups": [FULL64, LOCAL]}, "another block size"),
        ({"groups": [FULL], "retention": 64}, "without a window or Mamba group"),
        ({"groups": [FULL64, SWA32], "retention": 32}, "32 is no multiple of 64"),
        (
            {"groups": [{"type": "full", "block_size": 2}],
             "spec": {"method": "mtp", "k": 3, "modules": 3}},
            "scheduler block of 2",
        ),
        ({"budget": 1, "spec": {"method": "draft_model", "k": 2}}, "leaves no token"),
        ({"groups": [MAMBA64], "dcp": 2}, "Mamba groups with decode_context"),
        ({"groups": [FULL, SWA32], "dcp": 2}, "several cache groups with decode_context"),
        ({"groups": [FULL64, MAMBA64], "connector": "sync"}, "Mamba groups with a KV connector"),
        ({"groups": [{**SWA32, "type": "swa_mla_replay"}]}, "only cache groups are replayed"),
    ],
)  # fmt: skip
def test_what_upstream_refuses_or_is_left_out_does_not_start(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        Play(**config)


@pytest.mark.parametrize("option", ["structured_outputs", "pooling_params", "resumable"])
def test_requests_of_a_kind_that_is_left_out_are_unsupported(option: str) -> None:
    with pytest.raises(Unsupported, match=f"{option} is not modelled"):
        Play().submit([1, 2, 3], options={option: {}})


def test_mamba_modes_other_than_align_are_left_out_with_caching_on() -> None:
    adapter = load("vllm")
    values = {"groups": [MAMBA64], "mamba_cache_mode": "all"}
    with pytest.raises(Unsupported, match="mamba_cache_mode all"):
        adapter.engine(make_options(adapter, values))
    adapter.engine(make_options(adapter, {**values, "enable_prefix_caching": False}))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speculative_method": "eagle"}, "belong together"),
        ({"groups": [{"type": "swa"}]}, "needs a window"),
        ({"groups": [{"type": "local"}]}, "needs a chunk"),
        (
            {"groups": [FULL64, MAMBA64], "speculative_method": "ngram",
             "num_speculative_tokens": 2},
            "spec_blocks for each speculative token",
        ),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other_are_one_line(values: dict, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_options(load("vllm"), values)
