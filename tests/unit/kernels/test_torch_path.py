"""The torch path against the float64 oracle, drawn shapes and hand-made edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff import kernels
from handoff.kernels import Segments, oracle
from handoff.model.rope import frequencies, rotate
from tests.unit.kernels.cases import batch

torch.set_num_threads(1)

THETA = 10_000.0


@given(
    shapes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=4),
    block=st.sampled_from([1, 3, 4, 16]),
    heads=st.sampled_from([(1, 1), (4, 1), (4, 2), (8, 8)]),
    window=st.none() | st.integers(1, 20),
    visible=st.integers(0, 30),
    shuffled=st.booleans(),
)
@settings(max_examples=60)
def test_attend(
    shapes: list[tuple[int, int]],
    block: int,
    heads: tuple[int, int],
    window: int | None,
    visible: int,
    shuffled: bool,
) -> None:
    case = batch(
        shapes, block=block, heads=heads[0], kv_heads=heads[1], window=window, visible=visible,
        shuffled=shuffled,
    )  # fmt: skip
    expected = oracle.attend(case.q, case.k, case.v, case.segments, case.scale)
    for exact in (False, True):
        found = kernels.attend(*case.tensors(), case.segments, case.scale, exact=exact)
        np.testing.assert_allclose(found.numpy(), expected, atol=4e-6)


def test_attend_from_an_origin_and_rows_that_see_nothing() -> None:
    """The window lies in blocks 2 and 3 only: the table may start there."""
    case = batch([(12, 3)], window=5)
    whole = kernels.attend(*case.tensors(torch.float64), case.segments, case.scale)
    part = Segments(
        case.segments.q_start,
        case.segments.first,
        np.array([8]),
        np.array([0]),
        case.segments.table[:, 2:],
        5,
    )
    assert torch.equal(kernels.attend(*case.tensors(torch.float64), part, case.scale), whole)
    blind = Segments(part.q_start, part.first, np.array([12]), np.array([14]), part.table[:, 1:], 5)
    out = kernels.attend(*case.tensors(torch.float64), blind, case.scale)
    assert not out[:2].any() and out[2].all()


@given(
    length=st.integers(2, 90),
    cut=st.integers(1, 89),
    heads=st.sampled_from([(1, 1), (4, 2), (8, 1)]),
    window=st.none() | st.integers(1, 30),
    visible=st.integers(0, 40),
    beside=st.integers(1, 9),
)
@settings(max_examples=60)
def test_exact_rows_do_not_depend_on_how_the_prompt_was_cut(
    length: int, cut: int, heads: tuple[int, int], window: int | None, visible: int, beside: int
) -> None:
    """Bit by bit with ``exact``, in another batch and in other blocks; else to a rounding error."""
    cut = min(cut, length - 1)
    more = {"heads": heads[0], "kv_heads": heads[1], "window": window, "visible": visible}
    whole = batch([(0, length)], **more)  # type: ignore[arg-type]
    q, k, v = whole.tensors()
    shifted = torch.cat((torch.full_like(k[:1], torch.nan), k)), torch.cat((v[:1], v))
    beside = min(beside, length)
    part = Segments(
        np.array([0, length - cut, length - cut + beside]), np.array([cut, 0]), np.zeros(2, int),
        np.array([visible, 0]), np.repeat(whole.segments.table + 1, 2, 0), window,
    )  # fmt: skip
    rows = torch.cat((q[cut:], q[:beside]))
    for exact in (True, False):
        full = kernels.attend(q, k, v, whole.segments, whole.scale, exact=exact)
        cold = kernels.attend(rows, *shifted, part, whole.scale, exact=exact)[: length - cut]
        if exact:
            assert torch.equal(cold, full[cut:])
        torch.testing.assert_close(cold, full[cut:], rtol=0, atol=2e-6)


def test_pairs_are_the_visible_ones() -> None:
    """3 rows behind 4 keys: 5 + 6 + 7; window 3: 3 each; visible from 5: 0 + 1 + 2."""
    assert batch([(4, 3)]).segments.pairs == 18
    assert batch([(4, 3)], window=3).segments.pairs == 9
    assert batch([(4, 3)], visible=5).segments.pairs == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_write_skips_and_shift_turns_keys_only(dtype: torch.dtype) -> None:
    case = batch([(9, 3)], dim=8)
    _, k, v = case.tensors(dtype)
    new_k, new_v = (torch.randn(3, 2, 8, dtype=torch.float64) for _ in range(2))
    slots = np.array([5, -1, 2])
    kernels.write(k, v, new_k.to(dtype), new_v.to(dtype), slots)
    oracle.write(case.k, case.v, new_k.numpy(), new_v.numpy(), slots)
    runs = [(1, 2), (8, 3)]
    kernels.shift([k], runs, -5, frequencies(8, THETA))
    oracle.shift([case.k], runs, -5, THETA)
    atol = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 6e-2}[dtype]
    np.testing.assert_allclose(k.double().numpy(), case.k, atol=atol)
    np.testing.assert_allclose(v.double().numpy(), case.v, atol=atol)


def test_shift_equals_making_the_key_at_its_new_position() -> None:
    x = torch.randn(1, 2, 16, dtype=torch.float64)
    freqs = frequencies(16, THETA)
    pages = rotate(x, torch.tensor([100]), freqs)[None]
    kernels.shift([pages], [(0, 1)], -93, freqs)
    torch.testing.assert_close(pages[0], rotate(x, torch.tensor([7]), freqs))
    expected = oracle.rotate(x[0, 1].numpy(), 7, THETA)
    np.testing.assert_allclose(pages[0, 0, 1].numpy(), expected, atol=1e-12)


def test_copy_zero_and_gather_by_slots() -> None:
    case = batch([(12, 1)], dim=8)
    _, k, v = case.tensors(torch.float64)
    runs = [(2, 9, 3), (9, 1, 4)]  # across block edges; the second reads what the first wrote
    kernels.copy([k, v], [k, v], runs)
    oracle.copy([case.k, case.v], [case.k, case.v], runs)
    kernels.zero([k, v], [(6, 3)])
    oracle.zero([case.k, case.v], [(6, 3)])
    np.testing.assert_array_equal(k.numpy(), case.k)
    np.testing.assert_array_equal(v.numpy(), case.v)
    found = kernels.gather(k, np.array([9, 1]))
    torch.testing.assert_close(found, k.flatten(0, 1)[[9, 1]], equal_nan=True)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_scan(counts: list[int]) -> None:
    q_start = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    random = np.random.default_rng(len(counts))
    decay, gain = random.uniform(0, 1, (int(q_start[-1]), 6)), random.normal(size=(q_start[-1], 6))
    initial = random.normal(size=(len(counts), 6))
    tensors = [torch.from_numpy(each) for each in (decay, gain, initial)]
    found = kernels.scan(*tensors, q_start)
    np.testing.assert_allclose(found.numpy(), oracle.scan(decay, gain, initial, q_start))
