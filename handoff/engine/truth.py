"""The truth test of a run: executed logits against a cold run, which never saw a cache.

Two comparisons, never mixed. Rows whose tags are clean must equal a cold run *under the same rule*
(``Handoff.cold``) within the tolerance. Rows that descend from an approximation, by the tags, have
no such twin; they, and rows under a rule that truncates, are compared with the *untruncated* model,
which gives the size of the error and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from handoff import kernels
from handoff.index.spans import Seq
from handoff.model.spec import ModelSpec
from handoff.model.transformer import normed
from handoff.model.weights import embed
from handoff.store.tables import Sequence, Settled
from handoff.store.tags import TagStore
from handoff.types import Close, Layout, Step, StepResult

from .cold import Cold, Rule, cold_run, relative_error, stage_of
from .executor import Executor

__all__ = ["TOLERANCE", "Approximation", "Causes", "TruthCheck", "Verdict"]

TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest ``max|difference| / max|logit|`` of a row that counts as equal, by dtype."""


@dataclass
class Approximation:
    """Rows compared with the untruncated model: ``max_error`` as above, KL in nats, top-1."""

    rows: int = 0
    max_error: float = 0.0
    kl: float = 0.0
    top1: int = 0

    def add(self, found: torch.Tensor, exact: torch.Tensor) -> None:
        """One row of logits against the untruncated one."""
        self.rows += 1
        self.max_error = max(self.max_error, relative_error(found, exact))
        p, q = (each.to(torch.float64).log_softmax(-1) for each in (exact, found))
        self.kl += float((p.exp() * (p - q)).sum())
        self.top1 += int(found.argmax() == exact.argmax())

    def merge(self, other: Approximation) -> None:
        """Add the rows of another run."""
        self.rows += other.rows
        self.max_error = max(self.max_error, other.max_error)
        self.kl += other.kl
        self.top1 += other.top1


@dataclass(frozen=True)
class Verdict:
    """What a run came to: ``rows`` that must be exact, and apart from them the approximate ones.

    Errors are the largest ``max|difference| / max|logit|``: of exact rows from a cold run, of
    approximate ones from the untruncated model, which is a size and no part of ``ok``.
    """

    ok: bool
    max_error: float
    tolerance: float
    rows: int
    dtype: str
    approximate_rows: int
    approximate_max_error: float


Causes = dict[tuple[int, int], tuple[str, ...]]
"""Causes of taint by (Step, sequence); clean rows are absent."""


class _Emitted(NamedTuple):
    """Logits of the trailing positions of one row, and why they may be no exact ones."""

    first: int
    tokens: list[int]
    logits: torch.Tensor
    causes: tuple[str, ...]

    def true_lines(self, content: Seq) -> int:
        """How many of the positions belong to the sequence: those before a rejected draft."""
        for at, token in enumerate(self.tokens):
            if self.first + at >= len(content) or content[self.first + at] != token:
                return at
        return len(self.tokens)


@dataclass
class _Pending:
    """What one sequence emitted, until the cold run."""

    of: Sequence
    rule: Rule = field(default_factory=Rule)
    rows: list[_Emitted] = field(default_factory=list)


