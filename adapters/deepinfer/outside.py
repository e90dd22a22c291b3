"""The outside KV store: who decides what a prompt starts with, since DeepInfer does not.

DeepInfer only takes a number of ready tokens. This store is the policy that its recordings were
made with, and an exchangeable object: anything with the methods of ``Outside`` can stand in.

* ``load``: finished prompts are stored elsewhere and loaded into private blocks (RULES 2.2).
* ``anchor``: as ``load``, but the hit gives back ``rollback`` tokens and starts with an empty
  window there (zero-state start, RULES 9.4), because no consumer window was stored.
* ``share``: finished blocks stay pinned in the pool; a hit forks them (RULES 2.4).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from handoff.index.spans import Seq
from handoff.types import Deduction, GroupMatch, Match, Request

from .layout import BLOCKS, PRODUCER
from .prefixes import Prefixes
from .rank import Rank
from .sequence import Grant, Sequence

__all__ = ["Found", "NoStore", "Outside", "Store", "make_outside"]


class Outside(Protocol):
    """What the engine asks of an outside KV system."""

    def place(self, rank: Rank, request: Request) -> bool:
        """Queue a request with what is stored for it; False to try again before the next step."""

    def make_room(self, rank: Rank) -> None:
        """Give up pins before a step that lacks blocks."""

    def finalize(self, rank: Rank, seq: Sequence) -> None:
        """Save or pin what a finished sequence holds, before the engine frees it."""

    def released(self, rank: Rank, seq: Sequence) -> None:
        """The engine freed a finished or aborted sequence."""

    def probe(self, rank: Rank, request: Request) -> Match:
        """What ``place`` would find now; changes nothing."""


class NoStore:
    """Nothing is stored: every prompt starts cold."""

    def place(self, rank: Rank, request: Request) -> bool:
        rank.enqueue(rank.sequence_of(request))
        return True

    def make_room(self, rank: Rank) -> None:
        """Nothing is pinned."""

    def finalize(self, rank: Rank, seq: Sequence) -> None:
        """Nothing is saved."""

    def released(self, rank: Rank, seq: Sequence) -> None:
        """Nothing is held."""

    def probe(self, rank: Rank, request: Request) -> Match:
        return Match(0, 0)


class Found(NamedTuple):
    """Result of a look-up: ``raw`` tokens shared, ``hit`` of them usable, ``start`` injected."""

    entry: _Entry | None
    raw: int
    hit: int
    start: int
    deductions: tuple[Deduction, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    number: int
    request: str
    key: tuple[str | None, str | None]
    tokens: Seq
    length: int
    blocks: list[int]


class Store:
    """Entries of finished requests by (salt, LoRA), least recently used first.

    An entry holds the first ``grain * floor(num / grain)`` tokens of its request. The entry that
    shares most with a prompt is the hit, the oldest one on a tie.
    """

    def __init__(self, policy: str, grain: int, rollback: int, tokens: int | None) -> None:
        self.shares = policy == "share"
        self.grain = grain
        self.rollback = rollback if policy == "anchor" else 0
        self.capacity = tokens
        self.held = 0
        """Tokens in all entries."""
        self.entries: OrderedDict[int, _Entry] = OrderedDict()
        self._indexes: dict[tuple[str | None, str | None], Prefixes] = {}
        self._numbers = 0
        self._keys: dict[str, tuple[str | None, str | None]] = {}
        self._probes: dict[str, Sequence] = {}
        self.last = Found(None, 0, 0, 0, ())
        """Answer to the last placed request."""
        self.dropped: list[str] = []
        """Requests whose entries went for the last placed request."""

    # -- look-up ----------------------------------------------------------------------------

    def find(self, prompt: Seq, key: tuple[str | None, str | None]) -> Found:
        """The best entry and what is left of it after cap, grain and rollback."""
        index = self._indexes.get(key)
        raw, number = index.longest(prompt, len(prompt)) if index else (0, None)
        if number is None:
            return Found(None, 0, 0, 0, ())
        capped = min(raw, len(prompt) - 1)
        hit = capped // self.grain * self.grain
        start = max(0, hit - self.rollback)
        steps = (
            Deduction("last_token", capped, raw, "9.1", note="the store keeps the last token out"),
            Deduction("alignment", hit, capped, "9.3", note=f"grain of {self.grain}"),
            Deduction("group", start, hit, "9.4", PRODUCER, f"rollback of {self.rollback}"),
        )
        lost = tuple(step for step in steps if step.tokens)
        return Found(self.entries[number], raw, hit, start, lost)

    def probe(self, rank: Rank, request: Request) -> Match:
        found = self.find(request.prompt, (request.salt, request.lora))
        return Match(
            found.raw,
            found.start,
            (GroupMatch(BLOCKS, found.raw),),
            deductions=found.deductions,
        )

    # -- placing ----------------------------------------------------------------------------

    def place(self, rank: Rank, request: Request) -> bool:
        key = (request.salt, request.lora)
        self._keys[request.id] = key
        self.dropped = []
        found = self.last = self.find(request.prompt, key)
        if self.shares:
            return self._share(rank, request, found)
        seq = rank.sequence_of(request)
        room = rank.fits_beside_watermark(seq) if found.start else "OK"
        if room == "LATER":
            return False
        if room == "NEVER":
            found = _lost(found, "tier", "9.5", "a load would leave no room below the watermark")
        seq.grant = _grant(found, "loaded into private blocks and a private state")
        if found.start:
            rank.try_allocate(seq)
            rank.inject(seq, seq.grant, valid_start=found.start if self.rollback else 0)
        rank.enqueue(seq)
        return True

    def _share(self, rank: Rank, request: Request, found: Found) -> bool:
        """Fork the pinned blocks through a probe that holds the restored state."""
        entry, hit, size = found.entry, found.start, rank.options.block_size
        if entry is not None and hit:
            self._touch(entry)
        total = len(request.prompt) + request.max_tokens + rank.options.drafts
        wanted = max(-(-total // size) - hit // size + 1, rank.watermark_blocks)
        while self.entries and len(rank.blocks.free) < wanted:
            self._drop(rank, next(iter(self.entries.values())))
        if entry is None or not hit or entry.number not in self.entries:
            seq = rank.sequence_of(request)
            if hit:
                found = _lost(found, "evicted", "9.6", "dropped to make room for this request")
            seq.grant = _grant(found, "private blocks and a private state")
            rank.enqueue(seq)
            return True
        probe = rank.probe_of(request, _grant(found, "pinned blocks, one more reference each"))
        if probe is None:
            return False
        blocks = entry.blocks[: -(-hit // size)]
        rank.fork_seq(request.id, probe, "_h", request.max_tokens, blocks=blocks)
        self._probes[request.id] = probe
        return True

    def make_room(self, rank: Rank) -> None:
        """Drop old entries whose blocks are idle while a step lacks blocks (RULES 9.5).

        The recorder had no need of it: its requests ran alone and got their room before.
        """
        wanted = rank.blocks_wanted()
        if not self.shares or len(rank.blocks.free) >= wanted:
            return
        counts = rank.blocks.counts.counts
        for entry in list(self.entries.values()):
            if any(counts[block] == 1 for block in entry.blocks):
                self._drop(rank, entry)
                if len(rank.blocks.free) >= wanted:
                    return

    # -- storing ----------------------------------------------------------------------------

    def finalize(self, rank: Rank, seq: Sequence) -> None:
        length = seq.num_tokens // self.grain * self.grain
        if not length or seq.id not in self._keys:
            return
        key = self._keys[seq.id]
        blocks: list[int] = []
        if self.shares:
            blocks = seq.table[: -(-length // rank.options.block_size)]
            rank.blocks.share(blocks)
            rank.edits.event("pin", seq, "9.6", group=BLOCKS, ids=tuple(blocks))
        self._numbers += 1
        entry = _Entry(self._numbers, seq.id, key, seq.tokens, length, blocks)
        self.entries[entry.number] = entry
        self._indexes.setdefault(key, Prefixes()).add(entry.number, entry.tokens, length)
        self.held += length
        rank.edits.event("insert", seq, "9.6", group=BLOCKS, tokens=length)
        while self.capacity is not None and self.held > self.capacity:
            self._drop(rank, next(iter(self.entries.values())))

    def released(self, rank: Rank, seq: Sequence) -> None:
        self._keys.pop(seq.id, None)
        probe = self._probes.pop(seq.id, None)
        if probe is not None:
            rank.drop_probe(probe)

    def _touch(self, entry: _Entry) -> None:
        self.entries.move_to_end(entry.number)
        self._indexes[entry.key].touch(entry.number, entry.tokens, entry.length)

    def _drop(self, rank: Rank, entry: _Entry) -> None:
        del self.entries[entry.number]
        self._indexes[entry.key].remove(entry.number, entry.tokens, entry.length)
        self.held -= entry.length
        self.dropped.append(entry.request)
        freed = rank.blocks.release(entry.blocks)
        rank.edits.evicted(entry.request, tuple(freed), entry.length)


def _lost(found: Found, reason: str, rule: str, note: str) -> Found:
    """The same answer without its hit."""
    lost = Deduction(reason, 0, found.start, rule, note=note)
    return found._replace(start=0, deductions=(*found.deductions, lost))


def _grant(found: Found, references: str) -> Grant:
    """What this store gives to a sequence, if only the reasons why it is nothing."""
    entry = f"entry of {found.entry.request}" if found.entry is not None else "nothing shared"
    return Grant(
        raw=found.raw,
        hit=found.start,
        deductions=found.deductions,
        matcher=f"outside store, longest common prefix: {entry}",
        references=references,
        external=True,
    )


def make_outside(policy: str, grain: int, rollback: int, tokens: int | None) -> Outside:
    """The store of that policy, or none."""
    if policy == "none":
        return NoStore()
    return Store(policy, grain, rollback, tokens)
