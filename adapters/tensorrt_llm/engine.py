"""The engine: one iteration after the other, as upstream's PyTorch executor runs them.

(RULES 9 to 11b.) Schedule by estimate, add the batch (here the real match happens), make room for
decode tokens, correct the budget, run; then move on, store and release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handoff.errors import Refused
from handoff.index.spans import VIRTUAL, Seq
from handoff.types import (
    Event,
    Group,
    Handoff,
    Layer,
    Layout,
    Match,
    Pool,
    Request,
    Row,
    RowResult,
    Spans,
    Step,
    StepResult,
)

from .blocks import HOST, PRIMARY
from .budget import fit_token_budget, forward_tokens
from .capacity import Capacity, guaranteed_no_evict
from .estimate import Estimator
from .handoff import answer, probed
from .intake import Intake
from .journal import Journal, group_name, host_pool, primary_pool
from .manager import Admission, KVCacheManager
from .match import look_up
from .microbatch import MicroBatch, MicroBatchScheduler
from .options import Options
from .request import LlmRequest

__all__ = ["Engine", "Iteration", "layout_of"]

_PRIVATE = VIRTUAL << 8  # virtual tokens that no workload uses


def layout_of(options: Options) -> Layout:
    """One device pool, host pool and group per window; the layer pattern is the option's."""
    pools = []
    for window in options.windows:
        primary, host = options.pool_blocks(window)
        pools.append(Pool(primary_pool(window), primary))
        if host:
            pools.append(Pool(host_pool(window), host, "host"))
    groups = tuple(
        Group(
            group_name(window),
            primary_pool(window),
            options.tokens_per_block,
            window=window if window < options.max_seq_len else None,
        )
        for window in options.windows
    )
    pattern = options.max_attention_window or (options.max_seq_len,)
    layers = tuple(Layer(group_name(min(window, options.max_seq_len))) for window in pattern)
    return Layout(tuple(pools), groups, layers)


@dataclass(slots=True)
class Iteration:
    """What the last Step was made of, for tests and recordings."""

    capacity: Capacity
    batch: MicroBatch
    estimates: dict[str, int] = field(default_factory=dict)
    planned: list[tuple[str, int]] = field(default_factory=list)
    admissions: list[Admission] = field(default_factory=list)
    needed_tokens: int = 0
    shed: int = 0


