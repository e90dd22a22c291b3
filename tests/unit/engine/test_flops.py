"""FLOPs of an executed step are what plan.py says, counted by torch itself."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from handoff.engine.executor import Executor
from handoff.kernels import flop_formulas
from handoff.model.spec import ModelSpec
from handoff.types import NULL, Bind, Group, Layer, Layout, Open, Pool, Row, StateUse, Step
from tests.truth.play import text

torch.set_num_threads(1)

LAYOUT = Layout(
    (Pool("kv", 32), Pool("w", 32), Pool("s", 4)),
    (Group("full", "kv", 4), Group("window", "w", 4, window=5), Group("state", "s", 1, "state")),
    (Layer("full"), Layer("window"), Layer("state"), Layer("full", reads=0)),
)


def linear(spec: ModelSpec, rows: int, emits: int) -> int:
    """Every map of every row, by hand."""
    wide, narrow = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    weights = 0
    for layer in spec.layers:
        own = (2 * wide if layer.kind == "state" else 2 * narrow) if layer.reads is None else 0
        weights += spec.hidden * (2 * wide + own) + 3 * spec.hidden * spec.intermediate
    return 2 * rows * weights + 2 * emits * spec.hidden * spec.vocab


@pytest.mark.parametrize("lora", [None, "style"])
def test_flops_by_visible_pairs(lora: str | None) -> None:
    executor = Executor(LAYOUT)
    content = text(11)
    ops = [Open(0, "a", content, lora)]
    ops += [Bind(0, name, 0, (0, 1, 2), True) for name in ("full", "window")]
    row = Row(0, 0, content, emits=3, states=(StateUse("state", NULL),))
    with FlopCounterMode(display=False, custom_mapping=flop_formulas()) as counter:
        executor.run(Step(0, 0, -1, tuple(ops), (row,)))
    spec = executor.spec
    full, window = 11 * 12 // 2, 1 + 2 + 3 + 4 + 7 * 5
    plan = executor.last_plan
    assert plan is not None
    assert {key: kv.pairs for key, kv in plan.stages[0].kv.items()} == {
        (0, 0): full,
        (1, 0): window,
    }
    expected = linear(spec, 11, 3) + 4 * spec.heads * spec.head_dim * (2 * full + window)
    if lora:
        wide, narrow, rank = 64, 32, spec.lora_rank
        for value in (narrow, narrow, wide, 0):
            maps = spec.hidden + wide + (spec.hidden + value if value else 0)
            expected += 2 * 11 * rank * maps
    assert counter.get_total_flops() == expected
