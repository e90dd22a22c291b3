"""An EAGLE-like draft head on paged KV: why a hit gives back its last block (vLLM RULES 9).

The head predicts two tokens ahead. Its row at position p is made of the target's hidden state at p
*and the token at p + 1*; it keeps keys and values of its own under the target's block table. So the
head's KV of a block's last position depends on the next block's first token. A request that shares
the block and goes on differently finds the KV of somebody else's continuation there, and cannot
make its own: the hidden state at p was not computed again. Giving the last block of a hit back
computes it again. ``DraftCheck`` shows both.
"""

from __future__ import annotations

import numpy as np
import torch

from handoff import kernels
from handoff.index.spans import Seq
from handoff.kernels import Segments
from handoff.model.rope import rotate
from handoff.model.transformer import Transformer, feed_forward, normed
from handoff.model.weights import Weights, embed
from handoff.store.tables import Ints, Settled, expand
from handoff.types import Layout, Step, StepResult

from .cold import cold_run, relative_error
from .executor import Executor

__all__ = ["DraftCheck", "DraftHead"]


class DraftHead:
    """One fused layer behind a target model; seeded like it."""

    def __init__(self, target: Transformer, seed: int) -> None:
        spec = target.spec
        self.target = target
        self.weights = Weights(spec, seed, target.weights.dtype, target.weights.device)
        """A model's worth of weights, of which the first layer and the head are used."""

    def rows(self, hidden: torch.Tensor, following: Ints) -> torch.Tensor:
        """The head's inputs: hidden states at p joined with the tokens at p + 1."""
        return normed(hidden, self.target.spec.norm_eps) + embed(self.weights, following)

    def project(
        self, rows: torch.Tensor, positions: Ints
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries and keys, and values, ``[rows, heads, head_dim]``."""
        spec, layer = self.target.spec, self.weights.layers[0]
        assert layer.k is not None and layer.v is not None
        at = torch.from_numpy(positions).to(rows.device)
        rows = normed(rows, spec.norm_eps)
        q = (rows @ layer.q).view(-1, spec.heads, spec.head_dim)
        k = (rows @ layer.k).view(-1, spec.kv_heads, spec.head_dim)
        v = (rows @ layer.v).view(-1, spec.kv_heads, spec.head_dim)
        return rotate(q, at, self.target.freqs), rotate(k, at, self.target.freqs), v

    def logits(self, rows: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """What the head proposes, ``[rows, vocab]``."""
        layer, eps = self.weights.layers[0], self.target.spec.norm_eps
        rows = rows + mixed.flatten(1) @ layer.o
        rows = rows + feed_forward(rows, layer, eps)
        return normed(rows, eps) @ self.weights.head


class DraftCheck:
    """A sink that runs the draft head beside the target and compares with a cold head.

    The head's KV lives under the tables of the first KV group, which must be plain full attention.
    ``errors`` are the largest ``max|difference| / max|logit|`` of the proposals after each Step, by
    request.
    """

    def __init__(
        self, layout: Layout, *, seed: int = 0, dtype: torch.dtype = torch.float32
    ) -> None:
        self.executor = Executor(layout, seed=seed, dtype=dtype, poison=True)
        spec = self.executor.spec
        self.group = next(
            at
            for at, group in enumerate(layout.groups)
            if group.kind == "kv" and group.window is None and not group.ring
        )
        size = layout.groups[self.group].block_size
        blocks = layout.pool(layout.groups[self.group].pool).blocks
        shape = blocks, size, spec.kv_heads, spec.head_dim
        self.k, self.v = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
        self.head = DraftHead(self.executor.model, seed + 1)
        self.errors: dict[str, float] = {}

    def step(self, step: Step) -> None:
        """A Step was planned."""
        self.executor.step(step)

    @torch.inference_mode()
    def complete(self, result: StepResult) -> None:
        """The head runs when the tokens that follow are known, before the next Step."""
        plan = self.executor.last_plan
        if plan is not None and result.rows:
            starts = plan.stages[-1].q_start.tolist()
            for row, out, first in zip(self.executor.rows, result.rows, starts):
                text = row.of.content.slice(0, len(row.of.content))
                for token in out.tokens:
                    text.append(token)
                self._propose(row, text, first)
        self.executor.complete(result)

    def _propose(self, row: Settled, text: Seq, first: int) -> None:
        """Rows of accepted tokens whose follower is known: write the head's KV, then attend."""
        stop = min(row.stop, len(text) - 1)
        count = stop - row.start
        if count <= 0:
            return
        hidden = self.executor.hidden[first : first + count]
        rows = self.head.rows(hidden, expand(text, row.start + 1, stop + 1))
        q, k, v = self.head.project(rows, np.arange(row.start, stop))
        table = row.of.tables[self.group]
        kernels.write(self.k, self.v, k, v, table.slots(row.start, stop))
        segments = Segments(
            q_start=np.array([0, count]),
            first=np.array([row.start]),
            origin=np.zeros(1, np.int64),
            visible=np.zeros(1, np.int64),
            table=table.blocks(0, stop)[None],
        )
        scale = self.executor.model.scale
        found = self.head.logits(rows, kernels.attend(q, self.k, self.v, segments, scale))[-1]
        cold = self._cold(text, stop, row.of.lora)
        error = relative_error(found, cold)
        self.errors[row.of.request] = max(self.errors.get(row.of.request, 0.0), error)

    def _cold(self, text: Seq, stop: int, lora: str | None) -> torch.Tensor:
        """The last proposal of a head that saw the whole text."""
        cold = cold_run(self.executor.model, self.executor.layout, text.slice(0, stop), lora)
        rows = self.head.rows(cold.hidden, expand(text, 1, stop + 1))
        q, k, v = self.head.project(rows, np.arange(stop))
        whole = Segments(
            q_start=np.array([0, stop]),
            first=np.zeros(1, np.int64),
            origin=np.zeros(1, np.int64),
            visible=np.zeros(1, np.int64),
            table=np.zeros((1, 1), np.int64),
        )
        mixed = kernels.attend(q, k[None], v[None], whole, self.executor.model.scale)
        return self.head.logits(rows, mixed)[-1]
