"""The reference model over paged KV: a forward plan in, logits of the wanted rows out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from handoff import kernels
from handoff.kernels import Segments
from handoff.store.pages import KVPages

from .forward import ForwardPlan, KVPlan, StagePlan
from .rope import frequencies, rotate
from .spec import LayerSpec, ModelSpec
from .weights import LayerWeights, Weights, embed

__all__ = ["Transformer", "feed_forward", "normed"]


def normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm without weights: seeded maps follow, a gain would add nothing."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def feed_forward(x: torch.Tensor, weights: LayerWeights, eps: float) -> torch.Tensor:
    """SwiGLU on the normed rows; the caller adds it to ``x``."""
    rows = normed(x, eps)
    return (F.silu(rows @ weights.gate) * (rows @ weights.up)) @ weights.down


class Transformer:
    """Runs plans on pages; holds weights and nothing that changes. ``exact``: see ``attend``."""

    def __init__(
        self,
        spec: ModelSpec,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        exact: bool = False,
    ) -> None:
        self.spec = spec
        self.exact = exact
        self.weights = Weights(spec, seed, dtype, device)
        self.freqs = frequencies(spec.head_dim, spec.rope_theta, device)
        self.scale = spec.head_dim**-0.5

    def forward(self, plan: ForwardPlan, pages: KVPages) -> torch.Tensor:
        """Hidden rows of the last stage, ``[rows, hidden]``; K, V and states are stored."""
        x = embed(self.weights, plan.tokens)
        joined: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        entered = -1
        for at, layer in enumerate(self.spec.layers):
            while entered < layer.stage:
                entered += 1
                keep = plan.stages[entered].keep
                if keep is not None:
                    x = x.index_select(0, torch.from_numpy(keep).to(x.device))
            stage = plan.stages[layer.stage]
            rows = normed(x, self.spec.norm_eps)
            if layer.kind == "state":
                mixed = self._recur(at, layer, rows, plan, pages)
            else:
                mixed = self._attend(at, layer, rows, stage, pages, joined)
            x = x + mixed @ self.weights.layers[at].o
            x = x + feed_forward(x, self.weights.layers[at], self.spec.norm_eps)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[rows, vocab]`` of hidden rows."""
        return normed(hidden, self.spec.norm_eps) @ self.weights.head

    # -- maps -------------------------------------------------------------------------------

    def query(self, at: int, rows: torch.Tensor, stage: StagePlan) -> torch.Tensor:
        """Rotated queries ``[rows, heads, head_dim]``."""
        flat = rows @ self.weights.layers[at].q
        for name, begin, end in stage.loras:
            delta = self.weights.lora(name)[at]
            flat[begin:end] += rows[begin:end] @ delta.qa @ delta.qb
        q = flat.view(-1, self.spec.heads, self.spec.head_dim)
        return rotate(q, torch.from_numpy(stage.positions).to(q.device), self.freqs)

    def value(self, at: int, rows: torch.Tensor, stage: StagePlan) -> torch.Tensor:
        """Values (or recurrent inputs) ``[rows, width]``."""
        weight = self.weights.layers[at].v
        assert weight is not None
        flat = rows @ weight
        for name, begin, end in stage.loras:
            delta = self.weights.lora(name)[at]
            flat[begin:end] += rows[begin:end] @ delta.va @ delta.vb
        return flat

    def key_value(
        self, at: int, rows: torch.Tensor, stage: StagePlan
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys and values ``[rows, kv_heads, head_dim]``."""
        weight = self.weights.layers[at].k
        assert weight is not None
        shape = -1, self.spec.kv_heads, self.spec.head_dim
        positions = torch.from_numpy(stage.positions).to(rows.device)
        k = rotate((rows @ weight).view(shape), positions, self.freqs)
        return k, self.value(at, rows, stage).view(shape)

    # -- mixers -----------------------------------------------------------------------------

    def _attend(
        self,
        at: int,
        layer: LayerSpec,
        rows: torch.Tensor,
        stage: StagePlan,
        pages: KVPages,
        joined: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        plan = stage.kv[layer.group, self.spec.made_in(layer)]
        q = self.query(at, rows, stage)
        if layer.reads is None:
            k, v = self.key_value(at, rows, stage)
            self._join(at, k, v, plan, pages, joined)
            pages.store(at, k, v, plan.slots)
        keys, values = pages.of(at)
        if plan.paged is None:
            return self._mix(q, keys, values, plan.segments)
        out = torch.empty_like(q.flatten(1))
        paged = torch.from_numpy(plan.paged).to(q.device)
        out[paged] = self._mix(q[paged], keys, values, plan.segments)
        source = at if layer.reads is None else layer.reads
        for each in plan.staged:
            mine = slice(each.begin, each.end)
            out[mine] = self._mix(q[mine], *joined[source, each.row], each.segments)
        return out

    def _mix(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, segments: Segments
    ) -> torch.Tensor:
        return kernels.attend(q, keys, values, segments, self.scale, exact=self.exact).flatten(1)

    @staticmethod
    def _join(
        at: int,
        k: torch.Tensor,
        v: torch.Tensor,
        plan: KVPlan,
        pages: KVPages,
        joined: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Read what long rows still see in a ring before it is overwritten; one block per row."""
        keys, values = pages.of(at)
        for each in plan.staged:
            own = slice(each.begin + each.own, each.end)
            joined[at, each.row] = (
                torch.cat((kernels.gather(keys, each.slots), k[own]))[None],
                torch.cat((kernels.gather(values, each.slots), v[own]))[None],
            )

    def decay(self, at: int, rows: torch.Tensor) -> torch.Tensor:
        """Decay of the recurrence, in (0, 1): slow enough to reach back some hundred tokens."""
        weight = self.weights.layers[at].k
        assert weight is not None
        return torch.sigmoid(rows @ weight + 3.0)

    def _recur(
        self, at: int, layer: LayerSpec, rows: torch.Tensor, plan: ForwardPlan, pages: KVPages
    ) -> torch.Tensor:
        stage, states = plan.stages[0], plan.states[layer.group]
        decay = self.decay(at, rows)
        gain = (1 - decay) * self.value(at, rows, stage)
        initial = pages.states.load(at, states.loads)
        hidden = kernels.scan(decay, gain, initial, stage.q_start)
        pages.states.save(at, states.save_ids, hidden[list(states.save_rows)])
        return hidden * self.output_gate(at, rows, stage)

    def output_gate(self, at: int, rows: torch.Tensor, stage: StagePlan) -> torch.Tensor:
        """Gate on what the recurrence gives out."""
        flat = rows @ self.weights.layers[at].q
        for name, begin, end in stage.loras:
            delta = self.weights.lora(name)[at]
            flat[begin:end] += rows[begin:end] @ delta.qa @ delta.qb
        return F.silu(flat)
