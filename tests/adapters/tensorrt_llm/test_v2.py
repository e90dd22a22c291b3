"""V2 look-up facts (rule 12), on blocks of 4 tokens."""

from __future__ import annotations

import pytest
from handoff.adapters.tensorrt_llm.v2 import FULL, SWA, Cache, Settings, TreeV2, committable

TEXT = list(range(1, 17))


def committed(tree: TreeV2, tokens: list[int], stop: bool = True) -> Cache:
    cache = tree.create(tokens, None, None)
    tree.commit(cache, tokens[len(cache.tokens) :], stop)
    return cache


@pytest.mark.parametrize(("backoff", "hit"), [(0, 16), (1, 15), (4, 12), (5, 11), (16, 0)])
def test_rule_12_the_backoff_comes_off_every_match(backoff: int, hit: int) -> None:
    tree = TreeV2(Settings(4, reuse_match_backoff=backoff))
    committed(tree, TEXT)
    assert tree.match(TEXT).tokens == hit


def test_rule_12_scopes_differ_by_none_and_zero() -> None:
    scopes = [(None, None), (0, None), (None, 0), (0, 0)]
    assert len({TreeV2.root_key(*scope) for scope in scopes}) == 4


def test_rule_12_a_short_tail_is_findable_only_when_committing_stops() -> None:
    for stop, hit in ((False, 4), (True, 6)):
        tree = TreeV2(Settings(4))
        committed(tree, TEXT[:6], stop)
        assert tree.match(TEXT[:6]).tokens == hit


def test_rule_12_a_useless_short_block_is_refused_and_a_covering_one_replaces() -> None:
    tree = TreeV2(Settings(4))
    root = tree.root(None, None)
    assert tree.insert(root, (1, 2), {FULL: 0}) is not None
    assert tree.insert(root, (1, 2, 3, 4), {FULL: 1}) is not None
    assert [block.tokens for block in root.children.values()] == [(1, 2, 3, 4)]
    assert tree.insert(root, (1, 2, 3), {FULL: 2}) is None


def test_rule_12_a_full_block_is_deduplicated_a_copied_one_is_not() -> None:
    tree = TreeV2(Settings(4))
    first = committed(tree, TEXT[:8])
    second = Cache((None, None), [], [])
    tree.commit(second, TEXT[:8], stop=True)
    assert second.pages == first.pages
    branch = tree.create(TEXT[:6], None, None)
    assert branch.pages[0] == first.pages[0] and branch.pages[1] != first.pages[1]


def test_rule_12_without_its_full_page_the_subtree_goes() -> None:
    tree = TreeV2(Settings(4))
    committed(tree, TEXT)
    (first,) = tree.root(None, None).children.values()
    tree.evict(first, FULL)
    assert tree.match(TEXT).tokens == 0


def test_rule_12_a_minimal_snapshot_serves_its_own_end_only() -> None:
    tree = TreeV2(Settings(4, window=8, commit_min_snapshot=True))
    committed(tree, TEXT)
    found = tree.match(TEXT)
    assert found.tokens == 16
    assert [SWA in block.pages for block, _ in found.blocks] == [False, False, True, True]
    assert tree.match(TEXT[:12]).tokens == 0


def test_rule_12_a_gap_inside_the_window_cuts_the_match() -> None:
    tree = TreeV2(Settings(4, window=8))
    committed(tree, TEXT)
    blocks = [block for block, _ in tree.match(TEXT).blocks]
    tree.evict(blocks[2], SWA)
    assert tree.match(TEXT).tokens == 8


def test_rule_12_the_deferral_key_contains_the_prefix() -> None:
    tree = TreeV2(Settings(4))
    same_block = [tree.first_new_key([*head, 9, 9, 9, 9]) for head in ([], [1, 2, 3, 4])]
    assert same_block[0] != same_block[1]
    committed(tree, TEXT[:8])
    assert tree.first_new_key(TEXT[:8]) is None, "the next block would not be full"


def test_rule_12_many_siblings_are_not_searched() -> None:
    tree = TreeV2(Settings(4))
    for number in range(32):
        committed(tree, [1, 100 + number, 0, 0])
    assert tree.match([1, 2, 3, 4]).tokens == 0


def test_rule_12_committing_stops_with_the_prompt() -> None:
    assert committable(TEXT, 4, 8, 0) == ([5, 6, 7, 8], 8, True)
    assert committable(TEXT, 4, 8, 3) == ([5, 6, 7, 8], 8, False)