class Engine:
    """A pure planner with one Step in flight."""

    depth = 1

    def __init__(self, options: Options) -> None:
        self.options = options
        self.layout = layout_of(options)
        self.num_drafts = options.max_draft_len
        self.journal = Journal()
        self.manager = KVCacheManager(options, self.journal)
        self.estimator = Estimator(self.manager, options.max_num_tokens)
        self._sliding = any(manager.sliding for manager in self.manager.windows)
        self.last: Iteration | None = None
        """The last planned iteration."""
        self.active: list[LlmRequest] = []
        self._intake = Intake(options)
        self._microbatch = MicroBatchScheduler(
            options.max_num_tokens,
            options.max_batch_size,
            options.context_chunking_policy if options.enable_chunked_prefill else None,
            options.tokens_per_block,
        )
        self._drafts: dict[str, tuple[int, ...]] = {}
        self._intruders: list[tuple[Seq, bool]] = []
        self._waiting_intruders: dict[str, Seq] = {}
        self._rows: list[LlmRequest] = []
        self._in_flight = False
        self._number = 0
        self._next_seq = 0

    # -- protocol ---------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Queues a request; raises ``Refused`` if it could never be scheduled."""
        made = self._intake.request(request, self._take_seq())
        self._refuse(made)
        self.active.append(made)
        intruder = request.options.get("intruder_before_add")
        if intruder:
            self._waiting_intruders[made.id] = Seq.virtual(_PRIVATE, int(intruder))

    def abort(self, request_id: str, now: float) -> None:
        """Drops a request; what it computed stays findable (RULES 11b)."""
        self.manager.set_now(now * 1000)
        for request in self.active:
            if request.id == request_id:
                self.active.remove(request)
                self._drafts.pop(request_id, None)
                self._waiting_intruders.pop(request_id, None)
                if self.manager.sequence(request):
                    self.manager.remove_sequence(request)
                self.journal.event(Event("abort", request=request_id))
                return

    def step(self, now: float) -> Step | None:
        """One iteration up to its forward pass."""
        if self._in_flight:
            return None
        self.journal.take_facts()
        self.manager.set_now(now * 1000)
        self.last = iteration = self._schedule()
        if not iteration.batch.context and not iteration.batch.decoding:
            return None
        handoffs = self._prepare(iteration)
        rows = self._plan_rows(iteration.batch)
        self._in_flight = True
        return self._step(rows, handoffs)

    def complete(self, result: StepResult, now: float) -> None:
        """Moves prompts and outputs on, stores context blocks, releases what is finished."""
        if not self._in_flight:
            return  # a drained Step has no rows
        assert result.number == self._number - 1
        self.manager.set_now(now * 1000)
        self._in_flight = False
        active = {id(request) for request in self.active}
        alive = [
            (request, row) for request, row in zip(self._rows, result.rows) if id(request) in active
        ]
        finished = [request for request, row in alive if self._advance(request, row)]
        for request in finished:
            self.active.remove(request)
            self._drafts.pop(request.id, None)
            self.manager.remove_sequence(request)
            self.journal.event(Event("finish", request=request.id))

    def probe(self, request: Request) -> Match:
        """What a look-up of the first P - 1 tokens would find now."""
        made = self._intake.request(request, -1, keep=False)
        matches = []
        cap: int | None = None
        for manager in self.manager.windows:
            matches.append(look_up(manager, made, self.options, cap))
            cap = matches[-1].walk.tokens
        return probed(made, matches)

    def next_event(self) -> float | None:
        """Nothing: expired priorities end at the next iteration only (RULES 7)."""
        return None

    def drain(self) -> Step | None:
        """Operations and events that no Step has carried yet."""
        return None if self.journal.empty or self._in_flight else self._step([], ())

    def observe(self) -> Mapping[str, Any]:
        """Free queues per window and level, reference counts."""
        return {
            "queues": {
                manager.window: (manager.policy.queues(PRIMARY), manager.policy.queues(HOST))
                for manager in self.manager.windows
            },
            "references": {m.window: list(m.refs.counts) for m in self.manager.windows},
        }

    def number_salts(self, salts: Sequence[str]) -> None:
        """Numbers salts in this order, before any appears; matters for ties only."""
        for salt in salts:
            self._intake.salt_id(salt)

    # -- iteration --------------------------------------------------------------------------

    def intrude(self, tokens: Seq, hold: bool = True) -> None:
        """Before the next batch is added, a prompt is allocated, and released without storing.

        Nothing upstream does; it makes cached blocks vanish between estimate and truth. ``hold``
        releases it after the batch was added, else before.
        """
        self._intruders.append((tokens, hold))

    def _schedule(self) -> Iteration:
        for request in self.active:
            request.drafts = len(self._drafts.get(request.id, ()))
        capacity = guaranteed_no_evict(self.active, self.manager, self.estimator)
        batch = self._microbatch.schedule(capacity.fitting)
        for request in capacity.deferred:
            self.journal.event(Event("defer", request=request.id, rule="9"))
        return Iteration(
            capacity,
            batch,
            {request.id: request.estimate for request in self.active if request.estimate},
            [(request.id, request.chunk) for request in batch.context],
        )

    def _prepare(self, iteration: Iteration) -> tuple[Handoff, ...]:
        """Adds first chunks, makes room, ends expired priorities, corrects the budget."""
        batch = iteration.batch
        new = [request for request in batch.context if not self.manager.sequence(request)]
        estimates = {request.id: request.estimate for request in new}
        held = self._let_intruders_in(new)
        iteration.admissions = self.manager.add_sequence_batch(new)
        for intruder in held:
            self.manager.remove_sequence(intruder, store=False)
        for admission in iteration.admissions:
            for _ in range(self.options.num_extra_kv_tokens):
                self.manager.add_token(admission.request)
        for request in batch.decoding:
            for _ in range(1 + request.drafts):
                self.manager.add_token(request)
        self.manager.refresh_blocks()
        if batch.context:
            iteration.needed_tokens = forward_tokens(batch.context, batch.decoding)
        iteration.shed = fit_token_budget(
            batch.context,
            batch.decoding,
            self.options.max_num_tokens,
            self.options.tokens_per_block,
            self.options.enable_chunked_prefill,
        )
        batch.context.sort(key=lambda request: request.last_chunk)
        return tuple(
            answer(
                admission,
                self.manager.sequence(admission.request),
                self._visible(admission.request, admission.request.position),
                self.options,
                estimates[admission.request.id],
            )
            for admission in iteration.admissions
        )

    def _let_intruders_in(self, new: Sequence[LlmRequest]) -> list[LlmRequest]:
        """Allocates the intruders that are due; returns those still to be released."""
        self._intruders += [
            (self._waiting_intruders.pop(request.id), False)
            for request in new
            if request.id in self._waiting_intruders
        ]
        held = []
        for tokens, hold in self._intruders:
            size, seq = self.options.tokens_per_block, self._take_seq()
            intruder = LlmRequest(f"intruder {seq}", tokens, 0, size, seqs=(seq,))
            self.manager.add_sequence_batch([intruder])
            if hold:
                held.append(intruder)
            else:
                self.manager.remove_sequence(intruder, store=False)
        self._intruders.clear()
        return held

    def _plan_rows(self, batch: MicroBatch) -> list[Row]:
        rows = []
        for request in batch.context:
            start, stop = request.position, request.position + request.chunk
            tokens = request.tokens.slice(start, stop)
            emits = 1 if request.last_chunk and request.max_new else 0
            spans = self._spans(request, start)
            rows.append(Row(request.seqs[0], start, tokens, emits=emits, spans=spans))
        for request in batch.decoding:
            start = len(request.tokens) - 1
            tokens = request.tokens.slice(start, start + 1)
            for draft in self._drafts.get(request.id, ()):
                tokens.append(draft)
            spans = self._spans(request, start)
            row = Row(request.seqs[0], start, tokens, request.drafts, 1 + request.drafts, spans)
            rows.append(row)
        self._rows = [*batch.context, *batch.decoding]
        return rows

    def _visible(self, request: LlmRequest, start: int) -> list[int]:
        """Per window the end of the holes that a row from ``start`` on would see, or 0."""
        edges = []
        for manager, sequence in zip(self.manager.windows, self.manager.sequence(request)):
            edge = 0
            if manager.sliding and (sequence.traversed or sequence.removed):
                edge = sequence.hole_edge() * manager.size
                if edge <= start - manager.window + 1:
                    edge = 0
            edges.append(edge)
        return edges

    def _spans(self, request: LlmRequest, start: int) -> Spans | None:
        if not self._sliding:
            return None
        visible = self._visible(request, start)
        if not any(visible):
            return None
        return Spans((start,), (start,) * len(visible), tuple(visible))

    def _advance(self, request: LlmRequest, row: RowResult) -> bool:
        """Takes one row's result; True if the request is finished."""
        if request.in_context:
            request.position += request.chunk
            request.chunk = 0
            if not request.in_context:
                self._append(request, row)
            self.manager.store_context(request)
        else:
            self.manager.rewind(request, request.drafts - (len(row.tokens) - 1))
            self._append(request, row)
        return len(request.tokens) - request.prompt_len >= request.max_new and (
            not request.in_context
        )

    def _append(self, request: LlmRequest, row: RowResult) -> None:
        for token in row.tokens:
            request.tokens.append(token)
        # Upstream gives drafts room that was not reserved; none is wanted behind the last output.
        left = request.max_new - (len(request.tokens) - request.prompt_len)
        self._drafts[request.id] = row.drafts[: max(0, left - 1)]

    # -- small pieces -----------------------------------------------------------------------

    def _step(self, rows: Sequence[Row], handoffs: tuple[Handoff, ...]) -> Step:
        ops, events = self.journal.take()
        step = Step(
            number=self._number,
            iteration=self._number,
            known_through=self._number - 1,
            ops=ops,
            rows=tuple(rows),
            handoffs=handoffs,
            events=events,
        )
        self._number += 1
        return step

    def _take_seq(self) -> int:
        self._next_seq += 1
        return self._next_seq - 1

    def _refuse(self, request: LlmRequest) -> None:
        """Limits that no waiting can lift."""
        options, prompt = self.options, request.prompt_len
        if prompt < 1:
            raise Refused(f"{request.id}: an empty prompt")
        if prompt + request.max_new > options.max_seq_len:
            raise Refused(
                f"{request.id}: {prompt} prompt and {request.max_new} output tokens exceed"
                f" max_seq_len {options.max_seq_len}"
            )
        chunks = options.enable_chunked_prefill and (
            options.max_num_tokens >= options.tokens_per_block
        )
        if prompt > options.max_num_tokens and not chunks:
            raise Refused(
                f"{request.id}: {prompt} prompt tokens exceed max_num_tokens"
                f" {options.max_num_tokens} without chunked prefill (enable_chunked_prefill)"
            )
        for manager, blocks in zip(self.manager.windows, self.estimator.without_reuse(request)):
            if blocks > manager.num_primary:
                raise Refused(
                    f"{request.id}: needs {blocks} blocks of window {manager.window}, the pool has"
                    f" {manager.num_primary}"
                )
