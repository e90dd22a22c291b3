"""A vLLM engine with an environment, for tests: words, a loop, and the invariants of RULES 4."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from handoff.adapter import load
from handoff.index.spans import Seq
from handoff.runner import Environment
from handoff.store.tags import TagStore
from handoff.types import Event, Handoff, Op, Request, Step, StepResult

FULL = {"type": "full", "block_size": 16}
SWA32 = {"type": "swa", "window": 32, "block_size": 16}
MAMBA64 = {"type": "mamba", "block_size": 64}
FULL64 = {"type": "full", "block_size": 64}
REPLAY64 = {"type": "swa_mla_replay", "window": 64, "block_size": 64}


def words(stream: int, count: int, first: int = 0) -> list[int]:
    """``count`` tokens of a stream; no two streams share a token."""
    return list(range(10_000 * stream + first, 10_000 * stream + first + count))


class Play:
    """One engine; ``config`` in the words of the recordings, one full group of 16 by default."""

    def __init__(self, acceptance: float = 0.0, **config: Any) -> None:
        config.setdefault("groups", [FULL])
        recordings = load("vllm").recordings()
        assert recordings is not None
        self.engine: Any = load("vllm").engine(recordings.options(config))
        self.tags = TagStore(self.engine.layout)
        self.env = Environment(0, self.engine.num_drafts, acceptance)
        self.flying: deque[Step] = deque()
        self.steps: list[Step] = []
        self.count = 0

    # -- driving ----------------------------------------------------------------------------

    def submit(
        self, prompt: Sequence[int], outputs: int = 1, name: str | None = None, **more: Any
    ) -> str:
        self.count += 1
        name = name or f"r{self.count}"
        options = more.pop("options", {})
        scripted = Seq.of(more.pop("says", words(500 + self.count, outputs)))
        request = Request(
            name, Seq.of(prompt), len(scripted), outputs=scripted, options=options, **more
        )
        self.env.add(request)
        self.engine.submit(request, 0.0)
        return name

    def plan(self) -> Step | None:
        step = self.engine.step(0.0)
        if step is not None:
            self.steps.append(step)
            self.tags.step(step)
            self.env.see(step)
            self.flying.append(step)
        return step

    def answer(self, *, arrived: Sequence[int] = ()) -> None:
        step = self.flying.popleft()
        rows = tuple(self.env.answer(row) for row in step.rows)
        result = StepResult(step.number, rows, arrived=tuple(arrived))
        self.tags.complete(result)
        self.engine.complete(result, 0.0)

    def turn(self) -> bool:
        """Plan as far ahead as the engine allows, then answer the oldest Step; False if idle."""
        while len(self.flying) < self.engine.depth and self.plan() is not None:
            pass
        if not self.flying:
            return False
        self.answer(arrived=self.transfers())
        return True

    def finish(self) -> None:
        """Run until nothing moves any more."""
        while self.turn():
            pass

    def transfers(self) -> list[int]:
        found = list(self.env.transfers)
        self.env.transfers.clear()
        return found

    def serve(self, prompt: Sequence[int], outputs: int = 1, **more: Any) -> Handoff:
        """Submit one request and run it to its end; its first Handoff."""
        name = self.submit(prompt, outputs, **more)
        before = len(self.steps)
        self.finish()
        return self.handoff(name, before)

    # -- looking ----------------------------------------------------------------------------

    def handoff(self, name: str, since: int = 0) -> Handoff:
        return next(h for s in self.steps[since:] for h in s.handoffs if h.request == name)

    def handoffs(self, name: str) -> list[Handoff]:
        return [h for s in self.steps for h in s.handoffs if h.request == name]

    def rows(self, name: str) -> list[tuple[int, int]]:
        """(start, tokens) of every row of a request."""
        seqs = {h.seq for h in self.handoffs(name)}
        return [(r.start, len(r.tokens)) for s in self.steps for r in s.rows if r.seq in seqs]

    def ops(self, kind: type) -> list[Op]:
        return [op for step in self.steps for op in step.ops if isinstance(op, kind)]

    def events(self, kind: str) -> list[Event]:
        told = [event for step in self.steps for event in step.events]
        return [e for e in (*told, *self.engine.out.events) if e.kind == kind]

    @property
    def queue(self) -> list[int]:
        found = self.engine.observe()["free_queue"]
        assert isinstance(found, list)
        return found

    def check(self) -> None:
        """No id free and referenced; references equal table entries; free + used = pool."""
        pool = self.engine.cache.pool
        counts = pool.holders.counts
        free = self.queue
        assert len(free) == len(set(free)) and 0 not in free
        held: Counter[int] = Counter()
        for state in (*self.engine.requests.values(), *self.loading()):
            for table in state.tables:
                held.update(block for block in table if block)
        pool.holders.check(held)
        assert all(counts[block] == 0 for block in free)
        assert len(free) + len(held) == len(counts) - 1
        for key, blocks in pool.index.items():
            for block in [blocks] if isinstance(blocks, int) else blocks:
                assert key in pool.keys_of(block)
        keyed = sum(len(pool.keys_of(block)) for block in range(len(counts)))
        assert keyed == sum(1 if isinstance(b, int) else len(b) for b in pool.index.values())

    def loading(self) -> list[Any]:
        """Aborted requests whose load still writes into their blocks."""
        connector = self.engine.scheduler.connector
        return connector.aborted() if connector else []
