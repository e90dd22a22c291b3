"""Capacity scheduling GUARANTEED_NO_EVICT: who may hold blocks, and who waits for a prefix.

(RULES 9; scheduler.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .estimate import Estimator
from .manager import KVCacheManager
from .request import LlmRequest

__all__ = ["Capacity", "guaranteed_no_evict"]


class Capacity(NamedTuple):
    """Requests that fit, and those that wait because another one brings their next block."""

    fitting: list[LlmRequest]
    deferred: list[LlmRequest]


def guaranteed_no_evict(
    active: Sequence[LlmRequest], manager: KVCacheManager, estimator: Estimator
) -> Capacity:
    """Admits in order while every admitted request can run to its end without eviction.

    Decoding requests come first. A request whose first new block another one of this pass brings
    is passed over, so two identical prompts are not computed side by side.
    """
    options = manager.options
    free = manager.free_blocks()
    decoding = [request for request in active if not request.in_context]
    pending = [request for request in active if request.in_context]
    fitting = list(decoding)
    for request in decoding:
        needed = estimator.remaining_to_completion(request)
        free = [have - need for have, need in zip(free, needed)]
    defers = options.enable_prefix_aware_scheduling and options.enable_block_reuse
    contributed = {
        estimator.first_new_block(request)
        for request in (pending if defers else ())
        if not request.first_chunk
    } - {None}
    deferred = []
    for request in pending:
        if defers and request.first_chunk:
            key = estimator.first_new_block(request)
            if key is not None:
                if key in contributed:
                    deferred.append(request)
                    continue
                contributed.add(key)
        if len(fitting) >= options.max_batch_size:
            break
        needed = estimator.remaining_to_completion(request)
        if any(need > have for need, have in zip(needed, free)):
            break
        free = [have - need for have, need in zip(free, needed)]
        fitting.append(request)
    return Capacity(fitting, deferred)
