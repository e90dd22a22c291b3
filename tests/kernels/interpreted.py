"""Run in a process of its own under TRITON_INTERPRET=1: Triton kernels on CPU against the oracle.

The flag is read when kernels are decorated, so these checks cannot share a process with others.
Prints one line per group of checks; any failure is an AssertionError.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handoff.kernels import oracle, triton_path
from handoff.kernels.tiles import Tile
from tests.kernels.cases import TOLERANCE, Shape, batch, doubles

SMALL = Tile(32, 32, 4, 2)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_attend(
    shape: Shape, dtype: torch.dtype, *, exact: bool = False, tile: Tile = SMALL
) -> None:
    case = batch(shape, dtype, seed=len(shape.rows))
    got = triton_path.attend(
        case.q, case.k, case.v, case.segments, case.scale, exact=exact, tile=tile
    )
    want = oracle.attend(
        doubles(case.q), doubles(case.k), doubles(case.v), case.segments, case.scale
    )
    error = np.abs(doubles(got) - want).max(initial=0.0)
    assert error <= TOLERANCE[dtype], (shape, dtype, error)


def attention_grid() -> None:
    ragged = ((37, 9), (0, 21), (64, 1), (5, 30))
    for dtype, page, group in itertools.product(TYPES, (1, 16, 64), (1, 4, 8)):
        check_attend(
            Shape(ragged[: 2 if dtype is not torch.float32 else 4], page, 64, 1, group), dtype
        )
    for dtype in TYPES:
        check_attend(Shape(ragged, 16, 128, 2, 4), dtype)
        check_attend(Shape(((50, 20), (3, 7)), 16, 64, 2, 4, window=17), dtype)
        check_attend(Shape(((50, 20), (3, 7)), 16, 64, 2, 4, visible=(33, 0)), dtype)
    check_attend(Shape(((40, 12),), 16, 80, 1, 3, window=9, visible=(45,)), torch.float32)
    check_attend(Shape(((9, 4),), 16, 64, 1, 4, visible=(99,)), torch.float32)  # sees nothing
    check_attend(Shape(((0, 1),), 1, 64, 1, 1), torch.float32)
    check_attend(Shape(((5, 3),), 64, 64, 1, 16), torch.float32, tile=Tile(16, 16, 4, 2))
    print("attend: grid of types, pages, groups, windows, visible from")


def splits() -> None:
    for dtype in TYPES:
        shape = Shape(((600, 5), (530, 1), (20, 3)), 16, 64, 1, 4)
        check_attend(shape, dtype, exact=True, tile=Tile(32, 64, 4, 2))
    check_attend(
        Shape(((1100, 3),), 16, 64, 1, 4, window=700), torch.float32, exact=True,
        tile=Tile(16, 64, 4, 2),
    )  # fmt: skip
    print("attend: split over keys and combined")


def cutting_changes_nothing() -> None:
    """Rows of prefix + extend equal those of the whole prefill, bit for bit.

    Where a row stands in its tile must not matter, but numpy's matrix product, which stands in for
    the tensor core here, rounds a row by its place. Cuts on a tile edge are therefore compared bit
    for bit, others to a rounding error.
    """
    whole = batch(Shape(((0, 200),), 16, 64, 1, 2), torch.float32)
    full = triton_path.attend(
        whole.q, whole.k, whole.v, whole.segments, whole.scale, exact=True, tile=SMALL
    )
    for prefix in (64, 96, 100, 199):
        part = batch(Shape(((prefix, 200 - prefix),), 16, 64, 1, 2), torch.float32)
        got = triton_path.attend(
            whole.q[prefix:], whole.k, whole.v,
            type(whole.segments)(
                part.segments.q_start, part.segments.first, part.segments.origin,
                part.segments.visible, whole.segments.table,
            ),
            whole.scale, exact=True, tile=SMALL,
        )  # fmt: skip
        if prefix % (SMALL.rows // 2) == 0:
            assert torch.equal(got, full[prefix:]), prefix
        assert (got - full[prefix:]).abs().max() <= 1e-6, prefix
    print("attend: cutting a prompt changes no bit")


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 12)), min_size=1, max_size=3),
    st.sampled_from((1, 3, 8, 16)),
    st.sampled_from((1, 2, 5)),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(0, 60),
)
def drawn(
    rows: list[tuple[int, int]], page: int, group: int, window: int | None, visible: int
) -> None:
    shape = Shape(tuple(rows), page, 32, 1, group, window, (visible,) * len(rows))
    check_attend(shape, torch.float32)


def moving() -> None:
    rng = np.random.default_rng(1)
    for dtype in TYPES:
        pages = [torch.randn(6, 4, 2, 32).to(dtype) for _ in range(4)]
        want = [doubles(each) for each in pages]
        slots = np.array([3, -1, 0, 23, 7])
        k, v = torch.randn(5, 2, 32).to(dtype), torch.randn(5, 2, 32).to(dtype)
        triton_path.write(pages[0], pages[1], k, v, slots)
        oracle.write(want[0], want[1], doubles(k), doubles(v), slots)
        for _ in range(5):
            runs = [
                (int(a), int(b), int(n))
                for a, b, n in zip(
                    rng.integers(0, 16, 4), rng.integers(0, 16, 4), rng.integers(1, 9, 4)
                )
            ]
            triton_path.copy(pages, pages, runs)
            oracle.copy(want, want, runs)
        host = [torch.zeros(9, 4, 2, 32).to(dtype) for _ in pages]
        triton_path.copy(pages, host, [(2, 5, 17), (0, 30, 3)])
        for each, source in zip(host, want, strict=True):
            copied = np.zeros((9, 4, 2, 32))
            oracle.copy([source], [copied], [(2, 5, 17), (0, 30, 3)])
            assert np.array_equal(doubles(each), copied)
        triton_path.zero(pages, [(1, 3), (9, 2)])
        oracle.zero(want, [(1, 3), (9, 2)])
        for got, each in zip(pages, want, strict=True):
            assert np.array_equal(doubles(got), each)
        assert torch.equal(
            triton_path.gather(pages[2], np.array([5, 0, 23])),
            pages[2].flatten(0, 1)[[5, 0, 23]],
        )
        freqs = 10000.0 ** -(torch.arange(16, dtype=torch.float64) / 16)
        triton_path.shift(pages, [(0, 18), (20, 1)], -93, freqs)
        oracle.shift(want, [(0, 18), (20, 1)], -93, 10000.0)
        for got, each in zip(pages, want, strict=True):
            assert np.abs(doubles(got) - each).max() <= TOLERANCE[dtype] * 2
        decay, gain = torch.rand(9, 40).to(dtype), torch.randn(9, 40).to(dtype)
        initial = torch.randn(3, 40).to(dtype)
        starts = np.array([0, 4, 4, 9])
        got = triton_path.scan(decay, gain, initial, starts)
        exact = oracle.scan(doubles(decay), doubles(gain), doubles(initial), starts)
        assert np.abs(doubles(got) - exact).max() <= TOLERANCE[dtype] * 4
    print("write, copy, zero, gather, shift, scan: against the oracle")


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "1"
    attention_grid()
    splits()
    cutting_changes_nothing()
    drawn()
    print("attend: drawn shapes")
    moving()
