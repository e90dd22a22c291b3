"""One scheduling step: prefill first, else decode; retraction and preemption (rules 4, 5).

Sources: ``managers/scheduler.py`` (``get_next_batch_to_run``), ``managers/schedule_batch.py``,
``scheduler_output_processor_mixin.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from handoff.errors import Unsupported
from handoff.types import Close, Event

from . import LEFT_OUT
from .adder import Adder, Verdict
from .cache import PrefixCache
from .options import Options
from .policy import QueuePolicy
from .req import Req
from .slots import Blocks

__all__ = ["Batch", "Scheduler"]


@dataclass(slots=True)
class Batch:
    """One forward pass: prefill rows, then decode rows (both only in a mixed batch)."""

    prefill: list[Req] = field(default_factory=list)
    decode: list[Req] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """``[start, stop)`` of each row at planning time, prefill rows first."""
    chunked: Req | None = None
    """The prefill row that ends in mid-prompt."""
    admitted: list[Req] = field(default_factory=list)
    """Prefill rows that start a request."""

    @property
    def reqs(self) -> list[Req]:
        """All rows in order."""
        return self.prefill + self.decode


def _outgrown(reqs: Sequence[Req]) -> Unsupported:
    """Everything was evicted and all others went back, yet a decode step does not fit."""
    names = ", ".join(req.id for req in reqs)
    what = "a last request that outgrows the pool"
    return Unsupported(f"SGLang adapter, {names}: {what} is left out ({LEFT_OUT[what]})")


class Scheduler:
    """Guarantees upstream's batches, given upstream's order of arrivals and results."""

    def __init__(self, options: Options, cache: PrefixCache) -> None:
        self.options = options
        self.cache = cache
        self.journal = cache.journal
        self.policy = QueuePolicy(options, cache)
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.chunked: Req | None = None
        self._last: Batch | None = None
        self._full = False
        self._processed = 0
        self.counts_processed = True
        """Whether prefilled tokens age the waiting requests (hrrn)."""
        ratio = min(options.init_new_token_ratio * options.schedule_conservativeness, 1.0)
        self.new_token_ratio = ratio
        """Share of their remaining outputs that running requests are expected to need."""
        self._min_ratio = min(ratio * options.min_new_token_ratio_factor, 1.0)
        self._decay = (ratio - self._min_ratio) / options.new_token_ratio_decay_steps

    def enqueue(self, req: Req) -> None:
        """A new request joins the queue."""
        req.processed_at_arrival = self._processed
        self.waiting.append(req)

    # -- the step -------------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        """The next forward pass, or ``None``; prefill goes first (rule 4)."""
        if self.cache.host is not None:
            self.cache.host.acknowledge()
        if self.chunked is not None and self.chunked.prefix < self.chunked.stop:
            self.cache.checkpoint(self.chunked, self.chunked.stop)
        self._merge()
        self._drop_finished()
        batch = self._prefill()
        if batch is None and self.running:
            batch = self._decode()
        self._last = batch
        return batch

    def _merge(self) -> None:
        """The last prefill batch's requests join the running ones."""
        last = self._last
        if last is None or not last.prefill:
            return
        staying = [req for req in last.reqs if req is not last.chunked and not req.finished]
        if len(staying) < len(last.reqs) or not self.running:
            self._full = False  # upstream keeps the flag on the running batch, here replaced
        self.running.extend(staying)

    def _drop_finished(self) -> None:
        """Finished requests make room for others at once; an empty batch is never full."""
        running = [req for req in self.running if not req.finished]
        if len(running) < len(self.running) or not running:
            self._full = False
        self.running = running

    def _prefill(self) -> Batch | None:
        options = self.options
        preempting = options.enable_priority_scheduling and not options.disable_priority_preemption
        if preempting:
            self._full = False
        if (self._full or not self.waiting) and self.chunked is None:
            return None
        if len(self.running) >= options.running_limit and not (self.chunked or preempting):
            self._full = True
            return None
        self.policy.arrange(self.waiting, self._processed)
        mixed = len(self.running) if options.enable_mixed_chunk else 0
        adder = Adder(options, self.cache, self.running, self.new_token_ratio, mixed)
        continued = self.chunked
        if continued is not None:
            self.chunked = adder.add_chunked(continued)
        self._admit_waiting(adder, preempting)
        for req in adder.preempted:
            self.waiting.append(req)
        if not adder.admitted:
            return None
        self.waiting = [req for req in self.waiting if req not in adder.admitted]
        if adder.chunked is not None:
            assert self.chunked is None
            self.chunked = adder.chunked
        batch = Batch(prefill=adder.admitted, chunked=self.chunked)
        batch.admitted = [req for req in batch.prefill if req is not continued]
        self._extend(batch)
        if options.enable_mixed_chunk and self.running:
            self._mix(batch)
        return batch

    def _admit_waiting(self, adder: Adder, preempting: bool) -> None:
        if adder.spent:
            return
        for req in list(self.waiting):
            if len(adder.admitted) >= self.options.running_limit - len(self.running):
                self._full = True
            if self._full:
                victims = adder.preempt(req, self.running, self.policy.sign) if preempting else []
                if not victims:
                    return
                self._preempt(victims)
                adder.preempted.extend(victims)
            found = self.cache.lookup.candidate(req)
            verdict = adder.add(req, found, self.cache.load_back)
            if verdict is Verdict.NO_TOKEN and self.cache.windows is None:
                self._full = True  # with windows the head of the queue is tried at every step
            if verdict is not Verdict.CONTINUE:
                return

    # -- prefill --------------------------------------------------------------------------------

    def _extend(self, batch: Batch) -> None:
        """Take the blocks of a prefill batch: one eviction call, then rows in order (rule 5)."""
        cache, page = self.cache, self.cache.page
        pure = self.options.attention == "pure_swa"
        for req in batch.prefill:
            if req in batch.admitted:
                cache.start(req)
            elif cache.disabled and cache.windows is not None:
                cache.free_windows(req, req.start, 1)
        for req in batch.admitted:
            cache.take_state(req)
        total = sum(req.stop - req.start for req in batch.prefill)
        cache.room.make_room(total if page == 1 else total + len(batch.prefill) * page)
        for req in batch.prefill:
            blocks = cache.grow(req, req.stop)
            req.committed = req.allocated = req.stop
            if pure:
                req.floor = req.stop
            if self.counts_processed:
                self._processed += req.stop - req.start
            batch.spans.append((req.start, req.stop))
            self.journal.extend(req, req.start, req.stop - req.start, blocks)
            if req is not batch.chunked:
                req.launched += 1

    def _mix(self, batch: Batch) -> None:
        """Running requests decode along with a prefill batch (``--enable-mixed-chunk``)."""
        decode = [req for req in self.running if not self._done(req)]
        self.running = []
        for req, blocks in self._step(decode):
            self.journal.extend(req, req.committed - 1, 1, blocks)
        batch.decode = decode
        batch.spans += [(req.committed - 1, req.committed) for req in decode]

    # -- decode ---------------------------------------------------------------------------------

    def _done(self, req: Req) -> bool:
        """Whether all outputs of a request are computed or under way."""
        return req.finished or req.launched >= req.max_new

    def _decode(self) -> Batch | None:
        before = len(self.running)
        self.running = [req for req in self.running if not self._done(req)]
        if not self.running:
            self._full = False
            return None
        if self.options.speculative_num_steps is not None:
            return self._verify()
        if not self._fits(self.running):
            self._retract()
        else:
            self.new_token_ratio = max(self.new_token_ratio - self._decay, self._min_ratio)
        if len(self.running) < before:
            self._full = False
        rows = self._step(self.running)
        self.journal.decode(rows)
        batch = Batch(decode=list(self.running))
        batch.spans = [(req.committed - 1, req.committed) for req in batch.decode]
        return batch

    def _verify(self) -> Batch:
        """A speculative decode step: room far ahead, rows of one known token and drafts (rule 9).

        Positions count as committed only when the result says how many were accepted.
        """
        options, cache = self.options, self.cache
        drafts = options.speculative_num_draft_tokens
        reserve = options.verify_reserve
        for req in self.running:
            if req.decoded:
                cache.free_windows(req, req.committed, options.swa_eviction_interval)
            req.decoded = True
        while True:
            targets = [
                max(req.allocated, cache.pages(req.committed + reserve) * cache.page)
                for req in self.running
            ]
            growth = sum(targets) - sum(req.allocated for req in self.running)
            extra = len(self.running) * cache.page if cache.page > 1 else 0
            cache.room.make_room(growth + extra)
            blocks = sum(cache.pages(to) for to in targets)
            blocks -= sum(len(req.row) for req in self.running)
            if blocks <= cache.slots.num_free:
                break
            if len(self.running) == 1:
                raise _outgrown(self.running)
            victim = self.running.pop()  # the batch can only shrink from its end
            self._give_back(victim, len(self.running))
            self.waiting.append(victim)
        batch = Batch(decode=list(self.running))
        for req, target in zip(self.running, targets, strict=True):
            cache.grow(req, target)
            req.allocated = target
            batch.spans.append((req.committed, req.committed + drafts))
        return batch

    def _need(self, reqs: Sequence[Req]) -> int:
        """Tokens that the next decode step takes, in whole pages."""
        page = self.cache.page
        return page * sum(1 for req in reqs if req.committed % page == 0)

    def _fits(self, reqs: Sequence[Req]) -> bool:
        """Make room for a decode step; whether there is enough (``check_decode_mem``)."""
        need = self._need(reqs)
        self.cache.room.make_room(need)
        return self.cache.room.has_room(need, need)

    def _step(self, reqs: Sequence[Req]) -> list[tuple[Req, Blocks]]:
        """One more position for each row: windows first, then room, then slots (rules 5, 7)."""
        cache, page = self.cache, self.cache.page
        for req in reqs:
            if req.decoded:
                cache.free_windows(req, req.committed, self.options.swa_eviction_interval)
        cache.room.make_room(len(reqs) if page == 1 else len(reqs) * page)
        need = self._need(reqs)
        if not cache.room.has_room(need, need):
            raise _outgrown(reqs)
        rows = []
        for req in reqs:
            rows.append((req, cache.grow(req, req.committed + 1)))
            req.committed += 1
            req.allocated = req.committed
            req.decoded = True
            req.launched += 1
        return rows

    # -- giving back ----------------------------------------------------------------------------

    def _retract(self) -> None:
        """Send requests back until a decode step fits; one is always kept (rule 5)."""
        order = sorted(self.running, key=lambda r: (r.outputs, -r.prompt), reverse=True)
        first = True
        while first or not self._fits(order):
            if len(order) == 1:
                break
            first = False
            req = order.pop()
            self._give_back(req, len(order))
            self.waiting.append(req)
        self.running = order
        outputs = sum(req.outputs for req in order)
        wanted = sum(req.max_new for req in order)
        steps = self.options.retract_decode_steps
        self.new_token_ratio = min((outputs + steps * len(order)) / wanted, 1.0)

    def _preempt(self, victims: Sequence[Req]) -> None:
        kept = [req for req in self.running if req not in victims]
        count = 0
        for req in list(self.running):
            if req in victims:
                count += 1
                self._give_back(req, len(self.running) - count)
        self.running = kept

    def _give_back(self, req: Req, remaining: int) -> None:
        """Release a running request without inserting what it computed."""
        self.journal.retract(req, req.protected, req.allocated)
        self.cache.release(req, insert=False)
        assert req.sequence is not None
        self.cache.ops.append(Close(req.sequence))
        self.cache.events.append(Event("preempt", seq=req.sequence, request=req.id, rule="5"))
        req.reset()
        self.cache.room.make_room(remaining * self.options.retract_decode_steps)

    def drop(self, req: Req) -> None:
        """An aborted request leaves the queue or the batch; its private KV goes back (rule 5)."""
        self.waiting = [other for other in self.waiting if other is not req]
        self.running = [other for other in self.running if other is not req]
        if self.chunked is req:
            self.chunked = None
        req.finished = True
        self.cache.release(req, insert=False)

    # -- results --------------------------------------------------------------------------------

    def emitted(self, req: Req, tokens: Sequence[int], *, verified: bool) -> None:
        """Outputs of one row arrived; ``verified``: as many positions are committed now.

        Outputs beyond ``max_new`` are counted but not kept (rule 9, "Overshoot").
        """
        for token in tokens:
            req.outputs += 1
            if req.outputs <= req.max_new and not req.finished:
                req.append(token)
                req.finished = token in req.stop_ids
        req.finished = req.finished or req.outputs >= req.max_new
        if verified:
            req.committed += len(tokens)
            req.launched = req.outputs
