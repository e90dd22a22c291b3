"""Tiles and split plans, and on a device the Triton kernels themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handoff import kernels
from handoff.kernels import oracle
from handoff.kernels.tiles import FLOAT32, TILES, choose_tile, split_tokens

from .cases import TOLERANCE, Shape, batch, doubles

SHAPES = [
    Shape(((37, 9), (0, 21), (64, 1))),
    Shape(((50, 20), (3, 7)), page=1, kv_heads=1, group=8, window=17),
    Shape(((50, 20), (3, 7)), page=64, dim=128, group=1, visible=(33, 0)),
    Shape(((5000, 3),), dim=128, kv_heads=1),
]


def test_tiles_are_chosen_by_rows_and_splits_by_occupancy() -> None:
    assert choose_tile(128, 4, half=True) == TILES[90][128][0]
    assert choose_tile(80, 17, half=True) == TILES[90][128][1]
    assert choose_tile(64, 9999, half=True, arch=86) == TILES[80][64][-1]
    assert choose_tile(64, 9999, half=False) == FLOAT32[128][0]
    for half in (True, False):
        with pytest.raises(KeyError):
            choose_tile(512, 1, half=half)
    tile = TILES[90][128][0]
    assert split_tokens(264, 32_768, tile, 132, exact=False) >= 32_768  # the device is full
    assert split_tokens(8, 1000, tile, 132, exact=False) == 1024  # too few keys to cut
    assert split_tokens(8, 32_768, tile, 132, exact=False) == 1024  # 33 splits of 8 programs
    assert split_tokens(8, 32_768, tile, 132, exact=True) == 512


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_attend_on_a_device(shape: Shape, dtype: torch.dtype) -> None:
    case = batch(shape, dtype, device="cuda")
    got = kernels.attend(case.q, case.k, case.v, case.segments, case.scale)
    want = oracle.attend(
        doubles(case.q), doubles(case.k), doubles(case.v), case.segments, case.scale
    )
    assert np.abs(doubles(got) - want).max() <= TOLERANCE[dtype]
