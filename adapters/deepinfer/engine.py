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

from handoff.adapter import check_asked
from handoff.errors import HandoffError, Refused, Unsupported
from handoff.index.spans import LATE, Seq
from handoff.types import Match, Request, Row, RowResult, Step, StepResult

from .options import ForkOptions, Options
from .outside import make_outside
from .rank import Rank
from .replay import row_spans
from .report import make_handoff
from .scheduler import Batch, Scheduled
from .sequence import Sequence, Status
from .varlen import products

__all__ = ["DeepInferEngine"]


@dataclass(slots=True)
class _Flight:
    """A Step whose result is not known yet, and the sequence numbers of its rows."""

    number: int
    batch: Batch
    seqs: tuple[int, ...]


class DeepInferEngine(Rank):
    """One data-parallel rank, with an outside KV system in front of it.

    ``submit`` goes through the outside system, which then acts on the rank.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.depth = 2 if options.asynchronous else 1
        self.num_drafts = options.drafts
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
            bound = options.prompt_limit
            name = "max_model_len" if bound == options.max_model_len else "max_num_batched_tokens"
            raise Refused(f"{length} prompt tokens, the limit is {bound} ({name})")
        need = -(-length // options.block_size)
        if self.blocks.can_allocate(need) == "NEVER":
            held = options.num_blocks - 1
            raise Refused(f"{need} blocks of prompt, the pool has {held} (num_blocks)")
        if request.max_tokens > 1 and not options.stop_preempted_request:
            ahead = options.drafts + (1 + options.drafts if options.asynchronous else 0)
            most = -(-(length + request.max_tokens - 1 + ahead) // options.block_size)
            if self.blocks.can_allocate(most + 1) == "NEVER":
                raise Refused(f"{most} blocks and a free one: it would be preempted for ever")
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

    def probe(self, request: Request) -> Match:
        """What the outside system would find now."""
        return self.outside.probe(self, request)

    def act(self, action: str, options: dict[str, Any], now: float) -> None:
        """``fork_seq`` with id, source, branch, max_tokens, and upstream's optional arguments."""
        if action != "fork_seq":
            raise Unsupported(f"action {action}: DeepInfer knows fork_seq")
        asked = check_asked(ForkOptions, options, action)
        self.fork_seq(
            asked.id,
            self._live(asked.source),
            asked.branch,
            asked.max_tokens,
            replace_last=asked.replace_last_token_id,
        )
        self._idle = 0

    def _live(self, name: str) -> Sequence:
        scheduler = self.scheduler
        flying = [row.seq for flight in self._flying for row in flight.batch.rows]
        for seq in (*scheduler.running, *scheduler.waiting, *scheduler.prompted, *flying):
            if seq.id == name and seq.seq >= 0:
                return seq
        raise HandoffError(f"fork_seq: no live sequence {name!r}")

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
        self.outside.make_room(self)
        if not self.scheduler.unfinished or self._idle > self.options.prefill_interval:
            return None
        step = self.run_step()
        moved = step.ops or step.events or any(flight.batch.rows for flight in flying)
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
            given_up = seq.status in (Status.FINISHED_IGNORED, Status.FINISHED_PREEMPTED)
            self._ended(seq, "refuse" if given_up else "finish")
            self.outside.released(self, seq)
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
            spans = row_spans(self.options, seq.length, start, stop, seq.valid_start)
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
            elif not scheduled.seq.status.finished:
                # Preempted meanwhile: upstream skips the result (RULES 8). Tokens that the
                # environment delivered all the same are the request's, without any KV.
                self._append(scheduled.seq, answer.tokens)
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
        if not self._append(seq, answer.tokens):  # no output was wanted
            seq.finish(Status.FINISHED_STOPPED)
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
