"""The contract suite over every installed adapter."""

from __future__ import annotations

import pytest

from handoff.adapter import load, names
from handoff.conformance.contract import check_adapter


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("pool_tokens", [640, 4096])
def test_contract(name: str, pool_tokens: int) -> None:
    finished = 0

    def count(outcome: object) -> None:
        nonlocal finished
        finished += len(outcome.finished)  # type: ignore[attr-defined]

    check_adapter(load(name), pool_tokens=pool_tokens, on_outcome=count)
    assert finished > 0, "nothing was served at all"
