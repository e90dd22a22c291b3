"""A small engine with every kind of group, chunks, batches, drafts and planning ahead.

No framework behaves like it. It exists so that tags, executor and truth test can be tried on all
mechanisms at once before any adapter has them: prefix hits that must agree between full, window,
ring and state groups, snapshots, preemption, LoRA in the key, rejected drafts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handoff.index.spans import LATE, Seq
from handoff.types import (
    FOLLOW,
    NULL,
    Bind,
    Close,
    Copy,
    Cut,
    Group,
    GroupAnswer,
    Handoff,
    Layer,
    Layout,
    Match,
    Op,
    Open,
    Pool,
    Request,
    Row,
    StateUse,
    Step,
    StepResult,
)

BLOCK, WINDOW, RING = 4, 6, 12
KINDS = ("full", "window", "ring", "state")


def mini_layout(kinds: tuple[str, ...], blocks: int = 256) -> Layout:
    groups = {
        "full": Group("full", "full", BLOCK),
        "window": Group("window", "window", BLOCK, window=WINDOW),
        "ring": Group("ring", "ring", RING, window=WINDOW, ring=True, columns=1),
        "state": Group("state", "state", 1, "state"),
    }
    names = [kind for kind in KINDS if kind in kinds]
    return Layout(
        tuple(Pool(name, blocks) for name in names),
        tuple(groups[name] for name in names),
        tuple(Layer(name) for name in kinds),
    )


@dataclass
class _Live:
    request: Request
    seq: int
    content: Seq
    prompt: int
    done: int = 0
    drafts: tuple[int, ...] = ()
    flight: deque[Row] = field(default_factory=deque)
    columns: dict[str, list[int]] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    emitted: int = 0


class MiniEngine:
    """``depth`` 2 plans one Step ahead; ``cache`` False never hits; ``preempt`` lists Steps."""

    def __init__(
        self,
        kinds: tuple[str, ...],
        *,
        depth: int = 1,
        num_drafts: int = 0,
        chunk: int = 16,
        max_live: int = 3,
        cache: bool = True,
        preempt: tuple[int, ...] = (),
    ) -> None:
        self.layout = mini_layout(kinds)
        self.kinds = [group.name for group in self.layout.groups]
        self.depth, self.num_drafts = depth, num_drafts
        self.chunk, self.max_live, self.cache = chunk, max_live, cache
        self.preempt = preempt
        self.waiting: deque[tuple[Request, Seq, int]] = deque()
        self.live: dict[int, _Live] = {}
        self.known: dict[str, dict[Any, int]] = {kind: {} for kind in self.kinds}
        self.free = {pool.name: deque(range(pool.blocks)) for pool in self.layout.pools}
        self.holders: dict[tuple[str, int], int] = {}
        self.number = self.next_seq = 0
        self.answered = -1
        self.closing: list[int] = []
        self.steps: dict[int, tuple[Row, ...]] = {}

    # -- the protocol ---------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        self.waiting.append((request, request.prompt, 0))

    def abort(self, request_id: str, now: float) -> None:
        self.waiting = deque(item for item in self.waiting if item[0].id != request_id)

    def probe(self, request: Request) -> Match:
        return Match(0, 0)

    def next_event(self) -> float | None:
        return None

    def observe(self) -> Mapping[str, Any]:
        return {}

    def drain(self) -> Step | None:
        return self._emit([Close(seq) for seq in self._take_closing()], [], [], True)

    def step(self, now: float) -> Step | None:
        ops: list[Op] = [Close(seq) for seq in self._take_closing()]
        handoffs: list[Handoff] = []
        rows: list[Row] = []
        if self.number in self.preempt and self.live:
            self._preempt(ops)
        for live in self.live.values():
            row = self._row(live, ops)
            if row is not None:
                rows.append(row)
        while self.waiting and len(self.live) < self.max_live:
            live, handoff = self._admit(*self.waiting.popleft(), ops)
            handoffs.append(handoff)
            row = self._row(live, ops)
            assert row is not None
            rows.append(row)
        return self._emit(ops, rows, handoffs, False)

    def _emit(
        self, ops: list[Op], rows: list[Row], handoffs: list[Handoff], bare: bool
    ) -> Step | None:
        if not rows and not (bare and ops):
            self.closing = [op.seq for op in ops if isinstance(op, Close)] + self.closing
            return None
        step = Step(
            self.number, self.number, self.answered, tuple(ops), tuple(rows), tuple(handoffs)
        )
        self.steps[self.number] = step.rows
        self.number += 1
        return step

    def complete(self, result: StepResult, now: float) -> None:
        self.answered = result.number
        for row, out in zip(self.steps.pop(result.number), result.rows, strict=True):
            live = self.live.get(row.seq)
            if live is None:
                continue
            live.flight.popleft()
            rejected = 1 + row.drafts - len(out.tokens) if out.tokens else 0
            live.done += len(row.tokens) - rejected
            for token in out.tokens:
                live.content.append(token)
            live.emitted += len(out.tokens)
            live.drafts = out.drafts
            if live.emitted >= live.request.max_tokens:
                self._release(live)

    # -- planning -------------------------------------------------------------------------

    def _take_closing(self) -> list[int]:
        taken, self.closing = self.closing, []
        return taken

    def _row(self, live: _Live, ops: list[Op]) -> Row | None:
        start = live.done + sum(len(row.tokens) for row in live.flight)
        late = bool(live.flight) and any(row.emits for row in live.flight)
        if late:
            tokens, drafts = Seq([LATE] * (1 + self.num_drafts)), self.num_drafts
            emits = 1 + drafts
        elif start + self.chunk < len(live.content):
            tokens, drafts, emits = live.content.slice(start, start + self.chunk), 0, 0
        else:
            tokens = live.content.slice(start, len(live.content))
            drafts = len(live.drafts) if live.emitted else 0
            for token in live.drafts[:drafts]:
                tokens.append(token)
            emits = 1 + drafts
        stop = start + len(tokens)
        self._grow(live, stop, ops)
        states = self._states(live, start, stop, late, drafts)
        row = Row(live.seq, start, tokens, drafts, emits, None, states)
        if self.cache and not drafts and not late:
            self._insert(live, stop)
        live.flight.append(row)
        return row

    def _grow(self, live: _Live, stop: int, ops: list[Op]) -> None:
        for kind in self.kinds:
            columns = live.columns[kind]
            if kind in ("full", "window"):
                count = -(-stop // BLOCK) - len(columns)
                if count > 0:
                    ids = tuple(self._take(kind) for _ in range(count))
                    ops.append(Bind(live.seq, kind, len(columns), ids, True))
                    columns += ids
            if kind == "window":
                gone = max(0, live.done - WINDOW + 1) // BLOCK
                first = next((at for at, block in enumerate(columns) if block != NULL), 0)
                if gone > first:
                    ops.append(Cut(live.seq, kind, first, gone))
                    for at in range(first, gone):
                        self._drop(kind, columns[at])
                        columns[at] = NULL

    def _states(
        self, live: _Live, start: int, stop: int, late: bool, drafts: int
    ) -> tuple[StateUse, ...]:
        if "state" not in self.kinds:
            return ()
        load = FOLLOW if late else live.states.get(start, NULL)
        own = live.columns["state"]
        count = 1 + self.num_drafts
        slots = own[self.number % 2 * count :][:count]
        saves = [(stop - drafts + at, slots[at]) for at in range(1 + drafts)]
        if self.cache and not late and not drafts:
            for position in range(start + 1, stop + 1):
                if position % BLOCK == 0:
                    saves.insert(-1, (position, self._take("state")))
                    key = self._key(live, position)
                    self.known["state"].setdefault(key, saves[-2][1])
        for position, block in saves:
            live.states[position] = block
        return (StateUse("state", load, tuple(saves)),)

    def _key(self, live: _Live, stop: int) -> Any:
        return live.request.lora, tuple(live.content.tokens(0, stop))

    def _insert(self, live: _Live, stop: int) -> None:
        for kind in ("full", "window"):
            for column, block in enumerate(live.columns.get(kind, ())):
                if block != NULL and (column + 1) * BLOCK <= stop:
                    key = self._key(live, (column + 1) * BLOCK)
                    self.known[kind].setdefault(key, block)

    # -- admission and release ------------------------------------------------------------

    def _admit(
        self, request: Request, content: Seq, emitted: int, ops: list[Op]
    ) -> tuple[_Live, Handoff]:
        live = _Live(
            request, self.next_seq, content.slice(0, len(content)), len(content), emitted=emitted
        )
        self.next_seq += 1
        self.live[live.seq] = live
        ops.append(Open(live.seq, request.id, content.slice(0, len(content)), request.lora))
        hit = self._hit(live)
        for kind in self.kinds:
            live.columns[kind] = self._share(live, kind, hit, ops)
        live.done = hit
        answers = tuple(GroupAnswer(kind, hit, (), hit // BLOCK, hit) for kind in self.kinds)
        handoff = Handoff(
            live.seq, request.id, len(request.prompt), len(content), hit, hit, hit, (), answers,
            int(emitted > 0),
        )  # fmt: skip
        return live, handoff

    def _hit(self, live: _Live) -> int:
        if not self.cache:
            return 0
        for hit in range((len(live.content) - 1) // BLOCK * BLOCK, 0, -BLOCK):
            if all(self._serves(live, kind, hit) for kind in self.kinds):
                return hit
        return 0

    def _serves(self, live: _Live, kind: str, hit: int) -> bool:
        if kind == "full" or kind == "window":
            first = 0 if kind == "full" else max(0, hit - WINDOW + 1) // BLOCK
            return all(
                self._key(live, (column + 1) * BLOCK) in self.known[kind]
                for column in range(first, hit // BLOCK)
            )
        return self._key(live, hit) in self.known[kind]

    def _share(self, live: _Live, kind: str, hit: int, ops: list[Op]) -> list[int]:
        if kind == "ring":
            block = self._take(kind)
            ops.append(Bind(live.seq, kind, 0, (block,), True))
            if hit:
                source = self.known[kind][self._key(live, hit)]
                ops.append(Copy(kind, kind, kind, ((source * RING, block * RING, RING),)))
            return [block]
        if kind == "state":
            own = [self._take(kind) for _ in range(2 * (1 + self.num_drafts))]
            ops.append(Bind(live.seq, kind, 0, tuple(own), True))
            if hit:
                live.states[hit] = self.known[kind][self._key(live, hit)]
            return own
        first = 0 if kind == "full" else max(0, hit - WINDOW + 1) // BLOCK
        columns = [NULL] * min(first, hit // BLOCK)
        for column in range(len(columns), hit // BLOCK):
            columns.append(self.known[kind][self._key(live, (column + 1) * BLOCK)])
            self._hold(kind, columns[-1])
        if hit:
            ops.append(Bind(live.seq, kind, 0, tuple(columns), False))
        return columns

    def snapshot(self, ops: list[Op]) -> None:
        """Keep copies of rings that stand at a block's edge (called by ``RingEngine``)."""
        for live in self.live.values():
            if live.done and live.done % BLOCK == 0 and not live.flight:
                key = self._key(live, live.done)
                if key not in self.known["ring"]:
                    block, own = self._take("ring"), live.columns["ring"][0]
                    ops.append(Copy("ring", "ring", "ring", ((own * RING, block * RING, RING),)))
                    self.known["ring"][key] = block

    def _preempt(self, ops: list[Op]) -> None:
        live = next(iter(self.live.values()))
        if live.flight:
            return
        self._release(live)
        ops.append(Close(self.closing.pop()))
        self.waiting.append((live.request, live.content, live.emitted))

    def _release(self, live: _Live) -> None:
        del self.live[live.seq]
        self.closing.append(live.seq)
        for kind in ("full", "window"):
            for block in live.columns.get(kind, ()):
                if block != NULL:
                    self._drop(kind, block)

    # -- ids: never handed out again while something findable lives in them ----------------

    def _take(self, kind: str) -> int:
        block = self.free[kind].popleft()
        self._hold(kind, block)
        return block

    def _hold(self, kind: str, block: int) -> None:
        self.holders[kind, block] = self.holders.get((kind, block), 0) + 1

    def _drop(self, kind: str, block: int) -> None:
        self.holders[kind, block] -= 1
        if not self.holders[kind, block] and block not in self.known[kind].values():
            self.free[kind].append(block)


class RingEngine(MiniEngine):
    """Takes ring snapshots whenever a sequence stands at a block's edge."""

    def step(self, now: float) -> Step | None:
        ops: list[Op] = []
        if self.cache and "ring" in self.kinds and self.depth == 1:
            self.snapshot(ops)
        step = super().step(now)
        if step is None or not ops:
            return step
        return Step(
            step.number, step.iteration, step.known_through, (*ops, *step.ops), step.rows,
            step.handoffs,
        )  # fmt: skip
