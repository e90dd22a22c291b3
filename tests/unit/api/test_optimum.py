"""The best possible eviction, against hand counts and against trying every way to keep blocks."""

from __future__ import annotations

import doctest
from functools import cache
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from handoff import optimum as module
from handoff.index.spans import Seq
from handoff.optimum import optimum
from handoff.types import Request


def request(*tokens: int, salt: str | None = None) -> Request:
    return Request("r", Seq.of(tokens), 0, salt=salt)


def hits(requests: list[Request], pool: int | None) -> int:
    return optimum(requests, [pool])[0].hit_tokens


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(module).failed == 0


def test_an_unlimited_pool_hits_all_but_the_last_token() -> None:
    assert hits([request(1, 2, 3), request(1, 2, 3), request(1, 2, 4)], None) == 4


def test_salts_and_loras_do_not_share() -> None:
    assert hits([request(1, 2, 3), request(1, 2, 3, salt="x")], None) == 0


def test_outputs_are_kept_except_the_last_one() -> None:
    first = Request("a", Seq.of([1, 2]), 3, Seq.of([3, 4, 5]))
    assert hits([first, request(1, 2, 3, 4, 5, 6)], None) == 4


def test_the_one_wanted_sooner_is_kept() -> None:
    a, b, c = request(1, 2, 3), request(4, 5, 6), request(7, 8, 9)
    assert hits([a, b, c, b, a], 2) == 2
    assert hits([a, b, c, b, a], 3) == 3
    assert hits([a, b, c, b, a], 4) == 4


def test_ratio_counts_all_prompt_tokens() -> None:
    found = optimum([request(1, 2, 3, 4), request(1, 2, 3, 4)], [None])[0]
    assert (found.hit_tokens, found.prompt_tokens, found.hit_ratio) == (3, 8, 0.375)
    assert optimum([], [5])[0].hit_ratio == 0


prompts = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=6)


@given(prompts, st.integers(0, 5))
def test_no_choice_of_kept_prefixes_hits_more(texts: list[list[int]], pool: int) -> None:
    """Exhaustive: after each request any set of known prefixes that fits may be kept."""

    @cache
    def best(at: int, kept: frozenset[tuple[int, ...]]) -> int:
        if at == len(texts):
            return 0
        text = tuple(texts[at])
        hit = 0
        while hit < len(text) - 1 and text[: hit + 1] in kept:
            hit += 1
        known = kept | {text[:n] for n in range(1, len(text) + 1)}
        useful = [p for p in known if any(tuple(t[: len(p)]) == p for t in texts[at + 1 :])]
        sets = combinations(useful, min(pool, len(useful)))
        return hit + max(best(at + 1, frozenset(chosen)) for chosen in sets)

    assert hits([request(*text) for text in texts], pool) == best(0, frozenset())


@given(prompts)
def test_a_larger_pool_never_hits_less(texts: list[list[int]]) -> None:
    found = optimum([request(*text) for text in texts], [0, 1, 2, 4, 8, None])
    counts = [each.hit_tokens for each in found]
    assert counts == sorted(counts) and counts[0] == 0
