"""An SGLang engine with an environment, for tests: words, a loop, invariants of the pools."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from handoff.adapter import load, make_options
from handoff.index.spans import Seq
from handoff.runner import Environment
from handoff.store.tags import TagStore
from handoff.types import Event, Handoff, Op, Request, Step, StepResult
from handoff.types.checks import StepChecker


def words(stream: int, count: int, first: int = 0) -> list[int]:
    """``count`` tokens of a stream; no two streams share a token."""
    return list(range(10_000 * stream + first, 10_000 * stream + first + count))


class Play:
    """One engine with a checker and a tag pass beside it; synchronous unless told otherwise."""

    def __init__(self, acceptance: float = 1.0, **options: Any) -> None:
        options.setdefault("disable_overlap_schedule", True)
        adapter = load("sglang")
        self.engine: Any = adapter.engine(make_options(adapter, options))
        self.tags = TagStore(self.engine.layout)
        self.checker = StepChecker(self.engine.layout)
        self.env = Environment(0, self.engine.num_drafts, acceptance)
        self.flying: deque[Step] = deque()
        self.steps: list[Step] = []
        self.count = 0

    @property
    def cache(self) -> Any:
        return self.engine.cache

    @property
    def tree(self) -> Any:
        return self.engine.cache.tree

    # -- driving ----------------------------------------------------------------------------

    def submit(
        self,
        prompt: Sequence[int],
        outputs: int = 1,
        *,
        says: Sequence[int] | None = None,
        **more: Any,
    ) -> str:
        """Queue a request that generates ``says`` (by default tokens of its own)."""
        self.count += 1
        name = f"r{self.count}"
        script = list(says) if says is not None else words(500 + self.count, outputs)
        request = Request(name, Seq.of(prompt), len(script), outputs=Seq.of(script), **more)
        self.env.add(request)
        self.engine.submit(request, 0.0)
        return name

    def plan(self) -> Step | None:
        """Plan one Step."""
        step: Step | None = self.engine.step(0.0)
        if step is not None:
            self._see(step)
            self.flying.append(step)
        return step

    def answer(self) -> None:
        """Answer the oldest Step."""
        step = self.flying.popleft()
        result = StepResult(step.number, tuple(self.env.answer(row) for row in step.rows))
        self.tags.complete(result)
        self.engine.complete(result, 0.0)

    def tick(self) -> Step | None:
        """One loop of the server: plan, then answer the oldest Step if enough are in flight."""
        step = self.plan()
        if self.flying and (step is None or len(self.flying) == self.engine.depth):
            self.answer()
        return step

    def run(self) -> None:
        """Serve until nothing runs."""
        while self.tick() is not None or self.flying:
            pass
        last = self.engine.drain()
        if last is not None:
            self._see(last)

    def serve(self, prompt: Sequence[int], outputs: int = 1, **more: Any) -> Handoff:
        """Serve one request alone; its first handoff."""
        name = self.submit(prompt, outputs, **more)
        self.run()
        return self.handoff(name)

    def _see(self, step: Step) -> None:
        self.env.see(step)
        self.checker.step(step)
        self.tags.step(step)
        self.steps.append(step)

    # -- looking ----------------------------------------------------------------------------

    def handoff(self, name: str) -> Handoff:
        """The first handoff of a request."""
        found = [h for step in self.steps for h in step.handoffs if h.request == name]
        return found[0]

    def events(self, kind: str) -> list[Event]:
        return [event for step in self.steps for event in step.events if event.kind == kind]

    def ops(self, kind: type) -> list[Op]:
        return [op for step in self.steps for op in step.ops if isinstance(op, kind)]

    def hit(self, prompt: Sequence[int], **more: Any) -> int:
        """What a look-up would give now."""
        return int(self.engine.probe(Request("probe", Seq.of(prompt), 1, **more)).hit_tokens)

    def bounds(self) -> list[tuple[int, int]]:
        """Spans of all nodes."""
        return sorted((node.start, node.stop) for node in self.tree.nodes())


def window_path(end: Any, mark: int | None) -> Iterator[Any]:
    """The nodes whose window KV a lock of ``end`` holds: up to the one with its mark."""
    for node in reversed(end.path()):
        yield node
        if mark is not None and node.mark == mark:
            return


def check(play: Play) -> None:
    """Blocks are free, the tree's, or private to one row; locks are those of the requests."""
    engine, cache = play.engine, play.cache
    scheduler, page = engine.scheduler, cache.page
    active = [r for r in engine.requests.values() if r.sequence is not None]
    held = Counter(cache.slots.ids().tolist())
    windows: Counter[int] = Counter()
    if cache.windows is not None:
        windows.update(cache.windows.free.ids().tolist())
    locks: Counter[int] = Counter()
    window_locks: Counter[int] = Counter()
    state_locks: Counter[int] = Counter()
    sizes = [0, 0, 0, 0]
    for node in cache.tree.nodes():
        parent = node.parent
        assert parent.kids[node.key] is node and node.start == parent.stop < node.stop
        assert node.lock >= 0 and node.window_lock >= 0 and node.state_lock >= 0
        assert parent is cache.tree.root or parent.lock >= node.lock
        assert node.device_kids == sum(kid.blocks is not None for kid in node.kids.values())
        if node.blocks is not None:
            assert len(node.blocks) * page == node.length
            assert parent is cache.tree.root or parent.blocks is not None
            held.update(node.blocks.tolist())
            sizes[node.lock > 0] += node.length
        else:
            assert node.host is not None and node.lock == 0
        if node.window is not None:
            windows.update(node.window.tolist())
            sizes[2 + (node.window_lock > 0)] += node.length
    holds: list[tuple[Any, int | None]] = []
    for req in active:
        first = req.protected // page
        holds.append((req.end, req.mark))
        row = req.row.view(first, len(req.row)).tolist()
        if engine.options.attention == "pure_swa" and req.window_freed > req.floor:
            gone = range(max(req.floor, req.protected), req.window_freed)
            row = [block for at, block in enumerate(row, first) if at not in gone]
        held.update(row)
        windows.update(b for b in req.window_row.view(first, len(req.row)).tolist() if b >= 0)
    if cache.host is not None:
        holds += cache.host.pending
    for end, mark in holds:
        locks.update(map(id, end.path()))
        window_locks.update(map(id, window_path(end, mark) if cache.windows else ()))
        state_locks[id(end)] += cache.states is not None
    for node in cache.tree.nodes():
        assert node.lock == locks[id(node)], "a lock that nobody holds, or none where one is held"
        assert node.window_lock == window_locks[id(node)], "a window lock without its holder"
        assert node.state_lock == state_locks[id(node)], "a state lock without its holder"
    blocks = engine.options.max_total_tokens // page
    assert held == Counter(range(1, blocks + 1)), "a block is lost or owned twice"
    assert sizes[:2] == [cache.tree.evictable, cache.tree.protected]
    if cache.windows is not None:
        slots = engine.options.swa_tokens // page
        assert windows == Counter(range(1, slots + 1)), "a window block is lost or owned twice"
        assert sizes[2:] == [cache.windows.evictable, cache.windows.protected]
    if cache.rings is not None:
        rings = Counter(cache.rings.ids().tolist())
        rings.update(r.ring for r in active)
        assert rings == Counter(range(1, engine.options.running_limit + 1))
    if cache.states is not None:
        states = Counter(cache.states.free.ids().tolist())
        states.update(node.state for node in cache.tree.nodes() if node.state is not None)
        states.update(r.state for r in engine.requests.values() if r.state is not None)
        assert states == Counter(range(1, engine.options.max_mamba_cache_size + 1))
    if cache.host is not None:
        copies = Counter(cache.host.free.ids().tolist())
        for node in cache.tree.nodes():
            if node.host is not None:
                copies.update(node.host.tolist())
        assert copies == Counter(range(1, engine.options.host_tokens // page + 1))
        if cache.host.windows is not None:
            copies = Counter(cache.host.windows.ids().tolist())
            for node in cache.tree.nodes():
                if node.host_window is not None:
                    copies.update(node.host_window.tolist())
            assert copies == Counter(range(1, engine.options.host_swa_tokens // page + 1))
    assert not set(map(id, scheduler.waiting)) & set(map(id, scheduler.running))
