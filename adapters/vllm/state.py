"""What the planner remembers about a request, and what it has to tell the next Step."""

from __future__ import annotations

from dataclasses import dataclass

from handoff.types import Event, Op, Request

from .coordinator import Hit, Measure
from .keys import PrefixKeys
from .stats import PrefillStats

__all__ = ["Marks", "Outbox", "RequestState"]


@dataclass(slots=True)
class Marks:
    """Where a request stands in one Mamba group (RULES 10).

    ``allocated``: it allocated before. ``last``: column of the state it ran on before that.
    ``low``: columns below it are null. ``producer``: it registered its own unaligned tail and has
    to leave a copy behind before it goes on. ``checkpoint``: prefix length of the inner checkpoint
    that the chunk being scheduled leaves, not keyed yet; ``saved``: the same, for the row.
    """

    allocated: bool = False
    last: int | None = None
    low: int = 0
    producer: bool = False
    checkpoint: int = 0
    saved: int = 0


class RequestState:
    """One request from submission to its end (v1/request.py).

    ``known`` tokens are prompt and accepted outputs; ``computed`` of them have KV, or will have
    once the steps in flight have run. ``placeholders`` are output tokens that steps in flight will
    bring (asynchronous scheduling only).
    """

    __slots__ = (
        "attempt",
        "batches",
        "cached",
        "computed",
        "drafts",
        "external",
        "hit",
        "id",
        "in_flight",
        "junction",
        "keys",
        "known",
        "mamba",
        "measure",
        "mid_prefill",
        "num_shared",
        "order",
        "placeholders",
        "prefill",
        "priority",
        "prompt_len",
        "request",
        "resume_at",
        "saves",
        "scheduled_to",
        "seq",
        "served",
        "skip_reading",
        "status",
        "tables",
        "tokens",
        "transfer",
    )

    def __init__(self, request: Request, keys: PrefixKeys, order: int, num_groups: int) -> None:
        self.request = request
        self.id = request.id
        self.prompt_len = len(request.prompt)
        self.priority = request.priority
        self.order = order
        self.keys = keys
        self.tokens = request.prompt.copy() if request.images else keys.seq
        self.known = self.prompt_len
        self.skip_reading = bool(
            request.options.get("skip_reading_prefix_cache")
            or request.options.get("prompt_logprobs") is not None
        )
        self.status = "waiting"
        self.seq = -1
        self.attempt = 0
        self.prefill: PrefillStats | None = None  # of the first admission
        self.in_flight = 0  # scheduled tokens whose output is not known yet
        self.batches = 0  # steps in flight that have a row of this request
        self.junction = 0
        self.cached = [0] * num_groups
        self.release(num_groups)

    def release(self, num_groups: int) -> None:
        """Forget everything that a preemption forgets."""
        self.computed = 0
        self.placeholders = 0
        self.drafts: list[int] = []
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.cached = [0] * num_groups
        self.hit: Hit | None = None
        self.measure: Measure | None = None
        self.num_shared = 0  # hit blocks held in place
        self.external = 0
        self.served = 0  # tokens of the hit, external ones included
        self.saves: dict[str, dict[int, int]] = {}  # Mamba group -> position -> state block
        self.mid_prefill = False
        self.transfer: int | None = None
        self.mamba: dict[int, Marks] = {}  # by Mamba group
        self.resume_at = 0  # first position of the chunk being scheduled
        self.scheduled_to = 0  # its end

    @property
    def num_outputs(self) -> int:
        """Output tokens known so far."""
        return self.known - self.prompt_len

    def append(self, token: int) -> None:
        """A sampled token became known."""
        self.keys.append(token)
        if self.tokens is not self.keys.seq:
            self.tokens.append(token)
        self.known += 1


class Outbox:
    """Operations and events in the order of upstream's bookkeeping, until a Step takes them."""

    __slots__ = ("events", "ops")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.events: list[Event] = []

    def take(self) -> tuple[tuple[Op, ...], tuple[Event, ...]]:
        """Everything noted since the last Step."""
        ops, events = tuple(self.ops), tuple(self.events)
        self.ops.clear()
        self.events.clear()
        return ops, events
