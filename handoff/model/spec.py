"""Shape of the reference model: sizes, and one entry per layer derived from an engine's layout.

The model is small and its weights are seeded noise: it exists to be executed, so that a wrong
handoff changes numbers. Costs of real models are the ledger's (``presets``).
"""

from __future__ import annotations

from dataclasses import dataclass

from handoff.errors import Unsupported
from handoff.types import Layout

__all__ = ["LayerSpec", "ModelSpec", "reference_spec"]


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: what mixes positions, where its KV lives, how deep a row must go to reach it.

    * ``kind``: ``full``, ``window``, ``local`` (chunked) attention, or ``state`` (gated linear
      recurrence); ``window`` and ``local`` in tokens.
    * ``group``: index into ``Layout.groups``; ``stage`` as in ``Layer``.
    * ``reads``: index of the earlier layer whose KV this one reads; ``None``: it makes its own.
    """

    kind: str
    group: int
    stage: int = 0
    reads: int | None = None
    window: int | None = None
    local: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes of a model with RMSNorm, RoPE, grouped-query attention and SwiGLU.

    Weights per layer: attention ``hidden x (heads + 2 kv_heads) head_dim`` and
    ``heads head_dim x hidden`` (no K and V maps where ``reads`` is given); a ``state`` layer has
    three maps in and one out of width ``heads head_dim``; feed-forward three maps
    ``hidden x intermediate``. ``vocab`` is the number of logits; any content id can be embedded.
    """

    layers: tuple[LayerSpec, ...]
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 128
    vocab: int = 256
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    lora_rank: int = 4

    @property
    def state_width(self) -> int:
        """Numbers in one recurrent state of one layer."""
        return self.heads * self.head_dim

    def made_in(self, layer: LayerSpec) -> int:
        """The stage that makes the KV which the layer reads."""
        return layer.stage if layer.reads is None else self.layers[layer.reads].stage

    def owners(self, group: int) -> list[int]:
        """Layers that make the KV (or states) of a group."""
        return [
            at for at, each in enumerate(self.layers) if each.group == group and each.reads is None
        ]


def reference_spec(layout: Layout, **sizes: int) -> ModelSpec:
    """The reference model of an engine: its layer pattern, in the sizes given.

    ``Unsupported`` for compressed KV (``ratio`` other than 1), which is planned and counted only.
    """
    groups = {group.name: at for at, group in enumerate(layout.groups)}
    layers = []
    for layer in layout.layers:
        group = layout.group(layer.group)
        if group.ratio != 1:
            raise Unsupported(
                f"group {group.name} keeps one slot for {group.ratio} positions: compressed KV is"
                " planned and counted, not executed"
            )
        kind = "full"
        if group.kind == "state":
            kind = "state"
        elif group.window is not None:
            kind = "window"
        elif group.local is not None:
            kind = "local"
        layers.append(
            LayerSpec(
                kind, groups[layer.group], layer.stage, layer.reads, group.window, group.local
            )
        )
    return ModelSpec(tuple(layers), **sizes)
