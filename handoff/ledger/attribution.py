"""Turns what happened in a run into ledger entries: a sink that is shown requests and Steps.

It asks no engine and no adapter: what was seen before comes from rows and insert events, what was
granted from each ``Handoff``, what was computed from rows. One ``Accountant`` serves one row of a
run (one adapter with one set of options over one scenario).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handoff.types import (
    Close,
    Copy,
    Event,
    Handoff,
    Layout,
    Load,
    Op,
    Open,
    Request,
    Row,
    RowResult,
    Step,
    StepResult,
)

from .accounts import Account, Admission, overhead
from .answers import answers
from .classes import Shared, classify, lanes, outside
from .costs import Costs
from .entries import Entry
from .seen import ISOLATING, Live, Seen, isolation

__all__ = ["Accountant", "Counters", "Label"]

Counters = Callable[[Handoff], Mapping[str, float]]
"""The framework's own counters for one admission, under its own names."""

Tainted = Callable[[int, int], int]
"""Positions below a limit that an open sequence sees tainted: ``TagStore.tainted``."""


@dataclass(frozen=True, slots=True)
class Label:
    """What all entries of one row of a run have in common; fields as in ``Entry``.

    ``rules`` cites the rule book's section for losses that the ledger finds itself (reason ->
    section): what never was findable, or no longer is. ``isolation_keys`` are the keys of a request
    that keep cached text apart in this framework.
    """

    run: str
    adapter: str
    title: str
    upstream: str
    evidence: str
    scenario: str
    describe: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, str] = field(default_factory=dict)
    isolation_keys: Sequence[str] = ISOLATING


