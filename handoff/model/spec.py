"""Shape of the reference model: sizes, and one entry per layer derived from an engine's layout.

The model is small and its weights are seeded noise: it exists to be executed, so that a wrong
handoff changes numbers. Costs of real models are the ledger's (``presets``).
"""

from __future__ import annotations

from dataclasses import dataclass

from handoff.errors import Unsupported
from handoff.types import Group, Layout

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


def reference_spec(layout: Layout, depth: int = 4, **sizes: int) -> ModelSpec:
    """The reference model of an engine: its layer pattern, in the sizes given.

    The pattern is repeated stage by stage until it has ``depth`` layers: in a single layer keys
    depend on their token and position alone, and a wrong context could not be seen.
    ``Unsupported`` for compressed KV (``ratio`` other than 1), which is planned and counted only.
    """
    for layer in layout.layers:
        group = layout.group(layer.group)
        if group.ratio != 1:
            raise Unsupported(
                f"group {group.name} keeps one slot for {group.ratio} positions: compressed KV is"
                " planned and counted, not executed"
            )
    times = -(-depth // max(1, len(layout.layers)))
    return ModelSpec(tuple(_repeated(layout, times)), **sizes)


def _repeated(layout: Layout, times: int) -> list[LayerSpec]:
    """Each stage's layers ``times`` times; a reader follows its source's latest copy."""
    names = [group.name for group in layout.groups]
    found: list[LayerSpec] = []
    latest: dict[int, int] = {}
    for stage in range(layout.num_stages):
        for _ in range(times):
            for at, layer in enumerate(layout.layers):
                if layer.stage != stage:
                    continue
                group = layout.group(layer.group)
                latest[at] = len(found)
                found.append(
                    LayerSpec(
                        _kind(group),
                        names.index(group.name),
                        stage,
                        None if layer.reads is None else latest[layer.reads],
                        group.window,
                        group.local,
                    )
                )
    return found


def _kind(group: Group) -> str:
    if group.kind == "state":
        return "state"
    if group.window is not None:
        return "window"
    return "full" if group.local is None else "local"
