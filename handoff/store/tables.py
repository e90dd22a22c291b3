"""Block tables and contents of open sequences, folded from the operations of Steps.

A Step carries edits, never tables. ``Tables`` is the independent account that the tag pass and the
executor each keep: which ids a sequence holds, which tokens it consists of, and what an
asynchronously planned row really means once the results before it are known (``settle``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from handoff.index.spans import LATE, Seq, common
from handoff.types import (
    FOLLOW,
    NULL,
    Bind,
    Close,
    Cut,
    Group,
    Layout,
    Op,
    Open,
    Row,
    Spans,
    StateUse,
    Step,
    StepResult,
)

from .faults import TagFault

__all__ = ["InOrder", "Ints", "Sequence", "Settled", "Table", "Tables", "expand"]

Ints = NDArray[np.int64]


def expand(tokens: Seq, start: int = 0, stop: int | None = None) -> Ints:
    """Token ids ``[start, stop)`` as an array; a run costs no more than its numbers."""
    stop = len(tokens) if stop is None else stop
    parts = [
        np.arange(piece + first, piece + last)
        if isinstance(piece, int)
        else np.array(piece[first:last], np.int64)
        for piece, first, last in tokens.parts(start, stop)
    ]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class Table:
    """Ids of one sequence in one group by column; holes and everything beyond the end are NULL."""

    __slots__ = ("_ids", "block_size", "columns", "length")

    def __init__(self, group: Group) -> None:
        self.block_size = group.block_size if group.kind == "kv" else 1
        self.columns = group.columns if group.ring else 0
        self.length = 0
        self._ids: Ints = np.full(max(4, self.columns), NULL, np.int64)

    @property
    def ids(self) -> Ints:
        """Ids of the columns ``[0, length)`` (a view)."""
        return self._ids[: self.length]

    def bind(self, column: int, ids: Ints) -> Ints:
        """Set ``table[column ..] = ids``; returns the ids that stood there before."""
        stop = column + len(ids)
        assert not self.columns or stop <= self.columns, f"a ring of {self.columns} columns"
        if stop > len(self._ids):
            grown = np.full(max(stop, 2 * len(self._ids)), NULL, np.int64)
            grown[: self.length] = self.ids
            self._ids = grown
        before = self._ids[column:stop].copy()
        self._ids[column:stop] = ids
        self.length = max(self.length, stop)
        self._trim()
        return before

    def cut(self, first: int, last: int) -> Ints:
        """Columns ``[first, last)`` become NULL, trailing holes go; returns the ids cut."""
        last = min(last, self.length)
        before = self._ids[first:last].copy()
        self._ids[first:last] = NULL
        self._trim()
        return before

    def _trim(self) -> None:
        while self.length and self._ids[self.length - 1] == NULL:
            self.length -= 1

    def slot(self, position: int) -> int:
        """Slot of ``position``, NULL in a hole."""
        column, offset = divmod(position, self.block_size)
        if self.columns:
            column %= self.columns
        block = int(self._ids[column]) if column < self.length else NULL
        return block * self.block_size + offset if block >= 0 else NULL

    def blocks(self, start: int, stop: int) -> Ints:
        """Ids of the columns that positions ``[start, stop)`` use, in order of position."""
        first, last = start // self.block_size, -(-stop // self.block_size)
        if self.columns:
            return self._ids[np.arange(first, last) % self.columns]
        known = self._ids[first : min(last, self.length)]
        if len(known) == last - first:
            return known
        return np.concatenate((known, np.full(last - first - len(known), NULL, np.int64)))

    def slots(self, start: int, stop: int) -> Ints:
        """Slots of the positions ``[start, stop)``; NULL in holes."""
        if stop <= start:
            return np.empty(0, np.int64)
        if stop - start == 1:
            return np.array([self.slot(start)], np.int64)
        size = self.block_size
        blocks = self.blocks(start, stop)
        if size == 1:
            return blocks.copy()
        base = np.where(blocks >= 0, blocks * size, -size)  # -size + offset stays below 0
        slots = (base[:, None] + np.arange(size)).ravel()[start % size :][: stop - start]
        return np.maximum(slots, NULL)


class Sequence:
    """One open sequence: its request, tokens, a table per group, and what is still in flight."""

    __slots__ = ("content", "drafts", "lora", "rejected", "request", "saves", "seq", "tables")

    def __init__(self, op: Open, groups: tuple[Group, ...]) -> None:
        self.seq = op.seq
        self.request = op.request
        self.lora = op.lora
        self.content = op.tokens.slice(0, len(op.tokens))
        """Content ids known so far; grows with every result."""
        self.tables = [Table(group) for group in groups]
        self.drafts: tuple[int, ...] = ()
        """What the drafter guessed for the positions behind ``content``."""
        self.rejected: deque[tuple[int, int]] = deque()
        """(Step, rejected tokens) of recent Steps."""
        self.saves: list[dict[int, int]] = [{} for _ in groups]
        """Per group, position -> id of the states saved by the last row."""


class Settled(NamedTuple):
    """A row with its real positions and tokens.

    ``tokens`` are the content ids of ``[start, stop)``; a padding draft keeps ``LATE``.
    """

    of: Sequence
    start: int
    stop: int
    tokens: Seq
    drafts: int
    emits: int
    spans: Spans | None
    states: tuple[StateUse, ...]

    def compute(self, stage: int) -> int:
        """First position that ``stage`` computes."""
        return self.spans.compute[stage] if self.spans else self.start

    def write(self, group: int) -> int:
        """First position that may be stored in ``group``."""
        return self.spans.write[group] if self.spans else self.start

    def visible(self, group: int) -> int:
        """First position that may be seen in ``group``."""
        return self.spans.visible[group] if self.spans else 0


class Tables:
    """Open sequences with their tables and contents, and how many tables hold each id of a pool."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.groups = layout.groups
        self.index = {group.name: at for at, group in enumerate(layout.groups)}
        self.open: dict[int, Sequence] = {}
        self.held = {pool.name: np.zeros(pool.blocks, np.int32) for pool in layout.pools}
        """Per pool and id: in how many columns of open tables it stands."""

    def sequence(self, seq: int) -> Sequence:
        """The open sequence of that number; ``TagFault`` if it is not open."""
        found = self.open.get(seq)
        if found is None:
            raise TagFault("not open", "the sequence is not open", seq=seq)
        return found

    def apply(self, op: Op) -> None:
        """Fold one operation; those that only move contents change nothing here."""
        if isinstance(op, Bind):
            self._bind(op)
        elif isinstance(op, Cut):
            at = self.index[op.group]
            self._drop(at, self.sequence(op.seq).tables[at].cut(op.first, op.last))
        elif isinstance(op, Open):
            if op.seq in self.open:
                raise TagFault("open twice", "the sequence is open already", seq=op.seq)
            self.open[op.seq] = Sequence(op, self.groups)
        elif isinstance(op, Close):
            gone = self.sequence(op.seq)
            del self.open[op.seq]
            for at, table in enumerate(gone.tables):
                self._drop(at, table.ids)

    def _bind(self, op: Bind) -> None:
        at = self.index[op.group]
        ids = np.array(op.ids, np.int64)
        held = self.held[self.groups[at].pool]
        if len(ids) and not (ids.min() >= NULL and ids.max() < len(held)):
            raise TagFault(
                "no such id",
                f"pool {self.groups[at].pool} has {len(held)} ids",
                seq=op.seq,
                group=op.group,
                found=int(ids.max()),
            )
        self._drop(at, self.sequence(op.seq).tables[at].bind(op.column, ids))
        np.add.at(held, ids[ids >= 0], 1)

    def _drop(self, at: int, ids: Ints) -> None:
        if len(ids):
            np.add.at(self.held[self.groups[at].pool], ids[ids >= 0], -1)

    # -- rows -------------------------------------------------------------------------------

    def settle(self, step: Step, row: Row) -> Settled:
        """The row as it really is, now that every Step before it is answered.

        The planner assumed that all drafts of Steps it did not know yet would be accepted. Each one
        rejected moves the row (start, spans, save positions) down by one; ``LATE`` tokens become
        what was sampled, then what was drafted; padding stays ``LATE`` (RECORDS 5, "settle").
        """
        of = self.sequence(row.seq)
        missed = 0
        if step.known_through < step.number - 1:
            while of.rejected and of.rejected[0][0] <= step.known_through:
                of.rejected.popleft()
            missed = sum(rejected for _, rejected in of.rejected)
        start, tokens = row.start - missed, row.tokens
        if row.drafts or step.known_through < step.number - 1:
            tokens = self._fill(of, start, tokens)
        self._check_content(step, of, start, tokens, row.drafts)
        spans, states = row.spans, row.states
        if missed and spans:
            spans = Spans(
                tuple(position - missed for position in spans.compute),
                tuple(position - missed for position in spans.write),
                spans.visible,
            )
        if states:
            states = tuple(self._settle_state(step, of, start, missed, use) for use in states)
        return Settled(of, start, start + len(tokens), tokens, row.drafts, row.emits, spans, states)

    @staticmethod
    def _fill(of: Sequence, start: int, tokens: Seq) -> Seq:
        """LATE tokens replaced by content, then by drafts; the rest is padding and stays."""
        filled = tokens.tokens()
        if LATE not in filled:
            return tokens
        known = len(of.content)
        for at, token in enumerate(filled):
            position = start + at
            if token != LATE:
                continue
            if 0 <= position < known:
                filled[at] = of.content[position]
            elif 0 <= position - known < len(of.drafts):
                filled[at] = of.drafts[position - known]
        return Seq(filled)

    @staticmethod
    def _check_content(step: Step, of: Sequence, start: int, tokens: Seq, drafts: int) -> None:
        known = min(len(of.content) - start, len(tokens))
        if start < 0 or len(tokens) - drafts > known:
            raise TagFault(
                "row beyond content",
                f"row [{start}, {start + len(tokens)}) with {drafts} drafts,"
                f" but {len(of.content)} tokens are known",
                step=step.number,
                seq=of.seq,
                request=of.request,
                position=start,
            )
        same = common(tokens, 0, of.content, start, known)
        if same < known:
            raise TagFault(
                "row tokens",
                "the row's tokens are not the sequence's",
                step=step.number,
                seq=of.seq,
                request=of.request,
                position=start + same,
                expected=of.content[start + same],
                found=tokens[same],
            )

    def _settle_state(
        self, step: Step, of: Sequence, start: int, missed: int, use: StateUse
    ) -> StateUse:
        at = self.index[use.group]
        load = use.load
        if load == FOLLOW:
            if start not in of.saves[at]:
                raise TagFault(
                    "state position",
                    "no state was saved at the real start",
                    step=step.number,
                    seq=of.seq,
                    request=of.request,
                    group=use.group,
                    position=start,
                    found=sorted(of.saves[at]),
                )
            load = of.saves[at][start]
        saves = tuple((position - missed, block) for position, block in use.saves)
        return StateUse(use.group, load, saves)

    def remember(self, row: Settled) -> None:
        """Keep the row's state saves for a later FOLLOW; call it when the row has run."""
        for use in row.states:
            row.of.saves[self.index[use.group]] = dict(use.saves)

    def answer(self, step: Step, result: StepResult) -> None:
        """Take the results of a Step that has run: contents grow, rejections are noted."""
        for row, out in zip(step.rows, result.rows, strict=True):
            assert row.seq == out.seq, "results come in the order of rows"
            of = self.sequence(row.seq)
            for token in out.tokens:
                of.content.append(token)
            of.drafts = out.drafts
            rejected = 1 + row.drafts - len(out.tokens) if out.tokens else 0
            if rejected:
                of.rejected.append((step.number, rejected))
                if len(of.rejected) > 64:  # far more than any depth
                    of.rejected.popleft()

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.open.values())


class InOrder:
    """Runs each Step as soon as the results before it are known, in number order (O6).

    A planner may emit Step n+1 before Step n is answered; content that is ``LATE`` there exists
    only afterwards. Subclasses give ``_run`` and own ``tables``.
    """

    tables: Tables

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()
        self._running: Step | None = None

    @property
    def waiting(self) -> int:
        """Steps planned that have not run yet."""
        return len(self._waiting)

    def step(self, step: Step) -> None:
        """A Step was planned; it runs now, or when the one before it is answered."""
        self._waiting.append(step)
        self._advance()

    def complete(self, result: StepResult) -> None:
        """The answer to the oldest Step with rows that is not answered yet."""
        running = self._running
        if running is None or running.number != result.number:
            assert not result.rows, f"step {result.number} is not the one that is running"
            return
        self.tables.answer(running, result)
        self._running = None
        self._advance()

    def _advance(self) -> None:
        while self._waiting and self._running is None:
            step = self._waiting.popleft()
            self._run(step)
            if step.rows:
                self._running = step

    def _run(self, step: Step) -> None:
        raise NotImplementedError
