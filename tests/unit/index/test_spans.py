from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.index.spans import VIRTUAL, Seq, common

# A piece: some real ids, or a short virtual run; small alphabets make equal stretches likely.
PIECE = st.one_of(
    st.lists(st.integers(1, 3), min_size=1, max_size=40),
    st.tuples(st.integers(0, 4), st.integers(1, 9)).map(
        lambda run: list(range(VIRTUAL + run[0], VIRTUAL + run[0] + run[1]))
    ),
)
TOKENS = st.lists(PIECE, max_size=6).map(lambda pieces: [t for piece in pieces for t in piece])


def test_pieces_are_in_normal_form() -> None:
    seq = Seq.virtual(VIRTUAL, 3)
    seq.add_run(VIRTUAL + 3, 2)
    assert seq.num_pieces == 1 and len(seq) == 5
    seq.append(7)
    seq.extend(Seq.of([8, 9]))
    assert seq.num_pieces == 2 and seq.tokens(4) == [VIRTUAL + 4, 7, 8, 9]
    with pytest.raises(IndexError):
        seq[8]


def test_a_prefix_is_not_disturbed_by_growth() -> None:
    seq = Seq([1, 2])
    key = seq.key(0, 2)
    seq.append(3)
    assert seq.key(0, 2) == key and seq.tokens(0, 2) == [1, 2]


@given(TOKENS, TOKENS, st.data())
def test_common_equals_the_naive_loop(a: list[int], b: list[int], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(a)))
    j = data.draw(st.integers(0, len(b)))
    limit = data.draw(st.integers(0, 200))
    naive = 0
    while naive < limit and a[i + naive : i + naive + 1] == b[j + naive : j + naive + 1] != []:
        naive += 1
    assert common(Seq(a), i, Seq(b), j, limit) == naive


@given(TOKENS, TOKENS, st.data())
def test_keys_are_equal_exactly_for_equal_tokens(
    a: list[int], b: list[int], data: st.DataObject
) -> None:
    length = min(len(a), len(b))
    if not length:
        return
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    same = Seq(a).key(start, stop) == Seq(b).key(start, stop)
    assert same == (a[start:stop] == b[start:stop])


@given(TOKENS, st.data())
def test_slices_and_growth_give_one_normal_form(tokens: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    whole = Seq(tokens)
    joined = whole.slice(0, cut)
    joined.extend(whole, cut)
    assert joined == whole and joined.tokens() == tokens
    assert [whole[at] for at in range(len(tokens))] == tokens