class Accountant:
    """Keeps the account of one row of a run.

    Show it every request (``submit``), every Step when it is planned (``step``), every result when
    it is about to be completed (``complete``) and every refusal, then take ``finish()``. ``costs``
    says what rows cost; without it all costs are 0. ``counters`` are the framework's own.
    ``tainted`` asks a tag pass that is shown every Step and result before this sink.
    """

    def __init__(
        self,
        layout: Layout,
        label: Label,
        costs: Costs | None = None,
        counters: Counters | None = None,
        tainted: Tainted | None = None,
    ) -> None:
        self._layout = layout
        self._host = {pool.name for pool in layout.pools if pool.tier == "host"}
        self._label = label
        self._costs = costs
        self._counters = counters
        self._tainted = tainted
        self._seen = Seen()
        self._running: dict[int, Live] = {}
        self._known: dict[int, Live] = {}  # closed ones too: events and late rows may name them
        self._opened: dict[int, Shared] = {}
        self._accounts: dict[str, Account] = {}
        self._current: dict[int, Admission] = {}
        self._flying: deque[Step] = deque()
        self._now = 0.0
        self._longest_chunk = 1
        self._chunked = False  # some prompt was computed in several rows
        self.background_bytes = 0
        """Bytes copied or loaded on behalf of no admission (write-back while idle)."""

    # -- what the runner shows ----------------------------------------------------------------

    def submit(self, request: Request, now: float = 0.0) -> None:
        """A request was handed to the engine at ``now`` seconds."""
        self._now = max(self._now, now)
        self._accounts[request.id] = Account(request, self._now)

    def refused(self, request: Request, why: str) -> None:
        """A request will never be served."""
        self._account(request.id).refused = why

    def step(self, step: Step) -> None:
        """A Step was planned.

        Order inside it: what running sequences made findable or compute counts as seen for every
        sequence opened here, and what one opened sequence does counts for those opened behind it.
        """
        opened = {op.seq for op in step.ops if type(op) is Open}
        rows = {row.seq: row for row in step.rows}
        own: dict[int, list[Event]] = {}
        for event in step.events:
            if event.seq in opened:
                own.setdefault(event.seq, []).append(event)
            else:
                self._event(event)
        for seq, row in rows.items():
            if seq not in opened:
                self._reach(self._running[seq], row.stop)
        named: int | None = next(iter(opened), None)
        for op in step.ops:
            named = getattr(op, "seq", named)
            self._operation(op, named)
            if type(op) is Open:
                for event in own.get(op.seq, ()):
                    self._event(event)
                if op.seq in rows:
                    self._reach(self._running[op.seq], rows[op.seq].stop)
        for handoff in step.handoffs:
            self._admit(handoff)
        for row in step.rows:
            self._charge(row)
        self._flying.append(step)

    def complete(self, result: StepResult) -> None:
        """The result of the oldest Step in flight is known; one without rows may go unanswered."""
        step = self._flying.popleft()
        while step.number < result.number and not step.rows:
            step = self._flying.popleft()
        assert step.number == result.number, f"result {result.number} answers step {step.number}"
        self._now += result.forward_s + result.sample_s
        if self._tainted is not None:
            for handoff in step.handoffs:
                admission = self._current[handoff.seq]
                admission.tainted = self._tainted(handoff.seq, handoff.start)
        for row, found in zip(step.rows, result.rows, strict=True):
            self._answer(row, found)

    def finish(self) -> list[Entry]:
        """The entries of the run: by order of submission, then by attempt."""
        entries = []
        for name, account in self._accounts.items():
            if account.refused is not None and not account.admissions:
                entries.append(self._refusal(name, account))
            for admission in account.admissions:
                entries.append(self._entry(name, account, admission))
        return entries

    # -- inside a Step ------------------------------------------------------------------------

    def _account(self, name: str) -> Account:
        """The account of a request; a branch ``id#...`` of it gets one of its own."""
        if name not in self._accounts:
            parent = self._accounts.get(name.partition("#")[0])
            request = parent.request if parent else None
            self._accounts[name] = Account(request, parent.submitted if parent else self._now)
        return self._accounts[name]

    def _event(self, event: Event) -> None:
        if event.kind == "insert":
            live = self._named(event)
            if live is not None:
                self._seen.insert(live, event.tokens)
        elif event.kind == "abort" and event.request is not None:
            self._account(event.request).aborted = True

    def _named(self, event: Event) -> Live | None:
        """The sequence an event names, by number or as the last one of a request."""
        if event.seq is not None:
            return self._known[event.seq]
        account = self._accounts.get(event.request or "")
        return account.admissions[-1].live if account and account.admissions else None

    def _operation(self, op: Op, named: int | None) -> None:
        if type(op) is Open:
            request = self._account(op.request).request
            key = isolation(request, op.lora, self._label.isolation_keys)
            live = Live(op.request, op.tokens.slice(0, len(op.tokens)), key)
            self._opened[op.seq] = self._seen.shared(live.text, live.key, self._running.values())
            self._running[op.seq] = self._known[op.seq] = live
        elif type(op) is Close:
            live = self._running.pop(op.seq)
            self._seen.add(live)
            account = self._account(live.request)
            account.frontier = max(account.frontier, live.computed)
        elif isinstance(op, (Copy, Load)) and self._costs is not None:
            self._moved(op, self._running.get(-1 if named is None else named))

    def _moved(self, op: Copy | Load, live: Live | None) -> None:
        """Bytes of a copy or load; they belong to the sequence that the operations speak of."""
        assert self._costs is not None
        if isinstance(op, Load):
            tokens, loads = op.stop - op.start, True
        else:
            tokens = sum(slots for _, _, slots in op.runs)
            loads = op.src_pool in self._host and op.dst_pool not in self._host
        size = tokens * self._costs.slot_bytes(op.group)
        if live is None:
            self.background_bytes += size
        elif loads:
            live.loaded += size
        else:
            live.copied += size

    def _reach(self, live: Live, stop: int) -> None:
        """KV of the known text up to ``stop`` exists once this Step has run."""
        live.computed = max(live.computed, min(stop, len(live.text)))

    def _admit(self, handoff: Handoff) -> None:
        account = self._account(handoff.request)
        live = self._running[handoff.seq]
        waited = self._now - account.submitted
        admission = Admission(handoff, self._opened.pop(handoff.seq), live, waited)
        account.admissions.append(admission)
        account.frontier = max(account.frontier, handoff.start)
        self._current[handoff.seq] = admission

    def _charge(self, row: Row) -> None:
        """Charge a row's prompt positions: the first time to the request, again to this attempt."""
        admission = self._current.get(row.seq)
        if admission is None or row.start >= admission.handoff.known_tokens:
            return
        handoff = admission.handoff
        account = self._accounts[handoff.request]
        prompt = handoff.prompt_tokens
        stop = min(row.stop, handoff.known_tokens)
        border = min(max(row.start, account.frontier), stop)
        first = account.admissions[0]
        first.computed += max(0, min(stop, prompt) - border)
        admission.recomputed += border - row.start
        account.frontier = max(account.frontier, stop)
        self._longest_chunk = max(self._longest_chunk, stop - row.start)
        self._chunked |= row.stop < handoff.known_tokens
        if self._costs is None:
            return
        self._cost(admission, row.start, border, row, heads=border == handoff.known_tokens)
        self._cost(first, border, min(stop, prompt), row, heads=stop >= prompt)

    def _cost(self, admission: Admission, start: int, stop: int, row: Row, *, heads: bool) -> None:
        """What positions ``[start, stop)`` of a row cost; with the last one's logits if wanted."""
        assert self._costs is not None
        if start >= stop:
            return
        work = self._costs.row(start, stop, row.spans, int(heads and row.emits > 0))
        admission.flops += work.flops
        admission.read += work.read
        admission.written += work.written
        admission.ttft_s += self._costs.seconds(work)

    def _answer(self, row: Row, found: RowResult) -> None:
        live = self._known[row.seq]
        for token in found.tokens:
            live.text.append(token)
        if found.tokens:
            live.computed = len(live.text) - 1  # the last one was sampled, never computed
            self._account(live.request).outputs += len(found.tokens)
        else:
            self._reach(live, row.stop)
        if row.seq not in self._running:
            self._seen.add(live)
        admission = self._current.get(row.seq)
        if admission is not None:
            admission.overhead += overhead(row, found, admission.handoff.known_tokens)

    # -- entries ------------------------------------------------------------------------------

    def _entry(self, name: str, account: Account, admission: Admission) -> Entry:
        handoff = admission.handoff
        length = handoff.prompt_tokens
        runs = classify(handoff, admission.shared, length, inserts=self._seen.inserts)
        borders = outside(handoff, runs, self._label.rules)
        cold_flops, cold_ttft = 0, None
        if self._costs is not None:
            cold_flops = self._costs.cold(length, handoff.cold).flops
            chunk = self._longest_chunk if self._chunked else length
            cold_ttft = self._costs.cold_seconds(length, handoff.cold, chunk)
        dropped = account.aborted or account.refused is not None
        return Entry(
            **self._common(name, account),
            attempt=handoff.attempt,
            prompt_tokens=length,
            known_tokens=handoff.known_tokens,
            shared_tokens=max(
                min(max(admission.shared.computed, handoff.raw_tokens), length),
                *(each.stop for each in borders),
                0,
            ),
            raw_tokens=handoff.raw_tokens,
            hit_tokens=handoff.hit_tokens,
            start=handoff.start,
            unit=handoff.unit,
            runs=runs,
            computed_tokens=admission.computed,
            recomputed_tokens=admission.recomputed,
            overhead_tokens=admission.overhead,
            output_tokens=account.outputs,
            estimate_tokens=handoff.estimate_tokens,
            budget_tokens=handoff.budget_tokens,
            tainted_tokens=admission.tainted,
            cold_flops=cold_flops,
            spent_flops=admission.flops,
            kv_read_bytes=admission.read,
            kv_written_bytes=admission.written,
            kv_copied_bytes=admission.live.copied,
            kv_loaded_bytes=admission.live.loaded,
            ttft_s=admission.ttft_s if self._costs is not None else None,
            cold_ttft_s=cold_ttft,
            queue_s=admission.queue_s,
            lanes=lanes(handoff, runs, self._layout),
            deductions=(*borders, *handoff.deductions),
            answers=answers(
                handoff, {group.name: group.block_size for group in self._layout.groups}
            ),
            unsound=handoff.unsound,
            counters=dict(self._counters(handoff)) if self._counters else {},
            status="aborted" if dropped else "done",
        )

    def _refusal(self, name: str, account: Account) -> Entry:
        tokens = len(account.request.prompt) if account.request else 0
        return Entry(
            **self._common(name, account),
            attempt=0,
            prompt_tokens=tokens,
            known_tokens=tokens,
            shared_tokens=0,
            raw_tokens=0,
            hit_tokens=0,
            start=0,
            unit=1,
            runs=(),
            status=f"refused: {account.refused}",
        )

    def _common(self, name: str, account: Account) -> dict[str, Any]:
        label = self._label
        return {
            "run": label.run,
            "adapter": label.adapter,
            "title": label.title,
            "upstream": label.upstream,
            "evidence": label.evidence,
            "options": label.options,
            "describe": label.describe,
            "scenario": label.scenario,
            "request": name,
            "arrival_s": account.submitted,
        }
