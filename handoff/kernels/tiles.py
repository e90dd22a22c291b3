"""Tile shapes and split plans of ``attend``: a table, chosen once a step, never per layer.

The entries start from ahead-of-time measurements for sm_90 (registers without spills, shared memory
within limits); a sweep on a device replaces them. ``@triton.autotune`` is not used: it asks for a
driver and makes results depend on timing.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TILES", "Tile", "choose_tile", "split_tokens"]


class Tile(NamedTuple):
    """``rows`` packed query rows (tokens x grouped heads) against ``keys`` keys at a time."""

    rows: int
    keys: int
    warps: int
    stages: int


_HOPPER = (Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 4, 3), Tile(128, 64, 8, 3))

TILES: dict[int, dict[int, tuple[Tile, ...]]] = {
    90: {
        64: _HOPPER,
        128: _HOPPER,
        256: (Tile(16, 32, 4, 2), Tile(32, 32, 4, 2), Tile(64, 32, 4, 2)),
    },
    80: {
        64: _HOPPER,
        128: (Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(64, 64, 8, 2), Tile(128, 32, 8, 2)),
        256: (Tile(16, 32, 4, 2), Tile(32, 32, 4, 2), Tile(64, 32, 8, 2)),
    },
}
"""Half-precision entries by architecture and padded head dimension, smallest rows first."""

FLOAT32: dict[int, tuple[Tile, ...]] = {128: (Tile(16, 32, 8, 2),), 256: (Tile(16, 16, 8, 2),)}
"""float32 uses IEEE dot products without tensor cores; small tiles keep it in registers."""

SPLIT = 512
"""Keys a split covers when ``exact``: a fixed number, so that cutting a prompt changes nothing."""


def choose_tile(head_dim: int, rows: int, *, half: bool, arch: int = 90) -> Tile:
    """The smallest tile that holds ``rows`` packed rows of one request, else the largest.

    ``head_dim`` is padded to the next entry; ``KeyError`` names one that is too large. ``arch`` is
    the compute capability (90 for 9.0); the newest entry that is not newer serves.
    """
    newest = max((each for each in TILES if each <= arch), default=min(TILES))
    known = TILES[newest] if half else FLOAT32
    for padded, tiles in known.items():
        if head_dim <= padded:
            return next((tile for tile in tiles if rows <= tile.rows), tiles[-1])
    raise KeyError(f"no tiles for head_dim {head_dim}")


def split_tokens(programs: int, keys: int, tile: Tile, processors: int, *, exact: bool) -> int:
    """Keys per split: all of them unless the grid leaves the device idle.

    Splitting starts when there are fewer than two programs a multiprocessor and more than 1,024
    keys; the size is a multiple of the tile so that key tiles stay on one absolute grid.
    """
    if exact:
        return -(-SPLIT // tile.keys) * tile.keys
    wanted = 2 * processors // max(1, programs)
    if wanted < 2 or keys <= 1024:
        return max(tile.keys, -(-keys // tile.keys) * tile.keys)
    per = max(256, -(-keys // wanted))
    return -(-per // tile.keys) * tile.keys
