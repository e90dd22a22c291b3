"""Seeded weights: the same numbers for the same seed on every machine and device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from .spec import ModelSpec

__all__ = ["LayerWeights", "LoraWeights", "Weights", "embed"]

_TABLES, _ROWS = 3, 1021  # three hashes: 10**9 distinct embeddings from 3,063 rows


@dataclass(frozen=True)
class LayerWeights:
    """Maps of one layer, each ``[in, out]``; ``k`` and ``v`` are ``None`` in a reading layer.

    In a ``state`` layer ``q`` makes the output gate, ``k`` the decay, ``v`` the input.
    """

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    o: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class LoraWeights:
    """A low-rank delta on one layer's ``q`` and ``v`` maps: ``x @ a @ b``."""

    qa: torch.Tensor
    qb: torch.Tensor
    va: torch.Tensor
    vb: torch.Tensor


class Weights:
    """All weights of a reference model on one device."""

    def __init__(
        self, spec: ModelSpec, seed: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.spec = spec
        self.seed = seed
        self.dtype = dtype
        self.device = device
        self._loras: dict[str, list[LoraWeights]] = {}
        random = np.random.default_rng([seed, 0])
        self.tables = self._noise(random, _TABLES * _ROWS, spec.hidden, scale=1.0)
        self.head = self._noise(random, spec.hidden, spec.vocab)
        self.layers = [self._layer(random, at) for at in range(len(spec.layers))]

    def _noise(
        self, random: np.random.Generator, rows: int, columns: int, scale: float | None = None
    ) -> torch.Tensor:
        scale = rows**-0.5 if scale is None else scale
        values = random.standard_normal((rows, columns)) * scale
        return torch.from_numpy(values).to(self.dtype).to(self.device)

    def _layer(self, random: np.random.Generator, at: int) -> LayerWeights:
        spec, layer = self.spec, self.spec.layers[at]
        hidden, wide = spec.hidden, spec.heads * spec.head_dim
        narrow = wide if layer.kind == "state" else spec.kv_heads * spec.head_dim
        own = layer.reads is None
        # queries twice as large: attention that picks keys, so that one wrong key shows
        return LayerWeights(
            q=self._noise(random, hidden, wide, scale=2.0 * hidden**-0.5),
            k=self._noise(random, hidden, narrow) if own else None,
            v=self._noise(random, hidden, narrow) if own else None,
            o=self._noise(random, wide, hidden),
            gate=self._noise(random, hidden, spec.intermediate),
            up=self._noise(random, hidden, spec.intermediate),
            down=self._noise(random, spec.intermediate, hidden),
        )

    def lora(self, name: str) -> list[LoraWeights]:
        """The deltas of a LoRA, one per layer, seeded by its name."""
        if name not in self._loras:
            word = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
            random = np.random.default_rng([self.seed, 1, word])
            self._loras[name] = [self._lora(random, at) for at in range(len(self.spec.layers))]
        return self._loras[name]

    def _lora(self, random: np.random.Generator, at: int) -> LoraWeights:
        spec = self.spec
        weights = self.layers[at]
        narrow = weights.v.shape[1] if weights.v is not None else 1
        return LoraWeights(
            qa=self._noise(random, spec.hidden, spec.lora_rank),
            qb=self._noise(random, spec.lora_rank, weights.q.shape[1]),
            va=self._noise(random, spec.hidden, spec.lora_rank),
            vb=self._noise(random, spec.lora_rank, narrow),
        )


def embed(weights: Weights, tokens: np.ndarray) -> torch.Tensor:
    """Embeddings ``[tokens, hidden]`` of content ids; any 64-bit number has one."""
    total: torch.Tensor | None = None
    words = tokens.astype(np.uint64)
    for table, factor in enumerate((0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)):
        mixed = (words ^ (words >> np.uint64(29))) * np.uint64(factor)
        rows = (mixed >> np.uint64(33)) % np.uint64(_ROWS) + np.uint64(table * _ROWS)
        index = torch.from_numpy(rows.astype(np.int64)).to(weights.tables.device)
        part = weights.tables.index_select(0, index)
        total = part if total is None else total + part
    assert total is not None
    return total
