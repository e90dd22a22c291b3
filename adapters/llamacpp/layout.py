"""Pools, groups and layers of a server's memory, from its options alone."""

from __future__ import annotations

from handoff.types import Group, Layer, Layout, Pool

from .copies import CELL_BYTES
from .options import Options

__all__ = ["FULL", "STATE", "WINDOW", "host_name", "make_layout"]

FULL, WINDOW, STATE = "full", "window", "state"
_MOST_HOST = 1 << 18  # host ids of a group, unless the device has more than a quarter of that


def host_name(group: str) -> str:
    """The host pool of a group."""
    return f"{group}-host"


def make_layout(options: Options) -> Layout:
    """A device pool and a host pool per group, and a small pattern of layers."""
    sizes: dict[str, int] = {}
    if options.memory == "window":
        sizes[WINDOW] = options.window_cells * options.streams
    if options.memory != "recurrent":
        sizes[FULL] = options.total_cells
    if options.memory in ("recurrent", "hybrid"):
        sizes[STATE] = options.num_slots * (2 if options.num_drafts else 1)
    pools: list[Pool] = []
    groups: list[Group] = []
    for name, size in sizes.items():
        pools += [Pool(name, size), Pool(host_name(name), _host_ids(options, name, size), "host")]
        if name == STATE:
            groups.append(Group(name, name, kind="state"))
        else:
            groups.append(Group(name, name, window=options.n_swa if name == WINDOW else None))
    pattern = {
        "attention": (FULL, FULL),
        "window": (WINDOW, FULL),
        "recurrent": (STATE, STATE),
        "hybrid": (STATE, FULL),
    }[options.memory]
    return Layout(tuple(pools), tuple(groups), tuple(Layer(name) for name in pattern))


def _host_ids(options: Options, group: str, size: int) -> int:
    """An address for every byte of a group that could be kept in host memory.

    RAM entries within the byte limit (or the context, without one), all checkpoints of all slots,
    and room for slot files; bounded, because small models never fill 8 GiB.
    """
    per_id = {
        FULL: options.kv_bytes_per_token,
        WINDOW: options.swa_bytes_per_token,
        STATE: options.state_bytes,
    }[group]
    copies = 1 if group == FULL else 1 + options.ctx_checkpoints  # of a slot or an entry
    limit = options.ram_bytes
    kept = options.total_cells * copies if limit is None else limit // (per_id + CELL_BYTES)
    return min(kept, max(_MOST_HOST, 4 * size)) + (1 + copies) * size