class TruthCheck:
    """A sink of the runner that executes every Step and checks what it computes.

    A sequence is checked when it closes (or at ``finish``), by one cold run over all its tokens;
    logits behind a rejected draft belong to no text and are dropped. ``rows`` and ``requests``
    count what was compared exactly, ``max_error`` is the largest relative error among them and
    ``worst`` says where; ``not_finite`` counts rows with a NaN, which void content would give.

    ``causes`` are the causes of taint by (Step, sequence), filled from the tags; with
    ``check_tags=False`` those given (of an earlier run) stand, which is how planted faults are
    shown to the logits alone. ``exact`` is the executor's.

    Keys that were moved have no cold twin, except in the first layer, where keys and values depend
    on token and position alone: ``moved_keys`` of them are compared with fresh ones, and
    ``moved_error`` is their largest relative error.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        tolerance: float | None = None,
        spec: ModelSpec | None = None,
        exact: bool = False,
        check_tags: bool = True,
        causes: Causes | None = None,
    ) -> None:
        self.layout = layout
        self.dtype = dtype
        self.tolerance = TOLERANCE[dtype] if tolerance is None else tolerance
        self.tags = TagStore(layout) if check_tags else None
        self.causes: Causes = {} if causes is None else causes
        self.executor = Executor(
            layout,
            spec,
            seed,
            getattr(torch, dtype),
            device,
            poison=True,
            exact=exact,
            watch=self._watch,
        )
        self.rows = 0
        self.requests: set[str] = set()
        self.max_error = 0.0
        self.worst = ""
        self.not_finite = 0
        self.moved_keys = 0
        self.moved_error = 0.0
        self.approximate = Approximation()
        self._pending: dict[int, _Pending] = {}

    def step(self, step: Step) -> None:
        """A Step was planned; ``TagFault`` if its tags are wrong."""
        if self.tags:
            self.tags.step(step)
        self.executor.step(step)

    def complete(self, result: StepResult) -> None:
        """The oldest Step was answered."""
        if self.tags:
            self.tags.complete(result)
        self.executor.complete(result)

    def finish(self) -> None:
        """Check what is still open."""
        for pending in self._pending.values():
            self._check(pending)
        self._pending.clear()

    @property
    def ok(self) -> bool:
        """Every row that must be exact is, and no logit of any row is missing."""
        return not self.not_finite and max(self.max_error, self.moved_error) <= self.tolerance

    def verdict(self) -> Verdict:
        """The result of the whole run."""
        self.finish()
        return Verdict(
            ok=self.ok,
            max_error=self.max_error,
            tolerance=self.tolerance,
            rows=self.rows,
            dtype=self.dtype,
            approximate_rows=self.approximate.rows,
            approximate_max_error=self.approximate.max_error,
        )

    # -- collecting -------------------------------------------------------------------------

    def _watch(self, step: Step) -> None:
        for op in step.ops:
            if isinstance(op, Close) and op.seq in self._pending:
                self._check(self._pending.pop(op.seq))
        rules = {
            handoff.seq: Rule(handoff.known_tokens, handoff.cold)
            for handoff in step.handoffs
            if handoff.cold is not None
        }
        for row, logits in zip(self.executor.rows, self.executor.logits, strict=True):
            pending = self._pending.setdefault(row.of.seq, _Pending(row.of))
            pending.rule = rules.get(row.of.seq, pending.rule)
            if row.emits == 0:
                continue
            tokens = row.tokens.tokens(len(row.tokens) - len(logits))
            key = step.number, row.of.seq
            if self.tags and row.of.seq in self.tags.causes:
                self.causes[key] = self.tags.causes[row.of.seq]
            causes = self.causes.get(key, ())
            self.not_finite += int(not bool(torch.isfinite(logits).all()))
            if "moved" in causes and "zeros" not in causes and "lora" not in causes:
                self._check_moved(row)
            pending.rows.append(_Emitted(row.stop - len(logits), tokens, logits, causes))

    @torch.inference_mode()
    def _check_moved(self, row: Settled) -> None:
        """Every key the row sees in the first layer stands where it should."""
        run = self.executor
        layer = run.spec.layers[0]
        if layer.kind == "state":
            return
        table = row.of.tables[layer.group]
        low = max(row.visible(layer.group), row.stop - (layer.window or row.stop), 0)
        text = row.of.content.tokens(low, row.start) if low < row.start else []
        text += row.tokens.tokens(max(0, low - row.start))
        rows = torch.arange(low, row.stop)
        inputs = normed(embed(run.model.weights, np.array(text)), run.spec.norm_eps)
        fresh = run.model.key_value(0, inputs, stage_of(rows, row.of.lora))
        for pages, expected in zip(run.pages.of(0), fresh, strict=True):
            found = kernels.gather(pages, table.slots(low, row.stop))
            self.moved_error = max(self.moved_error, relative_error(found, expected))
        self.moved_keys += len(rows)

    # -- comparing --------------------------------------------------------------------------

    def _check(self, pending: _Pending) -> None:
        content = pending.of.content
        rows = [(row, row.true_lines(content)) for row in pending.rows]
        length = max((row.first + lines for row, lines in rows if lines), default=0)
        if not length:
            return
        known = content.slice(0, length)
        model, lora = self.executor.model, pending.of.lora
        cold = plain = _lines(cold_run(model, self.layout, known, lora, pending.rule))
        if pending.rule.spans is not None:
            plain = _lines(cold_run(model, self.layout, known, lora))
        for row, lines in rows:
            for position, logits in enumerate(row.logits[:lines], row.first):
                if row.causes or pending.rule.spans is not None:
                    self.approximate.add(logits, plain[position])
                if not row.causes:
                    self._compare(pending.of, position, logits, cold.get(position))

    def _compare(
        self, of: Sequence, position: int, logits: torch.Tensor, cold: torch.Tensor | None
    ) -> None:
        error = torch.inf if cold is None else relative_error(logits, cold)
        self.rows += 1
        self.requests.add(of.request)
        if error > self.max_error:
            self.max_error = error
            self.worst = f"request {of.request}, sequence {of.seq}, position {position}"


def _lines(cold: Cold) -> dict[int, torch.Tensor]:
    return dict(zip(cold.positions.tolist(), cold.logits, strict=True))
