"""The kernel benchmark measures the right thing; its figures are no test."""

from __future__ import annotations

import pytest
import torch

from handoff import kernels
from handoff.bench_kernels import Shape, bench_kernels, contiguous, gathered, make, row_of
from handoff.errors import HandoffError


def test_baselines_compute_the_same_attention() -> None:
    for shape in (
        Shape("extend", (2, 40, 5)),
        Shape("window", (1, 40, 5), window=9),
        Shape("visible", (1, 40, 5), visible=33),
        Shape("decode", (3, 17, 1)),
    ):
        case = make(shape, "cpu", torch.float32)
        k, v = case.pages[0]
        got = kernels.attend(case.q, k, v, case.segments, case.scale)
        for call in (contiguous(case, shape), gathered(case, shape)):
            want = call()
            assert isinstance(want, torch.Tensor)
            assert torch.allclose(got, want.transpose(1, 2).reshape(got.shape), atol=1e-5)
        assert shape.pairs == case.segments.pairs


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda *given: right(*given) + 0.01)
    with pytest.raises(HandoffError, match="contiguous SDPA, nothing is timed"):
        bench_kernels("cpu", repeats=1)


def test_a_missed_ratio_is_not_ok() -> None:
    shape = Shape("x", (1, 0, 4), at_most=1.5)
    fine = row_of(shape, {"handoff": [1.0, 1.2], "contiguous SDPA": [1.0, 1.0]})
    slow = row_of(shape, {"handoff": [2.0, 2.0], "contiguous SDPA": [1.0, 1.0]})
    assert fine["ok"] and not slow["ok"] and slow["ratio"] == {"contiguous SDPA": 2.0}
