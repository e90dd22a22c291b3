"""The ledger's FLOPs of executed Steps are torch's, counted while the reference model runs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from handoff.adapter import load, make_options  # noqa: E402
from handoff.engine.executor import Executor  # noqa: E402
from handoff.kernels import flop_formulas  # noqa: E402
from handoff.ledger.costs import Costs  # noqa: E402
from handoff.model.presets import reference_model  # noqa: E402
from handoff.runner import run  # noqa: E402
from handoff.types import Layout, Step, StepResult  # noqa: E402
from handoff.workload.scenario import RequestSpec, Span, build_arrivals  # noqa: E402

torch.set_num_threads(1)


class Counting:
    """A sink that executes Steps, counting FLOPs twice: by torch and by the ledger's formulas."""

    def __init__(self, layout: Layout) -> None:
        self.executor = Executor(layout, watch=self._price)
        self.costs = Costs(reference_model(self.executor.spec), layout)
        self.counted = self.priced = self.rows = 0

    def step(self, step: Step) -> None:
        self._count(lambda: self.executor.step(step))

    def complete(self, result: StepResult) -> None:
        self._count(lambda: self.executor.complete(result))

    def _count(self, act: Any) -> None:
        with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
            act()
        self.counted += counter.get_total_flops()

    def _price(self, step: Step) -> None:
        for row in self.executor.rows:
            work = self.costs.row(row.start, row.stop, row.spans, row.emits)
            self.priced += work.flops
            self.rows += 1


ROWS: list[tuple[str, dict[str, Any]]] = [
    ("vllm", {}),
    ("vllm", {"groups": [{"type": "full"}, {"type": "swa", "window": 24}]}),
    ("vllm", {"groups": [{"type": "full"}, {"type": "mamba"}], "max_num_batched_tokens": 64}),
    ("vllm", {"groups": [{"type": "full"}, {"type": "local", "chunk": 32}]}),
    ("vllm", {"speculative_method": "eagle", "num_speculative_tokens": 2}),
    (
        "vllm",
        {
            "groups": [{"type": "full"}, {"type": "swa_mla_replay", "window": 32}],
            "max_num_batched_tokens": 64,
        },
    ),
    ("deepinfer", {}),
    ("llamacpp", {}),
]


@pytest.mark.parametrize(("name", "values"), ROWS, ids=lambda value: str(value)[:40])
def test_flops_equal_torchs(name: str, values: dict[str, Any]) -> None:
    adapter = load(name)
    budget = adapter.budget(1024, make_options(adapter, values))
    engine = adapter.engine(make_options(adapter, {**budget, **values}))
    specs = tuple(
        RequestSpec(
            id=f"r{at}",
            when="start" if at < 2 else f"after:r{at - 2}",
            spans=(Span(shared="s", len=70), Span(unique=f"u{at}", len=9 + 20 * at)),
            output_len=3,
        )
        for at in range(3)
    )
    counting = Counting(engine.layout)
    run(engine, build_arrivals(specs), sinks=(counting,))
    assert counting.rows >= 9
    assert counting.priced == counting.counted
