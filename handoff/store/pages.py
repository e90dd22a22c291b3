"""The tensors: real K and V of every layer, per pool, and recurrent states beside them.

``KVPages`` owns no order and no counts; operations and rows say which slots change. Layers of one
group share tables, never memory; groups that share a pool do not share memory here either.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from handoff import kernels
from handoff.model.spec import ModelSpec
from handoff.types import Layout

from .states import StatePages
from .tables import Ints

__all__ = ["KVPages"]


class KVPages:
    """K and V ``[blocks, block_size, kv_heads, head_dim]`` for each owning layer and pool.

    Pages are zero at creation and made when first used. With ``poison`` a fresh bind fills NaN, so
    that a read of what nobody wrote cannot go unnoticed.
    """

    def __init__(
        self,
        layout: Layout,
        spec: ModelSpec,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        poison: bool = False,
    ) -> None:
        self.layout = layout
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self.poison = poison
        self.states = StatePages(layout, spec, dtype, device)
        self._pages: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, layer: int, pool: str | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V pages of the layer (of the layer it reads) in its own or another pool."""
        reads = self.spec.layers[layer].reads
        layer = layer if reads is None else reads
        group = self.layout.groups[self.spec.layers[layer].group]
        key = layer, pool or group.pool
        found = self._pages.get(key)
        if found is None:
            shape = (
                self.layout.pool(key[1]).blocks,
                group.block_size,
                self.spec.kv_heads,
                self.spec.head_dim,
            )
            found = self._pages[key] = (
                torch.zeros(shape, dtype=self.dtype, device=self.device),
                torch.zeros(shape, dtype=self.dtype, device=self.device),
            )
        return found

    def _all(self, group: int, pool: str | None = None) -> list[torch.Tensor]:
        """K and V of every owning layer of a group, or its states."""
        if self.layout.groups[group].kind == "state":
            return [self.states.of(layer, pool) for layer in self.spec.owners(group)]
        return [pages for layer in self.spec.owners(group) for pages in self.of(layer, pool)]

    def void(self, pool: str, ids: Sequence[int]) -> None:
        """A fresh bind: what the ids held in any group of the pool is gone."""
        if not self.poison:
            return
        index = torch.tensor(ids, device=self.device)
        for at, group in enumerate(self.layout.groups):
            if group.pool == pool:
                for pages in self._all(at):
                    pages[index] = torch.nan

    def copy(
        self, group: int, src_pool: str, dst_pool: str, runs: Sequence[tuple[int, int, int]]
    ) -> None:
        """Runs ``(source slot, destination slot, slots)`` in all layers of the group."""
        if self.spec.owners(group):
            kernels.copy(self._all(group, src_pool), self._all(group, dst_pool), runs)

    def shift(
        self, group: int, runs: Sequence[tuple[int, int]], delta: int, freqs: torch.Tensor
    ) -> None:
        """Rotate the keys of runs ``(first slot, slots)``; values and states stay."""
        owners = self.spec.owners(group)
        if owners and self.layout.groups[group].kind == "kv":
            kernels.shift([self.of(layer)[0] for layer in owners], runs, delta, freqs)

    def zero(self, group: int, runs: Sequence[tuple[int, int]]) -> None:
        """Runs ``(first slot, slots)`` read as zeros."""
        if self.spec.owners(group):
            kernels.zero(self._all(group), runs)

    def store(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: Ints) -> None:
        """Write row t's key and value of an owning layer at ``slots[t]``; -1 is skipped."""
        if len(slots) and (slots >= 0).any():
            kernels.write(*self.of(layer), k, v, np.asarray(slots))
