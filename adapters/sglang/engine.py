"""The planner: requests in, Steps out, in SGLang's own order.

Joins cache and scheduler and writes down what they did: operations, rows, handoffs, events. All
decisions are in ``scheduler`` and ``cache``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from handoff.adapter import check_asked
from handoff.errors import Refused, Unsupported
from handoff.index.spans import LATE, Seq
from handoff.types import (
    NULL,
    Close,
    Event,
    Handoff,
    Layout,
    Match,
    Request,
    Row,
    StateUse,
    Step,
    StepResult,
)

from . import LEFT_OUT
from .cache import PrefixCache
from .handoff import build_handoff, ring_spans
from .journal import Journal
from .layout import STATE, build_layout
from .options import Options, RequestOptions
from .req import Req
from .scheduler import Batch, Scheduler

__all__ = ["Engine"]


SAMPLED_LATER = Seq([LATE])
"""The row of a decode step whose token no answered Step has sampled yet."""


def _refuse(options: Options) -> None:
    """Raise ``Unsupported`` for what the adapter leaves out."""
    reasons = {
        "speculative top-k above 1": options.speculative_eagle_topk > 1,
        "overlap with drafts": options.speculative_num_steps is not None and options.overlap,
        "drafts with states": options.speculative_num_steps is not None
        and options.attention == "mamba",
        "HiCache with states": options.enable_hierarchical_cache
        and options.attention in ("mamba", "pure_swa", "swa_ring"),
    }
    for name, asked in reasons.items():
        if asked:
            raise Unsupported(f"SGLang adapter: {name} is left out ({LEFT_OUT[name]})")


class Engine:
    """Guarantees Steps whose tables and rows are those of an SGLang server with these options."""

    def __init__(self, options: Options, journal: Journal | None = None) -> None:
        _refuse(options)
        self.options = options
        self.layout: Layout = build_layout(options)
        self.depth = 2 if options.overlap else 1
        speculative = options.speculative_num_steps is not None
        self.num_drafts = options.speculative_num_draft_tokens - 1 if speculative else 0
        self.journal = journal if journal is not None else Journal()
        self.cache = PrefixCache(options, self.journal)
        self.scheduler = Scheduler(options, self.cache)
        self.requests: dict[str, Req] = {}
        """Requests that wait or run, by id."""
        self._batches: deque[tuple[int, Batch, list[int]]] = deque()
        self._arrivals = 0
        self._number = 0
        self._completed = -1

    # -- requests -------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request; refuses what cannot be served even alone."""
        if not len(request.prompt):
            raise Refused(f"{request.id}: the prompt is empty")
        check_asked(RequestOptions, request.options, request.id)
        if not request.max_tokens:
            raise Refused(f"{request.id}: SGLang generates at least one token")
        options = self.options
        wanted = min(request.max_tokens, options.clip_max_new_tokens_estimation)
        need = len(request.prompt) + wanted + options.page_size
        if need >= options.max_total_tokens:
            raise Refused(
                f"{request.id}: needs {need} tokens with its page, max_total_tokens is"
                f" {options.max_total_tokens}: it would wait for ever"
            )
        most = len(request.prompt) + request.max_tokens - 1  # the last token has no KV
        if options.speculative_num_steps is not None:
            most += options.verify_reserve - 1
        if -(-most // options.page_size) > options.max_total_tokens // options.page_size:
            raise Refused(
                f"{request.id}: its prompt and {request.max_tokens} outputs take {most} slots,"
                f" max_total_tokens is {options.max_total_tokens}"
            )
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Queue a request unasked."""
        req = Req(request, self._arrivals)
        self._arrivals += 1
        self.requests[request.id] = req
        self.scheduler.enqueue(req)

    def abort(self, request_id: str, now: float) -> None:
        """Drop a request wherever it is: private KV goes back, nothing is inserted (rule 5)."""
        req = self.requests.get(request_id)
        if req is None or req.finished:
            return
        self.scheduler.drop(req)
        self.cache.events.append(Event("abort", seq=req.sequence, request=req.id, rule="5"))
        if req.sequence is not None:
            self.cache.ops.append(Close(req.sequence))
        del self.requests[request_id]

    def act(self, action: str, options: dict[str, object], now: float) -> None:
        """``flush_cache`` empties tree and pools; only an idle server does it."""
        if action != "flush_cache":
            raise Unsupported(f"SGLang knows no action {action!r}; it has flush_cache")
        if self.requests or self._batches:
            raise Unsupported("flush_cache needs an idle server")
        old = self.cache
        self.cache = PrefixCache(self.options, self.journal)
        self.cache.ops, self.cache.num_sequences = old.ops, old.num_sequences
        self.cache.events = [*old.events, Event("reset", rule="6")]
        self.scheduler = Scheduler(self.options, self.cache)

    def serve_alone(self, request: Request) -> Handoff:
        """Match, take the whole prompt, insert, release: the cache half without a scheduler.

        No Steps are planned; ``Refused`` if the prompt does not fit after evicting everything.
        """
        req = Req(request, self._arrivals)
        cache = self.cache
        found = cache.lookup.candidate(req)
        req.grant(found, found.hit)
        cache.hold(req, found.end)
        cache.share(req)
        need = cache.pages(req.known) * cache.page - found.hit
        cache.room.make_room(need)
        if not cache.room.has_room(need, need):
            cache.give_back(req)
            raise Refused(f"{request.id}: {req.known} tokens do not fit the pool")
        cache.take_state(req)
        cache.grow(req, req.known)
        req.committed = req.known
        handoff = build_handoff(self.options, req)
        cache.release(req, insert=True)
        cache.ops.clear()
        cache.events.clear()
        return handoff

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.requests)

    # -- planning -------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """Plan the next forward pass."""
        if len(self._batches) >= self.depth:
            return None
        batch = self.scheduler.next_batch()
        if batch is None:
            return None
        handoffs = tuple(self._open(req) for req in batch.admitted)
        rows = tuple(
            self._row(req, span, batch) for req, span in zip(batch.reqs, batch.spans, strict=True)
        )
        step = self._emit(rows, handoffs)
        self._batches.append((step.number, batch, [row.seq for row in rows]))
        return step

    def drain(self) -> Step | None:
        """Operations still owed, as a last Step without rows."""
        if self.cache.ops or self.cache.events:
            return self._emit((), ())
        return None

    def next_event(self) -> float | None:
        """Nothing happens by itself."""
        return None

    def _emit(self, rows: tuple[Row, ...], handoffs: tuple[Handoff, ...]) -> Step:
        cache = self.cache
        step = Step(
            number=self._number,
            iteration=self._number,
            known_through=self._completed,
            ops=tuple(cache.ops),
            rows=rows,
            handoffs=handoffs,
            events=tuple(cache.events),
        )
        cache.ops.clear()
        cache.events.clear()
        self._number += 1
        return step

    def _open(self, req: Req) -> Handoff:
        handoff = build_handoff(self.options, req)
        if req.reported is None:
            req.reported = req.hit  # later admissions add nothing (rule 4)
        req.attempt += 1
        return handoff

    def _row(self, req: Req, span: tuple[int, int], batch: Batch) -> Row:
        start, stop = span
        assert req.sequence is not None
        if self.num_drafts and not batch.prefill:
            return self._verify_row(req, start, stop)
        spans = None
        if req.ring is not None:
            first = req.ring_start if req in batch.admitted else start
            spans = ring_spans(self.options, req, first, start)
            start = first
        tokens = SAMPLED_LATER if start >= req.known else req.seq.slice(start, stop)
        states: tuple[StateUse, ...] = ()
        if req.state is not None:
            load = NULL if start == 0 else req.state
            states = (StateUse(STATE, load, ((stop, req.state),)),)
        emits = 0 if req is batch.chunked else 1
        return Row(req.sequence, start, tokens, 0, emits, spans, states)

    def _verify_row(self, req: Req, start: int, stop: int) -> Row:
        """The last output and the drafter's guesses; missing guesses are padding."""
        assert req.sequence is not None and req.known == start + 1
        tokens = req.seq.slice(start, start + 1)
        guesses = req.drafts[: stop - start - 1]
        for token in guesses + (LATE,) * (stop - start - 1 - len(guesses)):
            tokens.append(token)
        return Row(req.sequence, start, tokens, self.num_drafts, stop - start)

    # -- results --------------------------------------------------------------------------------

    def complete(self, result: StepResult, now: float) -> None:
        """Take the answer to the oldest batch: outputs, checkpoints, finished requests."""
        self._completed = result.number
        if not self._batches or self._batches[0][0] != result.number:
            return  # a drained Step: operations only
        _, batch, sequences = self._batches.popleft()
        speculative = bool(self.num_drafts) and not batch.prefill
        if speculative:
            self.journal.verify(
                [
                    (req, start, len(answer.tokens), req.allocated)
                    for req, (start, _), answer in zip(
                        batch.reqs, batch.spans, result.rows, strict=True
                    )
                ]
            )
        self.cache.room.hold_frees()
        finished: list[Req] = []
        answers = zip(batch.reqs, batch.spans, sequences, result.rows, strict=True)
        for index, (req, (_, stop), sequence, answer) in enumerate(answers):
            if req.sequence != sequence or req.finished or req is batch.chunked:
                continue  # retracted, stopped before, or in mid-prompt
            self.scheduler.emitted(req, answer.tokens, verified=speculative)
            req.drafts = answer.drafts
            if req.finished:
                self.cache.release(req, insert=True)
                self._close(req)
                finished.append(req)
            elif index < len(batch.prefill):
                self.cache.checkpoint(req, stop)
        for req in finished:
            self.journal.finish(req)
        self.cache.room.release_frees()

    def _close(self, req: Req) -> None:
        assert req.sequence is not None
        self.cache.ops.append(Close(req.sequence))
        self.cache.events.append(Event("finish", seq=req.sequence, request=req.id))
        self.requests.pop(req.id, None)

    # -- looking --------------------------------------------------------------------------------

    def probe(self, request: Request) -> Match:
        """What a request would hit now; changes nothing."""
        return self.cache.lookup.probe(Req(request, self._arrivals))

    def observe(self) -> Mapping[str, Any]:
        """Tree, free lists and queue."""
        return {
            "waiting": [req.id for req in self.scheduler.waiting],
            "running": [req.id for req in self.scheduler.running],
            "free": self.cache.slots.ids().tolist(),
            "evictable": self.cache.tree.evictable,
            "protected": self.cache.tree.protected,
            "tree": [
                (node.start, node.stop, node.lock, node.hits, node.priority, node.time)
                for node in self.cache.tree.nodes()
            ],
        }
