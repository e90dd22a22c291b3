"""A Step is operations, then rows: one forward pass; and what the environment answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from handoff.index.spans import Seq

from .ops import Op

if TYPE_CHECKING:
    from .answers import Handoff

__all__ = [
    "EVENT_KINDS",
    "FOLLOW",
    "Event",
    "Row",
    "RowResult",
    "Spans",
    "StateUse",
    "Step",
    "StepResult",
]

FOLLOW = -2
"""``StateUse.load``: among this sequence's previous saves the one at the real start."""


class Spans(NamedTuple):
    """Where stages and groups of a row differ from the plain case (almost no row needs it).

    * ``compute[stage]``: first position the stage computes; ``compute[0]`` is the row's start and
      it never falls. A stage computes ``[compute, stop)``.
    * ``write[group index]``: below it nothing is stored (default: the row's start).
    * ``visible[group index]``: below it nothing is seen (default 0); the maximum of all causes.

    Group indices are those of ``Layout.groups``.
    """

    compute: tuple[int, ...]
    write: tuple[int, ...]
    visible: tuple[int, ...]


class StateUse(NamedTuple):
    """Recurrent state of one group: ``load`` an id (``NULL`` = zero state, or ``FOLLOW``).

    ``saves`` are ``(position, id)``: the state after ``position`` tokens is stored under ``id``;
    one per draft, so a rejection needs no rollback: the next row loads the accepted one.
    """

    group: str
    load: int
    saves: tuple[tuple[int, int], ...] = ()


class Row(NamedTuple):
    """The tokens of one sequence in one Step; at most one row per sequence and Step.

    ``tokens`` are content ids of the positions ``[start, start + len(tokens))``; ``LATE`` (-1)
    stands for what a Step not yet answered samples or drafts, and for padding drafts. The last
    ``drafts`` of them are guesses. The logits of the trailing ``emits`` positions are wanted:
    0 in mid-prompt, 1, ``1 + drafts``, or all.
    """

    seq: int
    start: int
    tokens: Seq
    drafts: int = 0
    emits: int = 1
    spans: Spans | None = None
    states: tuple[StateUse, ...] = ()

    @property
    def stop(self) -> int:
        """One past the last position of the row."""
        return self.start + len(self.tokens)


EVENT_KINDS = frozenset(
    {
        "insert",  # the first `tokens` tokens of `seq` (or `request`) became findable in `group`
        "evict",  # `ids` lost their content for good
        "free",  # `ids` went back to a free list
        "touch",  # recency was refreshed
        "lock",
        "unlock",
        "pin",
        "unpin",
        "offload",  # device -> host
        "onboard",  # host -> device
        "checkpoint",  # a state or window checkpoint was made, restored or dropped
        "refuse",  # a request the framework will not serve
        "defer",  # admission was postponed
        "preempt",
        "finish",
        "abort",
        "reset",  # the index was emptied
        "unsound",  # upstream hands out KV that is not what a cold run would hold
        "warn",
    }
)


class Event(NamedTuple):
    """Something that moved no KV; for the ledger and the curious, never for the executor.

    ``kind`` is one of ``EVENT_KINDS``; ``rule`` cites the rule book's section.
    """

    kind: str
    group: str | None = None
    ids: tuple[int, ...] = ()
    seq: int | None = None
    request: str | None = None
    tokens: int = 0
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: ``ops`` in order, then ``rows`` as one batch.

    ``number`` counts from 0. Several Steps may share a scheduler ``iteration`` (llama.cpp: one Step
    per micro-batch). ``known_through`` is the last Step whose result the planner had,
    ``number - 1`` unless asynchronous. ``handoffs`` and ``events`` are for the ledger only. Either
    of ``ops`` and ``rows`` may be empty.
    """

    number: int
    iteration: int
    known_through: int
    ops: tuple[Op, ...] = ()
    rows: tuple[Row, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    events: tuple[Event, ...] = ()


class RowResult(NamedTuple):
    """What one row produced: 0 tokens in mid-prompt, 1 to ``1 + drafts`` when verifying.

    ``drafts`` are the drafter's guesses for what follows; ``confidences`` belong to them.
    """

    seq: int
    tokens: tuple[int, ...]
    drafts: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The environment's answer to Step ``number``; ``rows`` in the order of ``Step.rows``.

    ``forward_s`` and ``sample_s`` are seconds; ``arrived`` are ids of finished transfers.
    """

    number: int
    rows: tuple[RowResult, ...] = ()
    forward_s: float = 0.0
    sample_s: float = 0.0
    arrived: tuple[int, ...] = ()
