"""Invariants over random streams: references, queues, budgets, pure probes, sound Steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from handoff.adapters.tensorrt_llm.buckets import BucketOrder
from handoff.adapters.tensorrt_llm.counters import counters
from handoff.adapters.tensorrt_llm.engine import Engine
from handoff.adapters.tensorrt_llm.manager import KVCacheManager
from handoff.adapters.tensorrt_llm.options import Options
from handoff.adapters.tensorrt_llm.sequence import WindowSequence
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.adapter import load, make_options
from handoff.conformance.contract import random_stream, serve
from handoff.errors import Refused
from handoff.index.spans import Seq
from handoff.types import Request, RowResult, Step, StepResult

VARIANTS: list[dict[str, Any]] = [
    {},
    {"enable_partial_reuse": False, "blocks_in_secondary_pool": 12},
    {"copy_on_partial_reuse": False},
    {"max_attention_window": (16,)},
    {"max_attention_window": (12, 40, 400)},
    {"enable_chunked_prefill": True, "max_num_tokens": 24, "blocks_in_secondary_pool": 9},
    {
        "enable_chunked_prefill": True,
        "max_num_tokens": 24,
        "context_chunking_policy": "EQUAL_PROGRESS",
        "max_draft_len": 3,
    },
    {"max_draft_len": 2, "max_attention_window": (16, 400)},
]


def engine_of(values: dict[str, Any], blocks: int = 64) -> Engine:
    base = {"tokens_per_block": 4, "max_seq_len": 400, "blocks_in_primary_pool": blocks}
    options = make_options(load("tensorrt_llm"), {**base, **values})
    assert isinstance(options, Options)
    return Engine(options)


def check_blocks(manager: KVCacheManager) -> None:
    """References are those of open sequences, idle blocks stand in exactly one queue."""
    sequences = list(manager.sequences.values())
    for at, window in enumerate(manager.windows):
        held: Counter[int] = Counter()
        for sequence in sequences:
            found = sequence.windows[at]
            held.update(block.ident for block in found.blocks if block is not None)
        window.refs.check(dict(held))
        queued = [
            ident
            for level in (0, 1)
            for ids in window.policy.queues(level).values()
            for ident in ids
        ]
        assert len(queued) == len(set(queued)), "a block stands in two queues"
        assert set(queued) == {b.ident for b in window.blocks if not held[b.ident]}
        assert {b.ident for b in window.blocks if b.queued} == set(queued)
        slots = {(block.level, block.slot) for block in window.blocks}
        assert len(slots) == len(window.blocks), "two blocks share a slot"
        assert all(window.blocks[ident].level == 0 for ident in held), "a held block is on host"
        for block in window.blocks:
            if block.node is not None:
                assert block.node.values[window.window] is block and block.key == block.node.key


class Watch:
    """A sink that checks blocks and the token budget after every Step and result."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def step(self, step: Step) -> None:
        options = self._engine.options
        tokens = sum(len(row.tokens) for row in step.rows)
        last = self._engine.last
        if options.enable_chunked_prefill and last is not None and last.batch.context:
            floor = sum(4 for _ in last.batch.context)  # nothing is shortened below a block
            assert tokens <= max(options.max_num_tokens, floor + len(last.batch.decoding) * 4)
        for handoff, admission in zip(step.handoffs, last.admissions if last else ()):
            request = admission.request
            assert counters(handoff) == {
                "reusedBlocks": request.reused,
                "missedBlocks": request.missed,
            }
        check_blocks(self._engine.manager)

    def complete(self, result: StepResult) -> None:
        check_blocks(self._engine.manager)


@pytest.mark.parametrize("values", VARIANTS, ids=lambda values: "-".join(values) or "default")
@given(seed=st.integers(0, 10**6), concurrent=st.booleans(), blocks=st.sampled_from([60, 90]))
@settings(max_examples=4)
def test_streams_are_sound(
    values: dict[str, Any], seed: int, concurrent: bool, blocks: int
) -> None:
    engine = engine_of(values, blocks)
    arrivals = random_stream(seed, concurrent=concurrent, longest=90)
    outcome = serve(engine, arrivals, [Watch(engine)], seed)
    assert len(outcome.finished) + len(outcome.refused) == len(arrivals)
    check_blocks(engine.manager)
    for window in engine.manager.windows:
        assert window.refs.num_held == 0, "something is still held when all is done"


def fingerprint(engine: Engine) -> Any:
    """All a later call could see."""
    manager = engine.manager
    return (
        engine.observe(),
        [
            (b.ident, b.level, b.slot, b.key, b.full, b.priority, b.duration, id(b.node))
            for window in manager.windows
            for b in window.blocks
        ],
        manager.free_blocks(),
        [(request.id, request.estimate, request.chunk) for request in engine.active],
    )


