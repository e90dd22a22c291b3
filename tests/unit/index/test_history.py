from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.index.history import History
from handoff.index.order import LinkedQueue
from handoff.index.spans import Seq

TOKENS = st.lists(st.integers(0, 2), max_size=9)


def test_longest_prefix_ever_added() -> None:
    history = History()
    history.add(Seq([1, 2, 3, 4]), 4)
    assert history.longest(Seq([1, 2, 9]), 3) == 2
    assert history.add(Seq([1, 2, 9, 9]), 4) == 2
    assert history.longest(Seq([1, 2, 3, 4, 5]), 5) == 4
    assert history.longest(Seq([1, 2, 9, 9]), 3) == 3


def test_names_survive_splits() -> None:
    history = History()
    first = Seq([1, 2, 3, 4])
    history.add(first, 4)
    before = history.name(first, 2), history.name(first, 4)
    history.add(Seq([1, 2, 7]), 3)
    assert (history.name(first, 2), history.name(first, 4)) == before
    with pytest.raises(KeyError):
        history.name(Seq([1, 2, 8]), 3)


@given(st.lists(TOKENS, max_size=8), TOKENS)
def test_longest_equals_the_naive_search(added: list[list[int]], asked: list[int]) -> None:
    history = History()
    for tokens in added:
        history.add(Seq(tokens), len(tokens))
    naive = max(
        (
            n
            for tokens in added
            for n in range(len(tokens) + 1)
            if tokens[:n] == asked[:n] and n <= len(asked)
        ),
        default=0,
    )
    assert history.longest(Seq(asked), len(asked)) == naive


def test_a_growing_sequence_stays_one_node() -> None:
    history, seq = History(), Seq([5])
    history.add(seq, 1)
    for token in range(3000):
        seq.append(token)
        assert history.add(seq, len(seq)) == len(seq) - 1
    other = seq.slice(0, 2000)
    other.append(9)
    assert history.add(other, 2001) == 2000
    assert history.name(seq, 1500) == history.name(other, 1500)
    seq.append(1)
    assert history.add(seq, len(seq)) == len(seq) - 1
    assert history.longest(seq, len(seq)) == len(seq)


@given(st.lists(TOKENS, max_size=8))
def test_equal_prefixes_have_equal_names(added: list[list[int]]) -> None:
    history = History()
    for tokens in added:
        history.add(Seq(tokens), len(tokens))
    names: dict[tuple[int, int], tuple[int, ...]] = {}
    for tokens in added:
        for n in range(1, len(tokens) + 1):
            name = history.name(Seq(tokens), n)
            assert names.setdefault(name, tuple(tokens[:n])) == tuple(tokens[:n])


@given(st.lists(st.tuples(st.sampled_from("bfrp"), st.integers(0, 5)), max_size=40))
def test_linked_queue_is_a_list_without_doubles(moves: list[tuple[str, int]]) -> None:
    queue, model = LinkedQueue(6), []
    for move, ident in moves:
        if move == "p":
            if model:
                assert queue.front() == model[0]
                queue.remove(model.pop(0))
        elif move == "r":
            if ident in model:
                queue.remove(ident)
                model.remove(ident)
        elif ident not in model:
            if move == "b":
                queue.push_back(ident)
                model.append(ident)
            else:
                queue.push_front(ident)
                model.insert(0, ident)
        assert list(queue) == model and len(queue) == len(model)
        assert (ident in queue) == (ident in model)
