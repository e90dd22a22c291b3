"""External hits through a KV connector (RULES 12; scheduler.py, kv_connector/).

The remote store is not simulated: a request says in its option ``external_tokens`` how many of its
leading tokens the store holds.
"""

from __future__ import annotations

from .allocate import KVCache
from .coordinator import Hit
from .options import VllmOptions
from .sizes import Sizes, floor_to
from .state import RequestState

__all__ = ["Connector"]


class Connector:
    """Asks the store on admission and keeps track of loads beside the steps."""

    def __init__(self, options: VllmOptions, sizes: Sizes, cache: KVCache) -> None:
        self._is_async = options.kv_connector == "async"
        self._sizes = sizes
        self._cache = cache
        self._loads: dict[int, RequestState] = {}  # transfer -> request
        self._arrived: set[str] = set()
        self.under_way: dict[str, RequestState] = {}
        """Requests that hold blocks for a load and were not scheduled yet."""
        self._num_transfers = 0

    @property
    def is_loading(self) -> bool:
        """Whether a load beside the steps is under way."""
        return bool(self._loads)

    def ask(self, state: RequestState, hit: Hit) -> tuple[int, bool]:
        """External tokens beyond the local hit, and whether they arrive beside the steps.

        Hits are whole scheduler blocks here, since Mamba groups are left out. The store always
        leaves one token to compute.
        """
        held = min(int(state.request.options.get("external_tokens", 0)), state.known - 1)
        more = max(held - hit.tokens, 0)
        if self._sizes.replay:
            more = floor_to(more, self._sizes.scheduler_block)
        if not more or not self._is_async:
            return more, False
        state.transfer = self._num_transfers
        return more, True

    def holds(self, state: RequestState) -> bool:
        """Whether a load still writes into the request's blocks."""
        return state.transfer in self._loads and self._loads[state.transfer] is state

    def aborted(self) -> list[RequestState]:
        """Requests that are gone but whose load still writes into their blocks."""
        return [state for state in self._loads.values() if state.status == "aborted"]

    def start(self, state: RequestState) -> None:
        """The load of an admitted request was sent off."""
        assert state.transfer is not None
        self._loads[state.transfer] = state
        self.under_way[state.id] = state
        self._num_transfers += 1

    def arrive(self, transfer: int) -> None:
        """A load has ended; an aborted request's blocks are freed only now.

        A load is told once for each group it fills.
        """
        state = self._loads.pop(transfer, None)
        if state is None:
            return
        if state.status == "aborted":
            self._cache.leave_windows(state, state.computed)
            self._cache.free(state)
        else:
            self._arrived.add(state.id)

    def promote(self, state: RequestState) -> bool:
        """Make a request schedulable whose load has ended: its blocks get keys; False if not."""
        if state.id not in self._arrived:
            return False
        self._arrived.discard(state.id)
        self._cache.insertion.insert(state, state.computed)
        state.computed -= min(self._sizes.replay, state.computed)
        state.status = "waiting"
        return True
