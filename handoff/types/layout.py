"""Where KV lives: pools, groups and layers, stated once by an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["NULL", "Group", "Layer", "Layout", "Pool"]

NULL = -1
"""No block: a hole in a table, or the zero state. (0 is a real id in llama.cpp, TensorRT-LLM.)"""


@dataclass(frozen=True, slots=True)
class Pool:
    """A set of ``blocks`` ids ``0 .. blocks - 1`` of one tier.

    ``host`` pools hold offloaded KV: TensorRT-LLM secondary blocks, HiCache, llama.cpp RAM entries
    and checkpoints, DeepInfer's outside store. Ids that upstream never hands out (vLLM's null block
    0, SGLang's padding) count as blocks.
    """

    name: str
    blocks: int
    tier: Literal["device", "host"] = "device"


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table per sequence.

    An id of a pool belongs to one group at a time; only vLLM puts several groups on one pool.

    * ``kind``: ``kv``, or ``state`` (Mamba, linear attention, short convolution): one id is one
      state, its table only says who holds an id, rows name ids in ``Row.states``.
    * ``block_size``: positions per block (1 = cells; a ring: positions of one block of the ring).
    * ``window``: sliding window in tokens, the row at ``p`` sees ``p - window + 1 .. p``.
    * ``local``: chunk size of chunked-local attention.
    * ``ring``: the column of position ``p`` is ``(p // block_size) % columns``.
    * ``columns``: number of columns of a ring's table (0 otherwise).
    * ``ratio``: positions per slot; compressed KV is accounted for, the executor refuses all but 1.
    """

    name: str
    pool: str
    block_size: int = 1
    kind: Literal["kv", "state"] = "kv"
    window: int | None = None
    local: int | None = None
    ring: bool = False
    columns: int = 0
    ratio: int = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the pattern that is executed.

    ``stage`` never falls with depth (YoCo: producers 0, consumers 1). ``reads`` is the index of an
    earlier layer whose KV this layer reads instead of writing its own (its group is that layer's).
    """

    group: str
    stage: int = 0
    reads: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Pools, groups and layer pattern of an engine.

    A group may own no layer (an EAGLE draft layer): its table is planned, tagged and counted,
    nothing is computed. ``layers`` is a small pattern for the reference model; model presets bring
    their own layer counts to the ledger and map them to groups by kind and window.
    """

    pools: tuple[Pool, ...]
    groups: tuple[Group, ...]
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        pools = {pool.name for pool in self.pools}
        groups = {group.name: group for group in self.groups}
        assert len(groups) == len(self.groups), "group names must be unique"
        for group in self.groups:
            assert group.pool in pools, f"group {group.name} names no pool: {group.pool}"
            assert group.block_size >= 1 and group.ratio >= 1
            assert not group.ring or group.columns >= 1, f"ring {group.name} has no columns"
        stage = 0
        for index, layer in enumerate(self.layers):
            assert layer.group in groups, f"layer {index} names no group: {layer.group}"
            assert layer.stage >= stage, "stage never falls with depth"
            assert groups[layer.group].kind == "kv" or layer.stage == 0, "states live in stage 0"
            if layer.reads is not None:
                assert 0 <= layer.reads < index and self.layers[layer.reads].group == layer.group
            stage = layer.stage

    def group(self, name: str) -> Group:
        """The group of that name; ``KeyError`` if there is none."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(name)

    def pool(self, name: str) -> Pool:
        """The pool of that name; ``KeyError`` if there is none."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    @property
    def num_stages(self) -> int:
        """Number of stages of the layer pattern (at least 1)."""
        return self.layers[-1].stage + 1 if self.layers else 1