@given(seed=st.integers(0, 10**6), variant=st.sampled_from(VARIANTS))
@settings(max_examples=15)
def test_a_probe_changes_nothing_and_tells_the_truth(seed: int, variant: dict[str, Any]) -> None:
    engine = engine_of(variant)
    requests = [a.request for a in random_stream(seed, concurrent=False, longest=60)]
    for request in requests:
        assert request is not None
        try:
            engine.submit(request, 0.0)
        except Refused:
            continue
        before = fingerprint(engine)
        match = engine.probe(request)
        assert fingerprint(engine) == before
        hit: int | None = None
        while (step := engine.step(0.0)) is not None:
            for handoff in step.handoffs:
                hit = handoff.hit_tokens
                assert (match.raw_tokens, match.deductions) == (
                    handoff.raw_tokens,
                    handoff.deductions,
                )
            rows = (RowResult(r.seq, (7,) if r.emits else ()) for r in step.rows)
            engine.complete(StepResult(step.number, tuple(rows)), 0.0)
        assert hit == match.hit_tokens


def steps_of(engine: Engine, seed: int, aborts: bool) -> list[Step]:
    """All Steps of a stream, some of whose requests are dropped halfway."""
    arrivals = random_stream(seed, concurrent=True, longest=60)
    requests = [a.request for a in arrivals if a.request is not None]
    found: list[Step] = []
    for at, request in enumerate(requests):
        engine.submit(request, 0.0)
        for _ in range(3):
            step = engine.step(0.0)
            if step is None:
                break
            found.append(step)
            rows = (RowResult(r.seq, (7,) if r.emits else ()) for r in step.rows)
            engine.complete(StepResult(step.number, tuple(rows)), 0.0)
        if aborts and at % 3 == 2:
            engine.abort(requests[at - 1].id, 0.0)
            check_blocks(engine.manager)
    return found


@given(seed=st.integers(0, 10**6), variant=st.sampled_from(VARIANTS), aborts=st.booleans())
@settings(max_examples=15)
def test_storing_from_the_settled_column_equals_storing_from_the_root(
    seed: int, variant: dict[str, Any], aborts: bool
) -> None:
    quick = steps_of(engine_of(variant), seed, aborts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowSequence, "settle", lambda self, column, node: None)
        slow = steps_of(engine_of(variant), seed, aborts)
    assert quick == slow


class Listed:
    """The map as one plain list, by the words of rule 13."""

    def __init__(self) -> None:
        self.elements: list[int] = []
        self.buckets = 1

    def insert(self, number: int) -> None:
        if len(self.elements) + 1 > self.buckets:
            grown = {1: 13, 13: 29, 29: 59, 59: 127}
            self.buckets = grown[self.buckets]
            old, self.elements = self.elements, []
            for element in old:
                self._place(element)
        self._place(number)

    def _place(self, number: int) -> None:
        same = [at for at, e in enumerate(self.elements) if (e - number) % self.buckets == 0]
        self.elements.insert(same[0] if same else 0, number)


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans(), st.booleans()), max_size=80))
def test_bucket_order_equals_the_plain_list(actions: list[tuple[int, bool, bool]]) -> None:
    plain, order = Listed(), BucketOrder[int](lambda number: number)
    for number, erase, look in actions:
        if number in plain.elements:
            if erase:
                plain.elements.remove(number)
                order.erase(number)
        else:
            plain.insert(number)
            order.insert(number)
        if look:
            assert order.ranked() == plain.elements
    assert order.ranked() == plain.elements


@given(
    prompt_len=st.integers(1, 200),
    hit=st.integers(0, 199),
    chunk=st.integers(1, 200),
)
def test_a_chunk_behind_a_hit_ends_on_a_block_or_the_prompt(
    prompt_len: int, hit: int, chunk: int
) -> None:
    from handoff.adapters.tensorrt_llm.request import LlmRequest

    request = LlmRequest("r", Seq.of(range(prompt_len)), 1, 4)
    hit = min(hit, prompt_len - 1)
    request.chunk = min(max(4, chunk // 4 * 4), prompt_len)  # what a scheduler plans
    request.set_prepopulated(hit)
    stop = request.position + request.chunk
    assert request.position == hit and stop <= prompt_len
    assert stop == prompt_len or stop % 4 == 0
    assert request.chunk > 0


def test_the_same_calls_give_the_same_steps() -> None:
    assert steps_of(engine_of({}), 5, True) == steps_of(engine_of({}), 5, True)


def test_a_request_alone_is_served_whatever_it_holds() -> None:
    engine = engine_of({"enable_chunked_prefill": True, "max_num_tokens": 4})
    engine.submit(Request("r", Seq.of(range(30)), 3), 0.0)
    starts = []
    while (step := engine.step(0.0)) is not None:
        starts += [(row.start, len(row.tokens)) for row in step.rows]
        rows = (RowResult(r.seq, (7,) if r.emits else ()) for r in step.rows)
        engine.complete(StepResult(step.number, tuple(rows)), 0.0)
    assert starts == [*((at, 4) for at in range(0, 28, 4)), (28, 2), (30, 1), (31, 1)]
