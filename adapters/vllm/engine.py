"""vLLM's scheduler and KV-cache manager as a planner that emits Steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from handoff.errors import HandoffError, Refused, Unsupported
from handoff.index.spans import LATE, Seq
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
    Step,
    StepResult,
)

from .allocate import POOL, KVCache
from .answers import answer, probe, spans
from .options import VllmOptions
from .scheduler import Batch, Scheduled, Scheduler
from .sizes import Sizes
from .state import Outbox, RequestState
from .states import state_uses

__all__ = ["VllmEngine"]


_LEFT_OUT_OPTIONS = frozenset({"structured_outputs", "pooling_params", "resumable"})
"""Request options of kinds that are left out: grammar masks, pooling models, streaming sessions."""


class VllmEngine:
    """One vLLM engine core: submit, step, complete (v1/engine/core.py)."""

    def __init__(self, options: VllmOptions) -> None:
        self.options = options
        self.sizes = sizes = Sizes.of(options)
        self.out = Outbox()
        self.cache = KVCache(options, sizes, self.out)
        self.scheduler = Scheduler(options, sizes, self.cache, self.out)
        self.requests: dict[str, RequestState] = {}
        self.layout = _layout(options, sizes)
        self.depth = sizes.batches
        self.num_drafts = sizes.num_drafts
        self.stats = self.scheduler.stats
        self.batch = Batch()
        """What the last ``schedule()`` decided."""
        self._in_flight: deque[tuple[int, list[Scheduled]]] = deque()
        self._num_steps = 0
        self._completed = -1
        self._num_submitted = 0

    # -- requests ---------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request; ``Refused`` if it is longer than the model or can never fit the pool.

        ``Unsupported`` for a kind of request that is left out.
        """
        for option in _LEFT_OUT_OPTIONS & request.options.keys():
            raise Unsupported(f"{request.id}: {option} is not modelled")
        length = len(request.prompt)
        limit = self.options.max_model_len
        if length == 0:
            raise Refused(f"{request.id}: the prompt is empty")
        if length > limit:
            raise Refused(f"{request.id}: {length:,} prompt tokens, max_model_len is {limit:,}")
        outputs = max(request.max_tokens - 1, 0)  # the last one is never computed
        most = min(length + outputs + self.sizes.lookahead, limit)
        blocks = self.cache.least_blocks(length, most)
        if blocks > self.options.num_gpu_blocks - 1:
            raise Refused(
                f"{request.id}: needs {blocks:,} blocks, the pool has"
                f" {self.options.num_gpu_blocks - 1:,}"
            )
        self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Queue a request without the front door's checks (``Scheduler.add_request``)."""
        state = RequestState(
            request, self.cache.keys.keys(request), self._num_submitted, len(self.sizes.groups)
        )
        self._num_submitted += 1
        self.requests[request.id] = state
        self.scheduler.waiting.add(state)

    def abort(self, request_id: str, now: float) -> None:
        """Drop a request wherever it is; its keys stay."""
        state = self.requests.pop(request_id, None)
        if state is not None:
            self.scheduler.finish(state, "abort")

    def reset(self, *, running: bool = False) -> bool:
        """``reset_prefix_cache``: forget all keys; False while blocks are held (RULES 13).

        ``running`` preempts all running requests first; if even then blocks are held, by a load
        under way, that is a ``HandoffError``, as upstream raises.
        """
        if running:
            self._drop_in_flight()
        done = self.scheduler.reset(running=running)
        if done:
            self.out.events.append(Event("reset", rule="13"))
        elif running:
            raise HandoffError("the prefix cache cannot be reset: a KV load holds blocks")
        return done

    def act(self, action: str, options: dict[str, object], now: float) -> None:
        """Actions beside requests: ``reset_prefix_cache``."""
        if action == "reset_prefix_cache":
            self.reset(running=bool(options.get("reset_running_requests")))
        else:
            raise Unsupported(f"vLLM knows no action {action!r}; it knows reset_prefix_cache")

    def _drop_in_flight(self) -> None:
        """Outputs in flight of running requests will not be delivered (RULES 13)."""
        for _, rows in self._in_flight:
            for row in rows:
                if row.state.status == "running":
                    row.dropped = True
                    row.state.batches = row.state.in_flight = 0

    # -- steps ------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """Plan the next Step; ``None`` if no request can run and no load is under way."""
        batch = self.batch = self.scheduler.schedule()
        connector = self.scheduler.connector
        if not batch.rows and not (connector and connector.is_loading):
            return None
        return self._emit(batch)

    def drain(self) -> Step | None:
        """A last Step for operations still owed."""
        return self._emit(Batch()) if self.out.ops else None

    def _emit(self, batch: Batch) -> Step:
        number = self._num_steps
        self._num_steps += 1
        handoffs = tuple(answer(self.cache, row) for row in batch.rows if row.hit is not None)
        rows = tuple(self._row(row) for row in batch.rows)
        ops, events = self.out.take()
        self._in_flight.append((number, batch.rows))
        return Step(number, number, self._completed, ops, rows, handoffs, events)

    def _row(self, row: Scheduled) -> Row:
        state = row.state
        tokens = self._content(row)
        emits = 1 + len(row.drafts) if row.samples else 0
        states = state_uses(self.cache, row) if self.cache.has_states else ()
        shape = spans(self.sizes, state, row.start)
        return Row(row.seq, row.start, tokens, len(row.drafts), emits, shape, states)

    @staticmethod
    def _content(row: Scheduled) -> Seq:
        """Content ids of a row; ``LATE`` for what steps in flight will bring."""
        known = row.state.known
        if row.tokens == 1 and row.start < known:
            return Seq((row.state.tokens[row.start],))
        stop = row.start + row.tokens
        tokens = row.state.tokens.slice(row.start, min(stop, known))
        late = row.tokens - len(tokens) - len(row.drafts)
        for token in (*(LATE,) * late, *row.drafts):
            tokens.append(token)
        return tokens

    def serve_alone(self, request: Request) -> Handoff:
        """Look a request up, allocate its whole prompt and free it again; the cache half alone.

        What a trace replay without a scheduler does: one request after the other, no outputs.
        """
        cache = self.cache
        state = RequestState(request, cache.keys.keys(request), 0, len(self.sizes.groups))
        hit = cache.find(state)
        state.hit, state.served = hit, hit.tokens
        row = Scheduled(state, hit.tokens, state.known - hit.tokens, (), True, hit)
        if not cache.allocate(state, row.tokens, hit=hit):
            raise Refused(f"{request.id}: {state.known:,} tokens do not fit the pool")
        cache.end_of_schedule()
        state.computed, row.seq = state.known, state.seq
        step = self._emit(Batch([row]))
        self._in_flight.pop()
        cache.free(state)
        return step.handoffs[0]

    # -- results ----------------------------------------------------------------------------

    def complete(self, result: StepResult, now: float) -> None:
        """Process the output of the oldest Step: accept, insert, finish (RULES 6, 7b, 9, 13)."""
        number, rows = self._in_flight.popleft()
        assert result.number == number, f"result of Step {result.number}, expected {number}"
        self._completed = number
        for row, answered in zip(rows, result.rows, strict=True):
            self._process(row, answered)
        if self.scheduler.connector:
            for transfer in result.arrived:
                self.scheduler.connector.arrive(transfer)

    def _process(self, row: Scheduled, answered: RowResult) -> None:
        state = row.state
        if row.dropped:
            return
        state.batches -= 1
        state.in_flight -= row.tokens
        if self.requests.get(state.id) is not state:
            return
        was_running = state.status == "running"
        accepted = answered.tokens
        if row.samples and row.drafts and state.computed > 0:
            rejected = len(row.drafts) + 1 - max(len(accepted), 1)
            state.computed -= rejected
            if state.placeholders:
                state.placeholders -= rejected
        stopped = False
        limit, wanted = self.options.max_model_len, state.request.max_tokens
        taken = 0
        for token in accepted:
            state.append(token)
            taken += 1
            if state.num_outputs >= wanted or state.known >= limit:
                stopped = True
                break
        if row.samples and not accepted:
            stopped = True  # nothing was sampled: the request wants no more
        if self.options.is_async and was_running and row.samples:
            state.placeholders -= taken
            self.cache.insertion.insert(state, state.computed - state.placeholders)
        if taken and state.prefill and state.id not in self.stats.prefill:
            stats = state.prefill
            stats.created = self.cache.created(state, stats.local + stats.external)
            self.stats.prefill[state.id] = stats
        if stopped:
            del self.requests[state.id]
            self.scheduler.finish(state, "finish")
        elif not self.options.is_async and row.samples:
            state.drafts = list(answered.drafts)

    # -- looking in -------------------------------------------------------------------------

    def probe(self, request: Request) -> Match:
        """What a look-up would find now; changes nothing."""
        return probe(self.cache, request)

    def block_hashes(self, request: Request, seed: str | None = None) -> list[bytes]:
        """The prompt's real block hashes under ``prefix_caching_hash_algo`` (RULES 3).

        ``seed`` is ``PYTHONHASHSEED``. A LoRA's path is read from the request's option ``lora``.
        ``Unsupported`` for prompt embeddings: a request holds their identity, not their bytes.
        """
        from .hashes import block_hashes

        if request.options.get("prompt_embeds") is not None:
            raise Unsupported("hashes of prompt embeddings need the tensor's bytes")
        lora = None
        if request.lora is not None:
            lora = (request.lora, str(dict(request.options.get("lora") or {}).get("path", "")))
        return list(
            block_hashes(
                request.prompt.tokens(),
                self.sizes.hash_block,
                self.options.prefix_caching_hash_algo,
                seed,
                lora=lora,
                images=request.images,
                salt=request.salt,
            )
        )

    def next_event(self) -> float | None:
        """Nothing happens by itself in vLLM."""
        return None

    def observe(self) -> Mapping[str, Any]:
        """Free queue front first, keyed blocks, reference counts above 0, tables."""
        pool = self.cache.pool
        return {
            "free_queue": list(pool.queue),
            "keyed": [block for block, key in enumerate(pool.primary) if key],
            "counts": {b: n for b, n in enumerate(pool.holders.counts) if n},
            "tables": {
                state.id: [list(t) for t in state.tables] for state in self.requests.values()
            },
        }


def _layout(options: VllmOptions, sizes: Sizes) -> Layout:
    groups = tuple(
        Group(
            spec.name,
            POOL,
            spec.block_size,
            kind="state" if spec.type == "mamba" else "kv",
            window=spec.window if spec.type in ("swa", "swa_mla_replay") else None,
            local=spec.chunk or None,
        )
        for spec in sizes.groups
    )
    layers = tuple(Layer(group.name) for group in groups)
    return Layout((Pool(POOL, options.num_gpu_blocks),), groups, layers)
