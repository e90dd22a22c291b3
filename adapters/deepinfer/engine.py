"""DeepInfer's engine as a planner: queues in, Steps out.

The order of one step is upstream's (deepinfer/engine/llm_engine.py, csrc/engine/zos.cpp): schedule,
launch the clones and drop their sources, free what finished, run; the results of a decode step are
processed at once, or under ZOS one step later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handoff.errors import HandoffError, Refused
from handoff.index.spans import LATE, Seq
from handoff.types import Match, Request, Row, RowResult, Step, StepResult

from .edits import Edits
from .forks import Forks
from .layout import BLOCKS, CONSUMER, make_layout
from .options import Options
from .outside import make_outside
from .pool import Pool
from .replay import row_spans
from .report import make_handoff
from .scheduler import Batch, Scheduled, Scheduler
from .sequence import Grant, Sequence, Status
from .varlen import products

__all__ = ["DeepInferEngine"]


@dataclass(slots=True)
class _Flight:
    """A Step whose result is not known yet, and the sequence numbers of its rows."""

    number: int
    batch: Batch
    seqs: tuple[int, ...]


class DeepInferEngine:
    """One data-parallel rank, with an outside KV system in front of it.

    ``submit`` goes through the outside system; ``enqueue``, ``try_allocate``, ``inject``,
    ``fork_seq``, ``hold`` and ``drop`` are what such a system does to the engine.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.layout = make_layout(options)
        self.depth = 2 if options.asynchronous else 1
        self.num_drafts = options.drafts
        self.blocks = Pool(options.num_blocks)
        self.states = Pool(options.num_states) if options.num_states else None
        self.edits = Edits(self.layout)
        self.forks = Forks(self.edits, self.blocks, self.states, options.block_size)
        self.scheduler = Scheduler(options, self.edits, self.blocks, self.states, self.forks)
        self.outside = make_outside(
            options.outside_policy,
            options.outside_grain,
            options.outside_rollback,
            options.outside_tokens,
        )
        self._pending: deque[Request] = deque()
        self._flying: deque[_Flight] = deque()
        self._number = 0
        self._answered = -1
        self._idle = 0

    # -- requests ---------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Hand a request to the outside system, which will place it before the next step."""
        length, options = len(request.prompt), self.options
        if length > options.prompt_limit:
            raise Refused(f"{length} prompt tokens, the limit is {options.prompt_limit}")
        need = -(-length // options.block_size)
        if self.blocks.can_allocate(need) == "NEVER":
            raise Refused(f"{need} blocks of prompt, the pool has {options.num_blocks - 1}")
        self._pending.append(request)
        self._idle = 0

    def abort(self, request_id: str, now: float) -> None:
        """Drop a request and its running or waiting forks, as upstream does by request id."""
        self._pending = deque(r for r in self._pending if r.id != request_id)
        self.abort_request(request_id)
        self._idle = 0

    def abort_request(self, request_id: str) -> list[Sequence]:
        """Mark what carries this request id, except forks in ``prompted``; returns what it hit."""
        scheduler = self.scheduler
        flying = [row.seq for flight in self._flying for row in flight.batch.rows]
        found = dict.fromkeys((*scheduler.waiting, *scheduler.running, *flying))
        hit = [s for s in found if s.request_id == request_id and not s.status.finished]
        for seq in hit:
            seq.status = Status.FINISHED_ABORTED
            self.edits.event("abort", seq, "3.2")
        return hit

    def sequence_of(self, request: Request) -> Sequence:
        """A sequence for a request; not queued yet."""
        return Sequence(
            id=request.id,
            request_id=request.id,
            tokens=request.prompt.slice(0, len(request.prompt)),
            prompt_len=len(request.prompt),
            max_tokens=request.max_tokens,
            lora=request.lora,
        )

    def probe(self, request: Request) -> Match:
        """What the outside system would find now."""
        return self.outside.probe(self, request)

    # -- what an outside system does to the engine (RULES 2, 9) -----------------------------

    def enqueue(self, seq: Sequence) -> None:
        """To the back of ``waiting``."""
        self.scheduler.waiting.append(seq)

    def try_allocate(self, seq: Sequence) -> bool:
        """Private blocks and a state before queueing; False if they lack now (RULES 2.2)."""
        verdict = self.scheduler.room(seq.need(self.options.block_size))
        if verdict == "NEVER":
            raise HandoffError(f"{seq.id} can never be allocated")
        if verdict == "LATER":
            return False
        self.edits.open(seq)
        self.scheduler.allocate(seq)
        return True

    def fits_beside_watermark(self, seq: Sequence) -> bool:
        """Whether a load leaves prefill possible: usage at most 90 % after it (RULES 9.5)."""
        need = seq.need(self.options.block_size)
        ready = self.scheduler.room(need) == "OK"
        return ready and len(self.blocks.free) - need >= self.watermark_blocks

    @property
    def watermark_blocks(self) -> int:
        """Free blocks that keep the usage at or below 90 %."""
        return -(-self.blocks.size // 10)

    def inject(self, seq: Sequence, grant: Grant, valid_start: int = 0) -> None:
        """Set the number of ready tokens; fill blocks and rings if the sequence has any.

        Producer rings are restored for ``[max(vs, H - W), H)``. Consumer rings are restored only
        where nothing is truncated: the store keeps none, so a hit beyond L - K leaves a consumer
        window that nobody filled (RULES 9.3). What nobody filled is given as zeros.
        """
        hit = grant.hit
        seq.num_tokens = hit
        seq.valid_start = valid_start
        seq.grant = grant
        if not seq.table:
            return  # a bare number: blocks come when it is scheduled (RULES 2.3)
        seq.cached_hit_tokens = hit
        self.forks.ring_stop[seq.state] = hit
        self.edits.load(seq, BLOCKS, 0, hit)
        for ring in self.edits.rings:
            first = max(valid_start, hit - self.options.model.window_size, 0)
            if ring.name == CONSUMER and self.options.truncates:
                if hit > seq.prompt_len - self.options.keep:
                    self.edits.zero_ring(ring, seq.state)
                    self._unsound(seq, "9.3")
                continue
            if valid_start:
                self.edits.zero_ring(ring, seq.state)
            self.edits.load(seq, ring.name, first, hit)

    def _unsound(self, seq: Sequence, rule: str) -> None:
        seq.mark_unsound(rule)
        self.edits.event("unsound", seq, rule, tokens=seq.num_tokens)

    def probe_of(self, request: Request, grant: Grant) -> Sequence | None:
        """A sequence that only holds a restored state, to be forked; ``None`` if none is free."""
        seq = self.sequence_of(request)
        seq.is_probe = True
        seq.id = f"{request.id}#probe"
        seq.num_tokens = seq.cached_hit_tokens = grant.hit
        seq.grant = grant
        if self.states is None:
            return seq
        if not self.states.free:
            return None
        (seq.state,) = self.states.allocate(1)
        self.forks.ring_stop[seq.state] = grant.hit
        if self.edits.rings:
            self.edits.open(seq)
            self.edits.bind_state(seq, fresh=True)
            for ring in self.edits.rings:
                first = max(0, grant.hit - self.options.model.window_size)
                self.edits.load(seq, ring.name, first, grant.hit)
        return seq

    def drop_probe(self, seq: Sequence) -> None:
        """Give up the restored state."""
        if self.states is not None:
            self.states.release((seq.state,))
        self.edits.close(seq)

    def fork_seq(
        self,
        name: str,
        source: Sequence,
        branch: str,
        max_tokens: int,
        *,
        blocks: list[int] | None = None,
        replace_last: int | None = None,
        forced: int = -1,
    ) -> Sequence:
        """Fork ``source`` and queue the fork: incomplete ones first, others await decode."""
        seq = self.forks.fork(
            name,
            source,
            branch,
            max_tokens,
            blocks=blocks,
            replace_last=replace_last,
            forced=forced,
            max_model_len=self.options.max_model_len,
        )
        if source.num_tokens < source.length - 1:
            self.scheduler.waiting.appendleft(seq)
        else:
            self.scheduler.prompted.append(seq)
        return seq

    def hold(self, number: int) -> list[int]:
        """Blocks that the outside takes for itself."""
        return self.blocks.allocate(number)

    def drop(self, ids: list[int]) -> None:
        """Un-pin blocks."""
        self.blocks.release(ids)

    # -- steps ------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """The next Step, or ``None`` while a prefill is in flight or nothing can move.

        Idle decode steps are real: a request may wait ``prefill_interval`` of them.
        """
        flying = self._flying
        if len(flying) >= self.depth or (flying and flying[-1].batch.kind == "prefill"):
            return None
        self._take_out_prompts()
        self.place()
        if not self.scheduler.unfinished or self._idle > self.options.prefill_interval:
            return None
        step = self.run_step()
        moved = step.rows or step.ops or step.events or len(flying) > 1
        self._idle = 0 if moved else self._idle + 1
        return step

    def place(self) -> None:
        """Let the outside system queue what was submitted, first come first served."""
        while self._pending and self.outside.place(self, self._pending[0]):
            self._pending.popleft()

    @property
    def oldest(self) -> Batch:
        """The batch of the oldest Step in flight."""
        return self._flying[0].batch

    @property
    def newest(self) -> Batch:
        """The batch of the newest Step in flight."""
        return self._flying[-1].batch

    def run_step(self) -> Step:
        """Schedule one step whatever there is to do."""
        batch = self.scheduler.schedule()
        for seq in batch.ignored:
            self._ended(seq, "refuse" if seq.status is Status.FINISHED_IGNORED else "finish")
        for seq in batch.finished:
            self.release(seq)
        rows = tuple(self._row(batch, scheduled) for scheduled in batch.rows)
        handoffs = []
        for scheduled in batch.rows:
            seq = scheduled.seq
            if not seq.announced:
                seq.announced = True
                handoffs.append(make_handoff(self.options, self.edits, scheduled))
        ops, events = self.edits.take()
        number = self._number
        self._number += 1
        self._flying.append(_Flight(number, batch, tuple(row.seq for row in rows)))
        return Step(
            number=number,
            iteration=number,
            known_through=self._answered,
            ops=ops,
            rows=rows,
            handoffs=tuple(handoffs),
            events=events,
        )

    def _row(self, batch: Batch, scheduled: Scheduled) -> Row:
        seq, q = scheduled.seq, scheduled.q
        if batch.kind == "prefill":
            start, stop = seq.num_tokens, scheduled.k
            spans = row_spans(self.options, seq.prompt_len, start, stop, seq.valid_start)
            self._written(seq, stop)
            emits = 1 if stop == seq.length else 0
            return Row(seq.seq, start, seq.tokens.slice(start, stop), emits=emits, spans=spans)
        start = seq.num_tokens + seq.launched
        if seq.launched:
            tokens = Seq.of([LATE] * q)
        else:
            tokens = Seq((seq.tokens[start], *seq.drafts[: q - 1]))
        seq.launched += q
        if self.options.asynchronous:
            seq.inflight += 1 + self.options.drafts
        self._written(seq, start + q)
        return Row(seq.seq, start, tokens, drafts=q - 1, emits=q)

    def _written(self, seq: Sequence, stop: int) -> None:
        self.forks.ring_stop[seq.state] = max(stop, self.forks.ring_stop.get(seq.state, 0))

    def release(self, seq: Sequence) -> None:
        """Let the outside save a sequence, then free it (RULES 4)."""
        if seq.status is not Status.FINISHED_ABORTED:
            self.outside.finalize(self, seq)
        self._ended(seq, "finish")
        self.scheduler.free(seq)
        self.outside.released(self, seq)

    def _ended(self, seq: Sequence, kind: str) -> None:
        self.edits.event(kind, seq, "4" if kind == "finish" else "3.2")

    def _take_out_prompts(self) -> None:
        """A PROMPT engine never frees: the outside takes finished prompts out (RULES 3.2)."""
        if self.options.engine_type != "PROMPT":
            return
        for seq in self.scheduler.running:
            self.release(seq)
        self.scheduler.running = []

    # -- results ----------------------------------------------------------------------------

    def complete(self, result: StepResult, now: float) -> None:
        """Process the results of the oldest Step in flight."""
        flight = self._flying.popleft()
        assert flight.number == result.number, "results come in the order of Steps"
        self._answered = flight.number
        for scheduled, number, answer in zip(
            flight.batch.rows, flight.seqs, result.rows, strict=True
        ):
            if flight.batch.kind == "prefill":
                self._prefilled(scheduled, answer)
            elif scheduled.seq.seq == number:
                self._decoded(scheduled, answer)
        if flight.batch.kind == "decode" and result.forward_s and flight.batch.rows:
            self.measured(flight.batch, result.forward_s * 1e3, result.sample_s * 1e3)

    def measured(self, batch: Batch, forward_ms: float, sampler_ms: float) -> None:
        """Times of a decode step, for the choice of rows (RULES 7)."""
        self.scheduler.varlen.measured(batch.batched, len(batch.rows), forward_ms, sampler_ms)

    def _prefilled(self, scheduled: Scheduled, answer: RowResult) -> None:
        seq = scheduled.seq
        seq.num_tokens = scheduled.k
        if seq.num_tokens < seq.length:
            self.scheduler.waiting.appendleft(seq)
            return
        seq.drafts = self.scheduler.padding
        self._append(seq, answer.tokens)
        self.scheduler.running.append(seq)

    def _decoded(self, scheduled: Scheduled, answer: RowResult) -> None:
        seq = scheduled.seq
        if self.options.asynchronous:
            seq.inflight -= 1 + self.options.drafts
        seq.launched -= scheduled.q
        if seq.status.finished:
            return
        seq.num_tokens += self._append(seq, answer.tokens)
        seq.drafts = answer.drafts[: self.options.drafts]
        seq.previous_rates, seq.rates = seq.rates, products(answer.confidences)
        seq.published = True

    def _append(self, seq: Sequence, tokens: tuple[int, ...]) -> int:
        """Append sampled tokens up to the stop; returns how many."""
        for count, token in enumerate(tokens, 1):
            seq.tokens.append(token)
            if seq.num_outputs >= seq.max_tokens:
                seq.finish(Status.FINISHED_STOPPED)
                return count
            if seq.length > self.options.max_model_len:
                seq.finish(Status.FINISHED_LENGTH_CAPPED)
                return count
        if not tokens:  # nothing was wanted
            seq.finish(Status.FINISHED_STOPPED)
        return len(tokens)

    # -- the rest of the protocol -----------------------------------------------------------

    def next_event(self) -> float | None:
        """Nothing happens by itself."""
        return None

    def drain(self) -> Step | None:
        """Operations still owed, as a Step without rows."""
        ops, events = self.edits.take()
        if not ops and not events:
            return None
        number = self._number
        self._number += 1
        batch = Batch("prefill")
        self._flying.append(_Flight(number, batch, ()))
        return Step(number, number, self._answered, ops, events=events)

    def observe(self) -> Mapping[str, Any]:
        """Queues, free lists and references."""
        scheduler = self.scheduler
        return {
            "waiting": [seq.id for seq in scheduler.waiting],
            "prompted": [seq.id for seq in scheduler.prompted],
            "running": [seq.id for seq in scheduler.running],
            "decode_step": scheduler.decode_step,
            "free": list(self.blocks.free),
            "free_states": list(self.states.free) if self.states else [],
            "references": list(self.blocks.counts.counts),
        }
