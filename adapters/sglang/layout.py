"""Pools, groups and layers of each kind of model (rules 5, 7, 8, 10)."""

from __future__ import annotations

from handoff.types import Group, Layer, Layout, Pool

from .options import Options

__all__ = ["FULL", "HOST", "HOST_SWA", "RING", "STATE", "SWA", "build_layout"]

FULL, SWA, RING, STATE = "full", "swa", "ring", "state"
"""Names of the cache groups and of their pools."""
HOST, HOST_SWA = "host", "host_swa"
"""Names of the host pools."""


def build_layout(options: Options) -> Layout:
    """The layout of an engine; block 0 of every device pool is padding (rule 5)."""
    page, window = options.page_size, options.sliding_window_size
    full_blocks = options.max_total_tokens // page + 1
    if options.attention == "pure_swa":
        return Layout(
            (Pool(SWA, full_blocks),),
            (Group(SWA, SWA, page, window=window),),
            (Layer(SWA), Layer(SWA)),
        )
    pools = [Pool(FULL, full_blocks)]
    groups = [Group(FULL, FULL, page)]
    layers = [Layer(FULL), Layer(FULL)]
    if options.attention == "swa":
        pools.append(Pool(SWA, options.swa_tokens // page + 1))
        groups.append(Group(SWA, SWA, page, window=window))
        layers = [Layer(SWA), Layer(FULL)]
    elif options.ring_rows:
        pools.append(Pool(RING, options.running_limit + 1))
        rows = options.ring_rows
        groups.append(Group(RING, RING, rows, window=window, ring=True, columns=1))
        layers = [Layer(RING), Layer(FULL)]
    elif options.attention == "mamba":
        pools.append(Pool(STATE, options.max_mamba_cache_size + 1))
        groups.append(Group(STATE, STATE, kind="state"))
        layers = [Layer(STATE), Layer(FULL)]
    if options.enable_hierarchical_cache:
        blocks = options.host_tokens // page + 1
        pools.append(Pool(HOST, blocks, "host"))
        if options.attention == "swa":
            pools.append(Pool(HOST_SWA, options.host_swa_tokens // page + 1, "host"))
    return Layout(tuple(pools), tuple(groups), tuple(layers))
