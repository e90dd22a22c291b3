"""Recurrent states by id: one id is one state in every state layer of its group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from handoff.model.spec import ModelSpec
from handoff.types import NULL, Layout

__all__ = ["StatePages"]


class StatePages:
    """States ``[ids, 1, width]`` for each state layer and pool, made when first used."""

    def __init__(
        self,
        layout: Layout,
        spec: ModelSpec,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.layout = layout
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self._pages: dict[tuple[int, str], torch.Tensor] = {}

    def of(self, layer: int, pool: str | None = None) -> torch.Tensor:
        """The layer's states in its own or another pool."""
        key = layer, pool or self.layout.groups[self.spec.layers[layer].group].pool
        found = self._pages.get(key)
        if found is None:
            shape = self.layout.pool(key[1]).blocks, 1, self.spec.state_width
            found = self._pages[key] = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return found

    def load(self, layer: int, ids: Sequence[int]) -> torch.Tensor:
        """States ``[len(ids), width]``; NULL is the zero state."""
        index = torch.tensor([max(each, 0) for each in ids], device=self.device)
        states = self.of(layer)[:, 0].index_select(0, index)
        states[torch.tensor([each == NULL for each in ids], device=self.device)] = 0
        return states

    def save(self, layer: int, ids: Sequence[int], states: torch.Tensor) -> None:
        """Store ``states [len(ids), width]`` under their ids."""
        if len(ids):
            self.of(layer)[torch.tensor(ids, device=self.device), 0] = states
