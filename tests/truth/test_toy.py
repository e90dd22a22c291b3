"""The truth test over the toy engine: hits, shortened hits, and a position shifted by one."""

from __future__ import annotations

import pytest
import torch

from handoff.engine.truth import TruthCheck
from handoff.index.spans import Seq
from handoff.runner import run
from handoff.types import Request
from handoff.workload.arrivals import Arrival, When
from tests.toy import ToyEngine, ToyOptions

torch.set_num_threads(1)


def requests() -> list[Arrival]:
    text = [7 * i + 1 for i in range(50)]
    return [
        Arrival("a", When(), Request("a", Seq(text), 6)),
        Arrival("b", When(), Request("b", Seq([*text[:30], 5, 6, 7, 8]), 6)),
        Arrival("c", When(), Request("c", Seq([*text[:30], 5, 6, 7, 8]), 3)),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_toy_is_exact(dtype: str) -> None:
    engine = ToyEngine(ToyOptions())
    truth = TruthCheck(engine.layout, dtype=dtype)
    run(engine, requests(), sinks=[truth])
    verdict = truth.verdict()
    assert verdict.ok and verdict.rows == 15 and verdict.max_error < truth.tolerance / 5
