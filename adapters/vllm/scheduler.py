"""Which requests run in a step and how many tokens of each (RULES 6, 9, 12, 13).

Running requests first, in their order; then waiting ones from the head of the queue until one does
not fit. (v1/core/sched/scheduler.py, async_scheduler.py, request_queue.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from handoff.index.spans import LATE
from handoff.types import Event

from .allocate import KVCache
from .connector import Connector
from .coordinator import Hit
from .mamba import split_chunk
from .options import VllmOptions
from .queues import RequestQueue
from .sizes import Sizes
from .state import Outbox, RequestState
from .stats import PrefillStats, Stats

__all__ = ["Batch", "Scheduled", "Scheduler"]


@dataclass(slots=True)
class Scheduled:
    """A row of a batch: ``tokens`` positions from ``start``, the last ``drafts`` are guesses.

    ``hit`` is given for an admission. ``samples``: the row reaches the end of the known tokens.
    """

    state: RequestState
    start: int
    tokens: int
    drafts: tuple[int, ...]
    samples: bool = False
    hit: Hit | None = None
    seq: int = -1
    dropped: bool = False
    """Whether the output will be thrown away (a reset preempted the request)."""


@dataclass(slots=True)
class Batch:
    """What one ``schedule()`` decided."""

    rows: list[Scheduled] = field(default_factory=list)
    loads: list[RequestState] = field(default_factory=list)
    """Requests whose external tokens began to load beside the steps."""
    admitted: list[tuple[RequestState, Hit, int]] = field(default_factory=list)
    """Granted look-ups with their external tokens, in order."""


class _Offer(NamedTuple):
    """What a waiting request would start from.

    ``served`` tokens have KV, the last ``replay`` of them are computed again; ``loading``: the
    external ones arrive beside the steps.
    """

    hit: Hit
    external: int
    loading: bool
    served: int
    replay: int

    @property
    def start(self) -> int:
        """First position to compute."""
        return self.served - self.replay


class Scheduler:
    """Queues, token budget, admission, preemption."""

    def __init__(self, options: VllmOptions, sizes: Sizes, cache: KVCache, out: Outbox) -> None:
        self.options = options
        self.sizes = sizes
        self.cache = cache
        self.out = out
        self.running: list[RequestState] = []
        self.waiting = RequestQueue(options.policy)
        self.connector = Connector(options, sizes, cache) if options.kv_connector else None
        self.stats = Stats()
        self._to_junction = options.enable_mamba_shared_prefix_checkpoint and sizes.fine_grained
        self._mamba = next(
            (group for group in sizes.groups if group.type == "mamba" and cache.caching), None
        )

    # -- one step ---------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Decide one step; computed tokens move on before the model runs."""
        rows: dict[int, Scheduled] = {}
        batch = Batch()
        self.cache.start_of_schedule()
        budget, preempted = self._schedule_running(rows)
        if not preempted:
            self._admit_waiting(rows, budget, batch)
        self.cache.end_of_schedule()
        batch.rows = list(rows.values())
        for row in batch.rows:
            self._advance(row)
        return batch

    def _advance(self, row: Scheduled) -> None:
        """Count a row's tokens as computed; asynchronously, expect its outputs (RULES 6, 13)."""
        state = row.state
        row.seq = state.seq
        state.computed += row.tokens
        state.in_flight += row.tokens
        state.batches += 1
        row.samples = state.computed >= state.known + state.placeholders
        state.mid_prefill = not row.samples
        state.drafts = []
        if self.options.is_async and row.samples:
            state.placeholders += 1 + len(row.drafts)
            state.drafts = [LATE] * self.sizes.num_drafts

    def _schedule_running(self, rows: dict[int, Scheduled]) -> tuple[int, bool]:
        slots = self.sizes.draft_slots
        budget, preempted, index = self.options.max_num_batched_tokens, False, 0
        while index < len(self.running) and budget > slots:
            state = self.running[index]
            index += 1
            if self._ends_in_flight(state):
                continue
            wanted = state.known + len(state.drafts) + state.placeholders - state.computed
            new = self._cap(state, state.computed, wanted, budget - slots)
            if new <= 0:
                continue
            fits = True
            while not self.cache.allocate(state, new, lookahead=self.sizes.lookahead):
                self._tell_refused(state, "6.1")
                victim = self._victim()
                position = self.running.index(victim)
                if position < index:
                    index -= 1
                self.running.pop(position)
                row = rows.pop(victim.order, None)
                if row is not None:
                    budget += row.tokens + slots
                self._preempt(victim)
                preempted = True
                if victim is state:
                    fits = False
                    break
            if not fits:
                break
            guesses = state.computed + new - state.known - state.placeholders
            drafts = tuple(state.drafts[: max(guesses, 0)])
            rows[state.order] = Scheduled(state, state.computed, new, drafts)
            budget -= new + slots
        return budget, preempted

    def _ends_in_flight(self, state: RequestState) -> bool:
        """Whether the steps in flight will bring the last output of a request."""
        return state.placeholders > 0 and (
            state.computed + 2 - state.placeholders >= state.prompt_len + state.request.max_tokens
        )

    def _cap(
        self, state: RequestState, start: int, new: int, budget: int, *, admission: bool = False
    ) -> int:
        """The caps on a chunk in upstream's order (RULES 6.1, 6.2)."""
        new = min(self._below_threshold(new), budget)
        if not admission:
            new = min(new, self.options.max_model_len - 1 - start)
        if self._mamba is not None:
            largest = self.options.max_num_batched_tokens
            largest = min(largest, self.options.long_prefill_token_threshold or largest)
            new = split_chunk(
                self.sizes, self._mamba, state, start, new, largest, self._to_junction
            )
        return self._leave_for_drafter(state, start, new)

    def _below_threshold(self, new: int) -> int:
        """A long prompt yields to others, if there are any (RULES 6.1)."""
        threshold = self.options.long_prefill_token_threshold
        shared = threshold > 0 and len(self.running) + len(self.waiting) > 1
        return min(new, threshold) if shared else new

    def _leave_for_drafter(self, state: RequestState, start: int, new: int) -> int:
        """Keep the last chunk long enough for a drafter that reads ahead (RULES 9, MTP reserve)."""
        left = state.known - start - new
        if 0 < left < self.sizes.prefill_lookahead:
            new = max(0, new - (self.sizes.prefill_lookahead - left))
        return new

    # -- admission --------------------------------------------------------------------------

    def _admit_waiting(self, rows: dict[int, Scheduled], budget: int, batch: Batch) -> None:
        left_mid_prefill = any(  # by their previous step
            row.state.mid_prefill for row in rows.values()
        )
        passed_over: list[RequestState] = []
        slots = self.sizes.draft_slots
        while self.waiting and budget > slots and len(self.running) < self.options.max_num_seqs:
            state = self.waiting.peek()
            if self._must_wait(state, rows):
                passed_over.append(self.waiting.pop())
                continue
            row = self._try(state, rows, budget - slots, left_mid_prefill, batch)
            if row is None:
                break
            self.waiting.pop()
            if row.tokens == 0:  # its load was started; it waits for the transfer
                passed_over.append(state)
                continue
            self.running.append(state)
            state.status = "running"
            if self.connector:
                self.connector.under_way.pop(state.id, None)
            rows[state.order] = row
            budget -= row.tokens + slots
        self.waiting.pass_over(passed_over)

    def _must_wait(self, state: RequestState, rows: dict[int, Scheduled]) -> bool:
        """Requests that are passed over: load unfinished, outputs in flight, too many LoRAs.

        Only the LoRAs of this step's rows count.
        """
        if state.status == "loading":
            return self.connector is None or not self.connector.promote(state)
        if state.batches:
            return True
        most, lora = self.options.max_loras, state.request.lora
        if most is None or lora is None:
            return False
        active = {row.state.request.lora for row in rows.values()} - {None}
        return len(active) >= most and lora not in active

    def _try(
        self,
        state: RequestState,
        rows: dict[int, Scheduled],
        budget: int,
        left_mid_prefill: bool,
        batch: Batch,
    ) -> Scheduled | None:
        """Admit the head of the queue; ``None`` stops admission (RULES 6.2)."""
        offer = self._look_up(state)
        new, drafts = 0, 0
        if not offer.loading:
            new = state.known - offer.start
            if self._is_padded(state, new, offer.start, rows, left_mid_prefill):
                drafts = self.sizes.num_drafts
                new += drafts
                if new > budget:
                    return None
            if not self.options.enable_chunked_prefill and self._below_threshold(new) > budget:
                return None
            new = self._cap(state, offer.start, new, budget, admission=True)
            if drafts and new < 1 + drafts:  # rather not padded than padded in part
                new, drafts = min(new, 1), 0
            if new == 0:
                return None
        fits = self.cache.allocate(
            state,
            max(new - offer.replay, 0),
            hit=offer.hit,
            external=offer.external,
            lookahead=0 if offer.loading else self.sizes.lookahead,
            loading=offer.loading,
            watermark=self.sizes.watermark_blocks if self.running else 0,
            reserved=self._reserved() if offer.loading else 0,
        )
        if not fits:
            self._tell_refused(state, "6.2")
            return None
        self._grant(state, offer, batch)
        return Scheduled(state, offer.start, new, (LATE,) * drafts, hit=offer.hit)

    def _look_up(self, state: RequestState) -> _Offer:
        """Local hit, external hit, and what of them has to be replayed (RULES 5, 11, 12).

        A request whose load has ended does not look again.
        """
        if state.computed:
            return _Offer(self.cache.coordinator.empty(), 0, False, state.computed, 0)
        hit, external, loading = self.cache.find(state), 0, False
        if self.connector:
            external, loading = self.connector.ask(state, hit)
        if 0 < hit.tokens + external <= self.sizes.replay:
            hit, external, loading = self.cache.give_up(hit), 0, False
        served = hit.tokens + external
        return _Offer(
            hit, external, loading, served, 0 if loading else min(self.sizes.replay, served)
        )

    def _grant(self, state: RequestState, offer: _Offer, batch: Batch) -> None:
        """Note an admission that got its blocks; a load beside the steps is sent off."""
        if state.hit is None:
            state.hit, state.external, state.served = offer.hit, offer.external, offer.served
            self._count(state, offer)
        state.computed = offer.start
        batch.admitted.append((state, offer.hit, offer.external))
        if offer.loading:
            assert self.connector is not None
            state.status = "loading"
            self.connector.start(state)
            batch.loads.append(state)

    def _count(self, state: RequestState, offer: _Offer) -> None:
        """Upstream's statistics of an admission that looked up (RULES 13)."""
        hit = offer.hit.tokens
        if self.cache.caching and not state.skip_reading:
            self.stats.prefix_cache.record(state.known, hit, preempted=state.attempt > 0)
        if state.prefill is None:
            state.prefill = PrefillStats(state.prompt_len, hit, offer.external, offer.start)

    def _reserved(self) -> int:
        """Blocks that prefills and loads under way still need (RULES 12)."""
        assert self.connector is not None
        prefills = [state for state in self.running if state.computed < state.known]
        under_way = (*prefills, *self.connector.under_way.values())
        return sum(self.cache.still_needed(state) for state in under_way)

    def _is_padded(
        self,
        state: RequestState,
        new: int,
        start: int,
        rows: dict[int, Scheduled],
        left_mid_prefill: bool,
    ) -> bool:
        """Whether a request with one token to compute is widened by placeholders (RULES 9)."""
        num_drafts = self.sizes.num_drafts
        return (
            num_drafts > 0
            and new == 1
            and not left_mid_prefill
            and (start > 0 or any(row.hit is None for row in rows.values()))
            and start + num_drafts + 2 <= self.options.max_model_len
        )

    def _tell_refused(self, state: RequestState, rule: str) -> None:
        self.out.events.append(Event("defer", request=state.id, rule=rule))

    # -- leaving ----------------------------------------------------------------------------

    def _victim(self) -> RequestState:
        if self.options.policy == "priority":
            return max(self.running, key=lambda state: (state.priority, state.order))
        return self.running[-1]

    def _preempt(self, state: RequestState) -> None:
        """Give up everything; the request waits in front (or in priority order) (RULES 13)."""
        self.out.events.append(Event("preempt", seq=state.seq, request=state.id, rule="13"))
        self.cache.free(state)
        state.release(len(self.sizes.groups))
        state.status = "preempted"
        state.attempt += 1
        self.waiting.put_in_front(state)

    def finish(self, state: RequestState, kind: str) -> None:
        """Drop a request wherever it is; its keys stay (RULES 13)."""
        if state.status == "running":
            self.running.remove(state)
        else:
            self.waiting.remove(state)
        self.out.events.append(Event(kind, seq=state.seq, request=state.id, rule="13"))
        if self.connector:
            self.connector.under_way.pop(state.id, None)
            if self.connector.holds(state):  # its blocks are freed when the load ends
                state.status = "aborted"
                return
            self.cache.leave_windows(state, max(0, state.computed - state.in_flight))
        state.status = "finished"
        self.cache.free(state)

    def reset(self, *, running: bool) -> bool:
        """Remove all keys, if no block is held; ``running`` preempts everything first."""
        if running:
            while self.running:
                self._preempt(self.running.pop())
        return self.cache.pool.reset()
