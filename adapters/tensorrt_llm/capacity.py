"""Capacity scheduling GUARANTEED_NO_EVICT: who may hold blocks, and who waits for a prefix.

(RULES 9; scheduler.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .estimate import Estimator, PrefixReuse
from .keys import BlockKey
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
    contributed: set[BlockKey] = set()
    for request in pending if defers else ():
        if not request.first_chunk:
            _contribute(estimator.analyze(request), contributed)
    deferred = []
    for request in pending:
        found = estimator.analyze(request) if request.first_chunk else None
        if defers and not _contribute(found, contributed):
            deferred.append(request)
            continue
        if len(fitting) >= options.max_batch_size:
            break
        needed = estimator.remaining_to_completion(request, found)
        if any(need > have for need, have in zip(needed, free)):
            break
        free = [have - need for have, need in zip(free, needed)]
        fitting.append(request)
    return Capacity(fitting, deferred)


def _contribute(found: PrefixReuse | None, contributed: set[BlockKey]) -> bool:
    """Adds the first new block, compared without its prefix; False if another one brings it."""
    if found is None or found.first_new is None:
        return True
    if found.first_new in contributed:
        return False
    contributed.add(found.first_new)
    return True
