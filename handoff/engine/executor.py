"""Runs any Step of any engine on real tensors; reads operations and rows, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch

from handoff.model.forward import ForwardPlan
from handoff.model.spec import ModelSpec, reference_spec
from handoff.model.transformer import Transformer
from handoff.store.pages import KVPages
from handoff.store.tables import InOrder, Settled, Tables
from handoff.types import NULL, Bind, Copy, Layout, Load, Op, Shift, Step, Zero

from .cold import cold_run
from .plan import build

__all__ = ["Executor"]


class Executor(InOrder):
    """Executes Steps in order; a sink of the runner, or driven by ``run`` and ``complete``.

    * ``number``: the last Step; ``rows``: its rows with their real positions and tokens.
    * ``logits``: per row of it, ``[emits, vocab]``.
    * ``last_plan``: the arrays it ran on; ``hidden``: the last stage's rows ``[rows, hidden]``.

    With ``poison`` (truth mode) a fresh bind fills NaN. ``watch`` is called after every Step.
    ``exact`` is ``kernels.attend``'s; the linear maps are rounded by batch all the same.
    """

    def __init__(
        self,
        layout: Layout,
        spec: ModelSpec | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        poison: bool = False,
        exact: bool = False,
        watch: Callable[[Step], None] | None = None,
    ) -> None:
        super().__init__()
        self.watch = watch
        self.layout = layout
        self.spec = spec or reference_spec(layout)
        self.tables = Tables(layout)
        self.model = Transformer(self.spec, seed, dtype, device, exact=exact)
        self.pages = KVPages(layout, self.spec, dtype, device, poison=poison)
        self.build: Callable[[list[Settled], Layout, ModelSpec], ForwardPlan] = build
        self.number = -1
        self.rows: list[Settled] = []
        self.logits: list[torch.Tensor] = []
        self.last_plan: ForwardPlan | None = None
        self.hidden = torch.empty(0, self.spec.hidden, dtype=dtype, device=device)

    def run(self, step: Step) -> Mapping[int, torch.Tensor]:
        """Execute a Step whose predecessors are all answered; logits by sequence."""
        self.step(step)
        assert not self.waiting, f"step {step.number} runs when the one before it is answered"
        return {row.of.seq: logits for row, logits in zip(self.rows, self.logits, strict=True)}

    def _run(self, step: Step) -> None:
        self._execute(step)
        if self.watch:
            self.watch(step)

    @torch.inference_mode()
    def _execute(self, step: Step) -> None:
        for op in step.ops:
            self.tables.apply(op)
            self._apply(op)
        self.number = step.number
        self.rows = [self.tables.settle(step, row) for row in step.rows]
        self.logits = []
        self.last_plan = None
        if not self.rows:
            return
        plan = self.last_plan = self.build(self.rows, self.layout, self.spec)
        self.hidden = self.model.forward(plan, self.pages)
        emits = torch.from_numpy(plan.emits).to(self.hidden.device)
        logits = self.model.logits(self.hidden.index_select(0, emits))
        bounds = plan.emit_start.tolist()
        self.logits = [logits[a:b] for a, b in pairwise(bounds)]
        for row in self.rows:
            self.tables.remember(row)

    def _apply(self, op: Op) -> None:
        """The part of an operation that moves contents; tables are folded already."""
        at = self.tables.index[op.group] if isinstance(op, Bind | Copy | Shift | Zero | Load) else 0
        if isinstance(op, Bind):
            if op.fresh:
                ids = [block for block in op.ids if block != NULL]
                self.pages.void(self.layout.groups[at].pool, ids)
        elif isinstance(op, Copy):
            self.pages.copy(at, op.src_pool, op.dst_pool, op.runs)
        elif isinstance(op, Shift):
            self.pages.shift(at, op.runs, op.delta, self.model.freqs)
        elif isinstance(op, Zero):
            self.pages.zero(at, op.runs)
        elif isinstance(op, Load):
            self._load(op, at)

    def _load(self, op: Load, at: int) -> None:
        """What a cold run would hold: computed afresh, without the store."""
        of = self.tables.sequence(op.seq)
        cold = cold_run(self.model, self.layout, of.content.slice(0, op.stop), of.lora)
        state = self.layout.groups[at].kind == "state"
        for layer in self.spec.owners(at):
            if state:
                ids = of.tables[at].ids[-1:].tolist()
                self.pages.states.save(layer, ids, cold.states[layer][-1:])
                continue
            k, v = cold.kv[layer]
            slots = of.tables[at].slots(op.start, op.stop)
            self.pages.store(layer, k[op.start : op.stop], v[op.start : op.stop], slots)
