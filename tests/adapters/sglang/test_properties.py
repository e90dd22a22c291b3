"""Invariants after any sequence of submit, step and abort; equal calls, equal Steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.adapter import load
from handoff.conformance.contract import check_adapter
from handoff.errors import Refused
from handoff.index.spans import Seq
from handoff.types import Request

from .play import Play, check, words

CONFIGS: dict[str, dict[str, Any]] = {
    "page1": {},
    "page4": {"page_size": 4, "chunked_prefill_size": 16},
    "overlap": {"page_size": 4, "disable_overlap_schedule": False},
    "mixed": {"chunked_prefill_size": 16, "enable_mixed_chunk": True},
    "lpm": {"schedule_policy": "lpm"},
    "dfs": {"schedule_policy": "dfs-weight", "page_size": 2},
    "hrrn": {"schedule_policy": "hrrn", "chunked_prefill_size": 16},
    "shortest": {"schedule_policy": "shortest-prefill-first"},
    "priority": {"enable_priority_scheduling": True, "max_running_requests": 2},
    "lfu": {"radix_eviction_policy": "lfu"},
    "tlru": {"radix_eviction_policy": "tlru", "tlru_threshold": 8},
    "mru": {"radix_eviction_policy": "mru", "page_size": 2},
    "eagle": {"speculative_algorithm": "EAGLE", "page_size": 2},
    "drafts": {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "page_size": 2},
    "swa": {"attention": "swa", "sliding_window_size": 8, "swa_eviction_interval": 1},
    "swa4": {
        "attention": "swa",
        "sliding_window_size": 8,
        "page_size": 4,
        "chunked_prefill_size": 16,
        "swa_eviction_interval": 2,
        "swa_full_tokens_ratio": 0.9,
    },
    "swa_replay": {
        "attention": "swa",
        "sliding_window_size": 8,
        "enable_decoder_swa_bounded_replay": True,
        "swa_eviction_interval": 2,
    },
    "swa_eagle": {
        "attention": "swa",
        "sliding_window_size": 8,
        "speculative_algorithm": "EAGLE",
        "page_size": 2,
        "swa_eviction_interval": 2,
    },
    "swa_drafts": {
        "attention": "swa",
        "sliding_window_size": 8,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "swa_eviction_interval": 2,
    },
    "ring": {
        "attention": "swa_ring",
        "sliding_window_size": 8,
        "enable_encoder_swa_bounded_replay": True,
        "page_size": 2,
        "chunked_prefill_size": 16,
    },
    "pure_swa": {"attention": "pure_swa", "sliding_window_size": 6, "swa_eviction_interval": 1},
    "mamba": {"attention": "mamba", "max_mamba_cache_size": 9, "chunked_prefill_size": 16},
    "off": {"disable_radix_cache": True},
    "through": {"enable_hierarchical_cache": True, "page_size": 2},
    "selective": {
        "enable_hierarchical_cache": True,
        "hicache_write_policy": "write_through_selective",
        "hicache_ratio": 0.6,
    },
    "back": {
        "enable_hierarchical_cache": True,
        "hicache_write_policy": "write_back",
        "hicache_ratio": 0.5,
    },
    "through_small": {"enable_hierarchical_cache": True, "hicache_ratio": 0.4},
    "host_windows": {
        "enable_hierarchical_cache": True,
        "attention": "swa",
        "sliding_window_size": 8,
        "page_size": 2,
        "swa_eviction_interval": 2,
    },
}

POOL = 128
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 3), st.integers(1, 40), st.integers(1, 12)),
        st.tuples(st.just("follow"), st.integers(0, 5), st.integers(0, 30), st.integers(1, 12)),
        st.tuples(st.just("tick"), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.integers(0, 8)),
    ),
    min_size=4,
    max_size=24,
)


def play_actions(options: dict[str, Any], actions: list[Any], *, checked: bool) -> Play:
    """Run a script; ``checked`` looks at the pools after every step."""
    play = Play(acceptance=0.5, max_total_tokens=POOL, **options)
    texts: list[list[int]] = []
    for action in actions:
        if action[0] == "tick":
            for _ in range(action[1]):
                play.tick()
                if checked:
                    check(play)
        elif action[0] == "abort":
            play.engine.abort(f"r{action[1]}", 0.0)
        else:
            _, which, length, outputs = action
            if action[0] == "submit":
                prompt = words(which, length)
            else:
                head = texts[which % len(texts)] if texts else []
                prompt = (head[: max(length, 1)] + words(40 + which, length // 3))[:60]
            if not prompt:
                continue
            says = words(500 + which, outputs)
            texts.append(prompt + says)
            try:
                play.submit(
                    prompt, says=says, priority=which * 12, salt="s" if which == 3 else None
                )
            except Refused:
                continue
    play.run()
    return play


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=12)
@given(actions=ACTIONS)
def test_every_block_has_one_owner_and_every_lock_a_holder(name: str, actions: list[Any]) -> None:
    play = play_actions(CONFIGS[name], actions, checked=True)
    assert not play.engine.busy
    if play.cache.host is not None:
        play.cache.host.acknowledge()
    check(play)
    assert play.tree.protected == 0, "an idle server holds nothing"


@pytest.mark.parametrize("name", ["page1", "overlap", "swa4", "mamba", "back", "drafts"])
@settings(max_examples=5)
@given(actions=ACTIONS)
def test_equal_calls_give_equal_steps(name: str, actions: list[Any]) -> None:
    first = play_actions(CONFIGS[name], actions, checked=False)
    second = play_actions(CONFIGS[name], actions, checked=False)
    assert [repr(step) for step in first.steps] == [repr(step) for step in second.steps]


def test_a_retraction_under_overlap_costs_no_output() -> None:
    """The output that is in flight when a request goes back is dropped and generated again."""
    values = {"attention": "swa", "sliding_window_size": 32, "disable_radix_cache": True}
    check_adapter(load("sglang"), values=values, seeds=[5], pool_tokens=300)


@pytest.mark.parametrize("name", ["page1", "page4", "eagle", "swa4", "mamba", "through"])
@settings(max_examples=15)
@given(actions=ACTIONS, pick=st.integers(0, 50), at=st.integers(1, 50))
def test_a_split_changes_no_match(name: str, actions: list[Any], pick: int, at: int) -> None:
    play = play_actions(CONFIGS[name], actions, checked=False)
    page = play.cache.page
    requests = [Request(f"p{s}", Seq.of(words(s, 60)), 1) for s in range(4)]
    long = [node for node in play.tree.nodes() if node.length > page]
    before = [play.engine.probe(request) for request in requests]
    if long:
        node = long[pick % len(long)]
        play.tree.split(node, node.start + page * (1 + at % (node.length // page - 1)))
    assert [play.engine.probe(request) for request in requests] == before
    check(play)


@settings(max_examples=25)
@given(actions=ACTIONS, tokens=st.integers(1, POOL))
def test_nothing_locked_is_ever_evicted(actions: list[Any], tokens: int) -> None:
    play = Play(max_total_tokens=POOL)
    for action in actions:
        if action[0] == "submit":
            play.submit(words(action[1], action[2]), action[3])
        play.tick()
        locked = {id(node): node.blocks.tolist() for node in play.tree.nodes() if node.lock}
        evictable = play.tree.evictable
        play.cache.room.evict(tokens)
        left = {id(node): node.blocks.tolist() for node in play.tree.nodes() if node.lock}
        assert left == locked
        assert play.tree.evictable <= max(evictable - tokens, 0)
        check(play)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=12))
def test_a_probe_says_what_the_admission_grants(prompts: list[tuple[int, int]]) -> None:
    for options in ({}, {"page_size": 4}, {"speculative_algorithm": "EAGLE", "page_size": 2}):
        play = Play(max_total_tokens=256, **options)
        for stream, length in prompts:
            prompt = words(stream, length)
            expected = play.hit(prompt)
            assert play.serve(prompt, 2).hit_tokens == expected
