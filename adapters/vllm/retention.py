"""Which blocks of window and Mamba groups stay findable (RULES 7c).

With the default interval 0 only those near the end of the prompt, and at a junction that an earlier
look-up saw, get a key; full and chunked-local groups ignore all this.
(single_type_kv_cache_manager.py, kv_cache_coordinator.py)
"""

from __future__ import annotations

from collections.abc import Callable

from .finders.window import blocks_needed
from .sizes import GroupSpec, Sizes, floor_to
from .state import RequestState

__all__ = ["keep_all", "retained"]

Mask = Callable[[int], bool]


def keep_all(_: int) -> bool:
    """Every block is kept (dense)."""
    return True


def _boundaries(sizes: Sizes, state: RequestState) -> list[int]:
    """Prefix lengths at which a later request is expected to go on.

    The end of the prompt (what a repeat can hit at most), and the junction if one was seen.
    """
    prompt, unit = state.prompt_len, sizes.scheduler_block
    if sizes.eagle:
        found = [max(floor_to(end, unit) - unit, 0) for end in (prompt - 1, prompt)]
    else:
        found = [prompt - 1]
    if state.junction:
        found.append(state.junction)
    return found


def retained(spec: GroupSpec, sizes: Sizes, interval: int | None, state: RequestState) -> Mask:
    """The mask of a group for a request: is block ``i`` given a key?"""
    if spec.type in ("swa", "swa_mla_replay"):
        return _window_mask(spec, sizes, interval, state)
    if spec.type == "mamba":
        return _mamba_mask(spec, sizes, interval, state)
    return keep_all


def _window_mask(spec: GroupSpec, sizes: Sizes, interval: int | None, state: RequestState) -> Mask:
    size, unit = spec.block_size, sizes.alignment
    if unit % size:
        return keep_all
    need = blocks_needed(spec.window, size, spec.eagle)
    shift = int(spec.eagle)
    period = (unit if interval is None else interval) // size
    if period and need >= period:
        return keep_all
    kept: set[int] = set()
    if interval is not None:
        for boundary in _boundaries(sizes, state):
            end = floor_to(boundary, unit) // size + shift
            kept.update(range(end - need, end))

    def keep(block: int) -> bool:
        periodic = period > 0 and block >= shift and (block - shift) % period >= period - need
        return periodic or block in kept

    return keep


def _mamba_mask(spec: GroupSpec, sizes: Sizes, interval: int | None, state: RequestState) -> Mask:
    size = spec.block_size
    if interval is None or 0 < interval <= size:
        return keep_all
    ends = {floor_to(floor_to(end, sizes.alignment), size) for end in _boundaries(sizes, state)}

    def keep(block: int) -> bool:
        end = (block + 1) * size
        return end in ends or (interval > 0 and end % interval == 0)

    return keep
