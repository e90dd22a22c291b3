"""Why EAGLE gives the last block of a hit back: the draft head's inputs are there, or missing."""

from __future__ import annotations

import pytest
import torch

from handoff.adapter import load
from handoff.engine.drafter import DraftCheck
from handoff.engine.truth import TruthCheck
from handoff.index.spans import Seq
from handoff.runner import run
from handoff.types import Request, Step, StepResult
from handoff.workload.arrivals import Arrival, When

torch.set_num_threads(1)


class Hits:
    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def step(self, step: Step) -> None:
        self.found |= {handoff.request: handoff.hit_tokens for handoff in step.handoffs}

    def complete(self, result: StepResult) -> None:
        pass


def arrivals() -> list[Arrival]:
    """The second prompt shares four blocks of 16 and then goes on differently."""
    shared = list(range(100, 164))
    first = Request("first", Seq([*shared, *range(200, 230)]), 6)
    second = Request("second", Seq([*shared, *range(300, 330)]), 6)
    return [
        Arrival("first", When(), first),
        Arrival("second", When("after", "first"), second),
    ]


@pytest.mark.parametrize(("keep", "hit"), [(False, 48), (True, 64)])
def test_the_drop_gives_the_draft_head_its_inputs(keep: bool, hit: int) -> None:
    vllm = load("vllm")
    engine = vllm.engine(
        vllm.options(
            speculative_method="eagle",
            num_speculative_tokens=2,
            disable_eagle_block_drop=keep,
            num_gpu_blocks=64,
        )
    )
    truth, drafts, hits = TruthCheck(engine.layout), DraftCheck(engine.layout), Hits()
    run(engine, arrivals(), sinks=[truth, drafts, hits], acceptance=0.5)
    truth.finish()
    assert hits.found == {"first": 0, "second": hit}
    assert truth.ok  # the target is exact either way
    assert drafts.errors["first"] < 1e-5
    if keep:  # position 63 holds the head's KV for "... then 200"
        assert drafts.errors["second"] > 1e-3
    else:
        assert drafts.errors["second"] < 1e-5
