"""Which recurrent states a row loads and saves (RULES 10; records: StateUse)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import FOLLOW, NULL, StateUse

from .sizes import GroupSpec, cdiv

if TYPE_CHECKING:
    from .allocate import KVCache
    from .scheduler import Scheduled

__all__ = ["state_uses"]


def state_uses(cache: KVCache, row: Scheduled) -> tuple[StateUse, ...]:
    """One use per Mamba group: the state at the row's start, and every state the row leaves."""
    return tuple(_use(cache, row, group) for group in cache.sizes.groups if group.type == "mamba")


def _use(cache: KVCache, row: Scheduled, group: GroupSpec) -> StateUse:
    state = row.state
    table = state.tables[group.index]
    stop = row.start + row.tokens
    column = cdiv(stop, group.block_size) - 1
    saved = state.saves.setdefault(group.name, {})
    if row.start == 0:
        load = NULL
    elif row.hit is not None:
        load = table[cdiv(row.start, group.block_size) - 1]
    else:
        load = FOLLOW if state.batches > 1 and cache.sizes.num_drafts else saved[row.start]
    saves = []
    checkpoint = state.mamba[group.index].saved
    if checkpoint:
        saves.append((checkpoint, table[column - 1]))
    verified = stop - len(row.drafts)  # state after each number of accepted drafts
    saves += [(verified + j, table[column + j]) for j in range(len(row.drafts) + 1)]
    saved.clear()
    saved.update(saves)
    return StateUse(group.name, load, tuple(saves))
