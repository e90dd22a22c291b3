"""Every kind of group, hit or cold, chunked, batched, preempted, with drafts, planned ahead."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.engine.truth import TruthCheck
from handoff.index.spans import Seq
from handoff.runner import RunOutcome, run
from handoff.store.tags import TagStore
from handoff.types import Request
from handoff.types.checks import StepChecker
from handoff.workload.arrivals import Arrival, When
from tests.mini import RingEngine

torch.set_num_threads(1)

LAYOUTS = (
    ("full", "full"),
    ("full", "window", "full"),
    ("window", "ring"),
    ("state", "full"),
    ("full", "window", "state", "ring"),
)


def arrivals(shared: int, tails: list[int], outputs: int, lora: bool = False) -> list[Arrival]:
    made = []
    for at, tail in enumerate(tails):
        prompt = Seq([*range(1000, 1000 + shared), *range(2000 + 100 * at, 2000 + 100 * at + tail)])
        when = When() if at == 0 else When("during_decode", "r0", 1 + at % 2)
        made.append(
            Arrival(
                f"r{at}",
                when,
                Request(f"r{at}", prompt, outputs, lora="style" if lora and at == 1 else None),
            )
        )
    return made


def play(
    engine: RingEngine, stream: list[Arrival], acceptance: float
) -> tuple[TruthCheck, RunOutcome]:
    truth, slow = TruthCheck(engine.layout, dtype="float64"), TagStore(engine.layout, every=True)
    sinks = [StepChecker(engine.layout), truth, slow]
    outcome = run(engine, stream, sinks=sinks, acceptance=acceptance)
    truth.finish()
    assert truth.tags is not None  # testing every visible slot of every row finds nothing more
    assert (slow.taint, slow.num_tokens) == (truth.tags.taint, truth.tags.num_tokens)
    return truth, outcome


@pytest.mark.parametrize("kinds", LAYOUTS, ids="-".join)
@pytest.mark.parametrize(("depth", "drafts"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_mechanisms_are_exact(kinds: tuple[str, ...], depth: int, drafts: int) -> None:
    engine = RingEngine(kinds, depth=depth, num_drafts=drafts, preempt=(6,))
    truth, outcome = play(engine, arrivals(21, [5, 4, 9, 2], 9, lora=True), 0.6)
    assert len(outcome.finished) == 4 and truth.tags is not None and not truth.tags.taint
    assert truth.ok and truth.rows >= 4 * 9, truth.worst


@given(
    kinds=st.sampled_from(LAYOUTS),
    shared=st.integers(0, 30),
    tails=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    outputs=st.integers(1, 12),
    drafts=st.integers(0, 3),
    chunk=st.integers(3, 40),
    acceptance=st.floats(0, 1),
)
@settings(max_examples=40)
def test_planning_ahead_settles_to_the_same_tokens_and_logits(
    kinds: tuple[str, ...],
    shared: int,
    tails: list[int],
    outputs: int,
    drafts: int,
    chunk: int,
    acceptance: float,
) -> None:
    """RECORDS 13: planner, runner and executor agree on the real start of every row."""
    seen = []
    for depth in (1, 2):
        engine = RingEngine(kinds, depth=depth, num_drafts=drafts, chunk=chunk)
        truth, outcome = play(engine, arrivals(shared, tails, outputs), acceptance)
        assert truth.ok and not truth.executor.waiting, truth.worst
        assert truth.tags is not None and not truth.tags.taint
        seen.append({name: seq.tokens() for name, seq in outcome.outputs.items()})
        assert truth.rows >= len(tails) * outputs
    assert seen[0] == seen[1]
