"""Replays the conformance recordings through the adapter's own engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings

from .driver_common import replay_common
from .driver_native import replay_native
from .flops import Estimator
from .models import PRESETS
from .options import from_recorded
from .saving import replay_saving

__all__ = ["recordings"]


def _flops(case: Case) -> dict[str, Any]:
    line = case.line
    estimator = Estimator(PRESETS[line["model"]], line["mode"], line["keep"])
    calls = []
    for q, k, is_prompt, full_len, valid_start, *_ in line["calls"]:
        answer = estimator.estimate(q, k, bool(is_prompt), full_len, valid_start)
        calls.append([q, k, is_prompt, full_len, valid_start, *answer])
    return {**line, "calls": calls}


def _config(configs: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = configs.get("configs", {}).get(name)
    return found


def recordings() -> Recordings:
    """The kinds of DeepInfer's recordings (README of the recordings)."""
    call = dict.fromkeys(("[0]", "[1]", "[2]", "[3]", "[4]"), True)
    event = {"[]": True, "[-1]": {"conf": True, "tim": True}}
    return Recordings(
        kinds={
            "common": Kind({"workload": True, "config": True}, replay_common),
            "native": Kind(
                {"trace": True, "kind": True, "cfg": True, "ev": {"[]": event}},
                replay_native,
                followed={"ev": {"[]": {"[-1]": {"m": "keys"}}}},
                requests=_native_requests,
            ),
            "flops": Kind(
                {"flops": True, "model": True, "mode": True, "keep": True, "calls": {"[]": call}},
                _flops,
            ),
            "saving": Kind(
                {"saving": True, "cfg": True, "len": True, "rows": {"[]": {"[0]": True}}},
                replay_saving,
            ),
        },
        options=from_recorded,
        config_entry=_config,
    )


def _native_requests(line: Mapping[str, Any]) -> int:
    return sum(event[0] in ("add", "fork") for event in line["ev"])
