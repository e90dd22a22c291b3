"""The contract suite on servers and memories that the default options do not show."""

from __future__ import annotations

from typing import Any

import pytest

from handoff.adapter import load
from handoff.conformance.contract import check_adapter

SMALL_BATCH = {"batch_size": 64, "ubatch_size": 32}
SERVERS: dict[str, dict[str, Any]] = {
    "one slot": {"parallel": 1},
    "four slots, no RAM cache": {"parallel": 4, "cache_ram": 0},
    "chunk reuse": {"parallel": 1, "cache_reuse": 8},
    "context shift": {"parallel": 2, "context_shift": True},
    "window": {"memory": "window", "n_swa": 64, **SMALL_BATCH},
    "full-size window": {"memory": "window", "n_swa": 64, "swa_full": True, "cache_reuse": 8},
    "hybrid": {"memory": "hybrid", "state_bytes": 300},
    "recurrent, split": {"memory": "recurrent", "state_bytes": 300, "parallel": 2},
    "drafts": {"spec_type": "draft-simple", **SMALL_BATCH},
    "drafts on a hybrid": {"memory": "hybrid", "spec_type": "draft-simple"},
    "drafts on a window": {"memory": "window", "n_swa": 16, "spec_type": "draft-simple"},
}


@pytest.mark.parametrize("name", SERVERS)
def test_contract(name: str) -> None:
    served = 0

    def count(outcome: Any) -> None:
        nonlocal served
        served += len(outcome.finished)

    check_adapter(
        load("llamacpp"), values=SERVERS[name], seeds=range(3), pool_tokens=1024, on_outcome=count
    )
    assert served > 30
