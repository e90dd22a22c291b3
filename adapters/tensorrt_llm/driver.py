"""Which recordings there are, and which of their keys are inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings, Schema

from .options import from_recorded

__all__ = ["RECORDINGS"]


def _common(case: Case) -> Mapping[str, Any]:
    from .driver_serial import replay

    return replay(case)


_EVENT_ROWS = (
    *("copy", "take", "evict", "offload", "onboard", "tie", "stored_ctx", "stored_end"),
    *("dec_evict", "dec_offload", "dec_detach_front", "store", "detach_front"),
)


def _window_first(item: dict[str, Any], several: bool) -> dict[str, Any]:
    """Sorts event rows by window: between windows they have no order (recordings' README)."""
    if not several:
        return item
    out = dict(item)
    for name in _EVENT_ROWS:
        rows = out.get(name)
        if isinstance(rows, list) and all(isinstance(row, list) for row in rows):
            out[name] = sorted(rows, key=lambda row: int(row[0]))
    return out


def _canonical_common(line: dict[str, Any]) -> dict[str, Any]:
    results = [_window_first(item, "hit_window" in item) for item in line.get("results", [])]
    return {**line, "results": results}


def _native(case: Case) -> Mapping[str, Any]:
    from .driver_native import replay

    return replay(case)


def _native_requests(line: Mapping[str, Any]) -> int:
    return sum(
        len(op.get("reqs", ())) + len(op.get("new", ())) + ("req" in op) for op in line["ops"]
    )


_NATIVE_INPUTS: Mapping[str, tuple[str, ...]] = {
    "add": ("reqs",),
    "prefill": ("id", "token"),
    "decode": ("id", "tokens"),
    "spec": ("id", "draft", "accepted", "tokens"),
    "finish": ("id",),
    "now": ("ms",),
    "store_pinned": ("id",),
    "unpin": ("blocks",),
    "serve": ("req", "token"),
    "iter": ("new", "intruder", "tokens"),
}


def _native_op(op: Mapping[str, Any]) -> Schema:
    """Which keys of one operation are inputs."""
    return dict.fromkeys(("op", *_NATIVE_INPUTS[op["op"]]), True)


def _canonical_native(line: dict[str, Any]) -> dict[str, Any]:
    ops = [_window_first(op, isinstance(op.get("free"), list)) for op in line.get("ops", [])]
    return {**line, "ops": ops}


RECORDINGS = Recordings(
    kinds={
        "common": Kind(
            inputs={"workload": True, "config": True},
            replay=_common,
            canonical=_canonical_common,
        ),
        "native": Kind(
            inputs={"trace": True, "kind": True, "config": True, "ops": _native_op},
            replay=_native,
            canonical=_canonical_native,
            requests=_native_requests,
        ),
    },
    options=from_recorded,
)
