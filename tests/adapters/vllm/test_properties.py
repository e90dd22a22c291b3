"""Invariants after any sequence of submit, step, abort and reset; and equal calls, equal Steps."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.errors import HandoffError, Refused
from handoff.index.spans import VIRTUAL, Seq
from handoff.types import Image, Request

from .play import Play, words

FULL4 = {"type": "full", "block_size": 4}
SWA8 = {"type": "swa", "window": 8, "block_size": 4}
LOCAL8 = {"type": "local", "chunk": 8, "block_size": 4}
FULL8 = {"type": "full", "block_size": 8}
MAMBA8 = {"type": "mamba", "block_size": 8}
REPLAY8 = {"type": "swa_mla_replay", "window": 8, "block_size": 8}
EAGLE = {"method": "eagle", "k": 2, "drafts": "mixed"}

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"groups": [FULL4]},
    "async": {"groups": [FULL4], "scheduler": "async"},
    "nocache": {"groups": [FULL4], "caching": False},
    "priority": {"groups": [FULL4], "policy": "priority"},
    "noreserve": {"groups": [FULL4], "reserve_full_isl": False, "watermark": 0.1},
    "eagle": {"groups": [FULL4], "spec": EAGLE},
    "eagle_async": {"groups": [FULL4], "spec": EAGLE, "scheduler": "async"},
    "ngram": {"groups": [FULL4], "spec": {"method": "ngram", "k": 2, "drafts": "mixed"}},
    "mtp": {"groups": [FULL4], "spec": {"method": "mtp", "k": 3, "modules": 3}},
    "window": {"groups": [SWA8]},
    "window_async": {"groups": [SWA8], "scheduler": "async"},
    "rswa": {"groups": [{**SWA8, "type": "rswa"}]},
    "hybrid": {"groups": [FULL4, SWA8]},
    "hybrid_dense": {"groups": [FULL4, SWA8, SWA8], "retention": None},
    "hybrid_eagle": {"groups": [FULL4, SWA8], "retention": None, "spec": EAGLE},
    "mixed_blocks": {"groups": [FULL8, SWA8], "retention": 16},
    "local": {"groups": [FULL4, LOCAL8]},
    "mamba": {"groups": [FULL8, MAMBA8]},
    "mamba_fine": {"groups": [FULL8, MAMBA8], "prefix_match_unit": 2, "retention": None},
    "mamba_spec": {
        "groups": [{**FULL8, "eagle": True}, {**MAMBA8, "spec_blocks": 2}],
        "prefix_match_unit": 2,
        "spec": EAGLE,
        "mamba_shared_prefix_checkpoint": True,
    },
    "mamba_ckpt": {"groups": [FULL8, {**MAMBA8, "ckpt_blocks": 1}], "prefix_match_unit": 2},
    "mamba_async": {"groups": [FULL8, MAMBA8], "retention": None, "scheduler": "async"},
    "mamba_ngram": {
        "groups": [FULL8, {**MAMBA8, "spec_blocks": 2}],
        "prefix_match_unit": 2,
        "spec": {"method": "ngram", "k": 2, "drafts": "mixed"},
    },
    "draft_model": {"groups": [FULL4], "spec": {"method": "draft_model", "k": 2}},
    "replay": {"groups": [FULL8, REPLAY8]},
    "connector": {"groups": [FULL4], "connector": "sync"},
    "connector_async": {"groups": [FULL4, SWA8], "connector": "async"},
    "dcp": {"groups": [FULL4], "dcp": 2},
}

PIECE = st.tuples(st.integers(1, 3), st.integers(1, 30))
OP = st.one_of(
    st.tuples(st.just("submit"), st.lists(PIECE, min_size=1, max_size=3), st.integers(1, 12)),
    st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.just("abort"), st.integers(0, 5)),
    st.tuples(st.just("reset"), st.booleans()),
)


def perform(config: dict[str, Any], ops: list[tuple[Any, ...]], pool: int, budget: int) -> Play:
    """Run the ops, then everything to its end; the invariants are checked after each op."""
    play = Play(acceptance=0.5, num_blocks=pool, budget=budget, max_model_len=256, **config)
    live: list[str] = []
    for op in ops:
        if op[0] == "submit":
            prompt = [token for stream, count in op[1] for token in words(stream, count)]
            more = {"external_tokens": len(prompt) // 2} if "connector" in config else {}
            try:
                live.append(play.submit(prompt, op[2], priority=len(prompt) % 3, options=more))
            except Refused:
                continue
        elif op[0] == "turn":
            for _ in range(op[1]):
                play.turn()
        elif op[0] == "abort" and live:
            play.engine.abort(live[op[1] % len(live)], 0.0)
        elif op[0] == "reset":
            # outputs in flight that a forced reset drops are lost on this environment
            with suppress(HandoffError):
                play.engine.reset(running=op[1] and not play.flying)
        play.check()
    play.finish()
    play.check()
    return play


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=12)
@given(
    ops=st.lists(OP, min_size=1, max_size=12),
    pool=st.integers(24, 60),
    budget=st.sampled_from([16, 64]),
)
def test_pool_and_scheduler_invariants(
    name: str, ops: list[tuple[Any, ...]], pool: int, budget: int
) -> None:
    play = perform(CONFIGS[name], ops, pool, budget)
    assert not play.engine.requests, "somebody was never served"
    assert len(play.queue) == pool - 1, "a block leaked"
    for step in play.steps:
        for answer in step.handoffs:
            assert answer.hit_tokens <= answer.known_tokens - 1
            assert answer.hit_tokens % answer.unit == 0 or answer.external_tokens
            assert answer.start < answer.known_tokens
    again = perform(CONFIGS[name], ops, pool, budget)
    assert again.steps == play.steps, "planning is not deterministic"


PROMPT = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(1, 14)), min_size=1, max_size=4
)


@given(prompts=st.lists(PROMPT, min_size=1, max_size=8), block=st.sampled_from([1, 2, 4]))
def test_keys_are_equal_exactly_for_equal_prefixes(prompts: list[Any], block: int) -> None:
    """Spans of virtual numbers and real ids mixed, against tuples of tokens."""
    from handoff.adapters.vllm.keys import KeyTree, prefix_length

    tree = KeyTree(block)
    named: dict[int, tuple[int, ...]] = {}
    keys: dict[tuple[int, ...], int] = {}
    for number, pieces in enumerate(prompts):
        seq = Seq()
        for stream, first, count in pieces:
            if stream == 0:
                seq.add_run(VIRTUAL + first, count)
            else:
                for token in words(stream, count, first):
                    seq.append(token)
        found = tree.keys(Request(f"r{number}", seq, 1))
        whole = len(seq) // block
        listed = [key for run in found.runs(0, block, 0, whole) for key in run]
        assert listed == [found.key((i + 1) * block) for i in range(whole)]
        for index, key in enumerate(listed):
            prefix = tuple(seq.tokens(0, (index + 1) * block))
            assert prefix_length(key) == len(prefix)
            assert named.setdefault(key, prefix) == prefix
            assert keys.setdefault(prefix, key) == key


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), max_size=3),
)
def test_planning_keys_and_real_hashes_agree(first: list[Any], second: list[Any]) -> None:
    """Two prompts with multimodal items share a key exactly where they share a block hash."""
    from handoff.adapters.vllm.hashes import block_hashes
    from handoff.adapters.vllm.keys import KeyTree

    tree, tokens = KeyTree(4), words(1, 24)
    chains = []
    for items in (first, second):
        images = tuple(Image(f"i{name}", start, length) for name, start, length in items)
        keys = tree.keys(Request("r", Seq.of(tokens), 1, images=images))
        hashes = list(block_hashes(tokens, 4, images=images))
        chains.append([(keys.key(4 * (i + 1)), h) for i, h in enumerate(hashes)])
    for (key, value), (other_key, other_value) in zip(*chains):
        assert (key == other_key) == (value == other_value)
