"""Pools, groups and layer pattern of DeepInfer.

One block table a sequence serves the compressed KV of all ratios; one state id names a ring in each
half of the model (RULES 5, 6; worker/cache_engine.py). The pattern keeps what matters for a hit:
a producer half with window and KV, a consumer half that reads the same KV and has its own window.
Compression is counted in slots and FLOPs, the pattern itself stores one slot a position.
"""

from __future__ import annotations

from handoff.types import Group, Layer, Layout, Pool

from .options import Options

__all__ = ["BLOCKS", "CONSUMER", "PRODUCER", "make_layout"]

BLOCKS = "blocks"
PRODUCER = "producer_ring"
CONSUMER = "consumer_ring"


def make_layout(options: Options) -> Layout:
    """The layout that an engine with these options states."""
    model = options.shape
    pools = [Pool("blocks", options.num_blocks)]
    groups = [Group(BLOCKS, "blocks", options.block_size)]
    for name, pool in ((PRODUCER, "states"), (CONSUMER, "consumer_states"))[: options.num_rings]:
        pools.append(Pool(pool, options.num_states))
        groups.append(
            Group(
                name,
                pool,
                options.ring_size,
                window=model.window_size,
                ring=True,
                columns=1,
            )
        )
    layers = [Layer(PRODUCER)] if options.num_rings else []
    source = len(layers)
    layers.append(Layer(BLOCKS))
    if model.has_consumers:
        layers += [Layer(CONSUMER, stage=1)] if options.num_rings else []
        layers.append(Layer(BLOCKS, stage=1, reads=source))
    return Layout(tuple(pools), tuple(groups), tuple(layers))
