"""A small bench: one engine, an environment whose outputs are numbers, and the tag pass."""

from __future__ import annotations

from typing import Any

from handoff.adapters.deepinfer.engine import DeepInferEngine
from handoff.adapters.deepinfer.environment import Environment
from handoff.adapters.deepinfer.options import Options
from handoff.adapters.deepinfer.sequence import Grant, Sequence

from handoff.index.spans import Seq
from handoff.store.tags import TagStore
from handoff.types import Request, Step

DEFAULTS: dict[str, Any] = {
    "model": "noswa",
    "block_size": 4,
    "num_blocks": 20,
    "num_states": 0,
    "use_nextn_decode": 0,
    "zos": False,
    "prefill_interval": 1,
    "stop_preempted_request": False,
    "outside_policy": "none",
}


class Rig:
    """Adds sequences of distinct tokens and steps the engine; every Step passes the tag pass."""

    def __init__(self, **values: Any) -> None:
        self.engine = DeepInferEngine(Options(**{**DEFAULTS, **values}))
        self.tags = TagStore(self.engine.layout)
        self.env = Environment(self.engine, "test", lambda name, i: 5000 + i, self.tags)

    def request(self, name: str, length: int, outputs: int = 1, first: int = 100) -> Request:
        return Request(name, Seq(range(first, first + length)), outputs)

    def add(self, name: str, length: int, outputs: int = 1, hit: int = 0, vs: int = 0) -> Sequence:
        """Queue a prompt, with ``hit`` tokens loaded into private blocks."""
        seq = self.engine.sequence_of(self.request(name, length, outputs))
        if hit:
            assert self.engine.try_allocate(seq)
            self.engine.inject(seq, Grant(raw=hit, hit=hit, external=True), vs)
        self.engine.enqueue(seq)
        return seq

    def step(self) -> Step:
        """Plan one step and answer it at once."""
        step = self.engine.run_step()
        self.env.plan(step)
        self.env.complete(step)
        return step

    def until_idle(self, limit: int = 500) -> list[Step]:
        """Step while anything is unfinished."""
        steps = []
        while self.engine.scheduler.unfinished:
            steps.append(self.step())
            assert len(steps) < limit, "the engine does not come to rest"
        return steps

    @property
    def free(self) -> list[int]:
        return list(self.engine.blocks.free)
