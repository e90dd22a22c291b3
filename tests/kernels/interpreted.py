"""Run in a process of its own: the Triton kernels against the oracle.

Under TRITON_INTERPRET=1 they run on the CPU, else on a CUDA device. The flag is read when kernels
are decorated, so these checks cannot share a process with others. Prints one line per group of
checks; any failure is an AssertionError.
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

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SMALL = Tile(32, 32, 4, 2)
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_attend(
    shape: Shape, dtype: torch.dtype, *, exact: bool = False, tile: Tile = SMALL
) -> None:
    case = batch(shape, dtype, seed=len(shape.rows), device=DEVICE)
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
    for dtype, page, group, dim in itertools.product(TYPES, (1, 16, 64), (1, 4, 8), (64, 128)):
        rows = ragged if (dtype, dim) == (torch.float32, 64) else ((20, 1), (0, 9))
        check_attend(Shape(rows, page, dim, 1, group), dtype)
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
        Shape(((540, 2), (0, 7)), 64, 128, 1, 8, visible=(515, 0)), torch.float32, exact=True,
        tile=Tile(32, 64, 4, 2),
    )  # fmt: skip
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
    whole = batch(Shape(((0, 200),), 16, 64, 1, 2), torch.float32, device=DEVICE)
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
    st.sampled_from((1, 3, 16, 64)),
    st.sampled_from((1, 4, 5, 8)),
    st.sampled_from((32, 64, 80, 128)),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(0, 60),
    st.sampled_from(TYPES),
)
def drawn(
    rows: list[tuple[int, int]],
    page: int,
    group: int,
    dim: int,
    window: int | None,
    visible: int,
    dtype: torch.dtype,
) -> None:
    check_attend(Shape(tuple(rows), page, dim, 1, group, window, (visible,) * len(rows)), dtype)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def moving() -> None:
    for dtype in TYPES:
        pages = [normal(6, 4, 2, 32, dtype=dtype) for _ in range(4)]
        want = [doubles(each) for each in pages]
        slots = np.array([3, -1, 0, 23, 7])
        k, v = normal(5, 2, 32, dtype=dtype), normal(5, 2, 32, dtype=dtype)
        triton_path.write(pages[0], pages[1], k, v, slots)
        oracle.write(want[0], want[1], doubles(k), doubles(v), slots)
        copied(pages, want)
        triton_path.zero(pages, [(1, 3), (9, 2)])
        oracle.zero(want, [(1, 3), (9, 2)])
        for got, each in zip(pages, want, strict=True):
            assert np.array_equal(doubles(got), each)
        found = triton_path.gather(pages[2], np.array([5, 0, 23]))
        assert torch.equal(found, pages[2].flatten(0, 1)[[5, 0, 23]])
        freqs = 10000.0 ** -(torch.arange(16, dtype=torch.float64) / 16)
        triton_path.shift(pages, [(0, 18), (20, 1)], -93, freqs)
        oracle.shift(want, [(0, 18), (20, 1)], -93, 10000.0)
        for got, each in zip(pages, want, strict=True):
            assert np.abs(doubles(got) - each).max() <= TOLERANCE[dtype]
    print("write, copy, zero, gather, shift: against the oracle")


def copied(pages: list[torch.Tensor], want: list[np.ndarray]) -> None:
    """Overlapping runs within one pool, a round to another, and both for recurrent states."""
    rng = np.random.default_rng(1)
    states = [normal(24, 1, 40, dtype=pages[0].dtype) for _ in range(2)]
    held = [doubles(each) for each in states]
    for _ in range(5):
        drawn_runs = zip(rng.integers(0, 16, 4), rng.integers(0, 16, 4), rng.integers(1, 9, 4))
        runs = [(int(a), int(b), int(n)) for a, b, n in drawn_runs]
        for tensors, expected in ((pages, want), (states, held)):
            triton_path.copy(tensors, tensors, runs)
            oracle.copy(expected, expected, runs)
    for tensors, expected in ((pages, want), (states, held)):
        host = [torch.zeros_like(each) for each in tensors]
        copies = [np.zeros_like(each) for each in expected]
        triton_path.copy(tensors, host, [(2, 5, 17), (0, 3, 2)])
        oracle.copy(expected, copies, [(2, 5, 17), (0, 3, 2)])
        for got, each in zip(host + tensors, copies + expected, strict=True):
            assert np.array_equal(doubles(got), each)


def scanning() -> None:
    starts = np.array([0, 4, 4, 9, 10])
    for dtype in TYPES:
        decay, gain = torch.rand(10, 140).to(DEVICE, dtype), normal(10, 140, dtype=dtype)
        initial = normal(4, 140, dtype=dtype)
        got = triton_path.scan(decay, gain, initial, starts)
        exact = oracle.scan(doubles(decay), doubles(gain), doubles(initial), starts)
        assert np.abs(doubles(got) - exact).max() <= TOLERANCE[dtype] * 2  # numbers up to 5
    print("scan: against the oracle, requests without rows and lanes beyond one program")


def exact_tiles() -> None:
    """With ``exact`` the tile does not depend on how many rows there are."""
    for dim in (64, 128, 256):
        tiles = {
            triton_path.plan(
                batch(Shape(((3, new),), 16, dim, 1, 4), torch.float16).segments, 4, dim, 1,
                torch.empty(0, dtype=torch.float16), exact=True,
            ).tile
            for new in (1, 9, 100)
        }  # fmt: skip
        assert len(tiles) == 1
    print("attend: one tile where exact")


if __name__ == "__main__":
    torch.manual_seed(0)
    attention_grid()
    splits()
    cutting_changes_nothing()
    drawn()
    print("attend: drawn shapes")
    exact_tiles()
    moving()
    scanning()
