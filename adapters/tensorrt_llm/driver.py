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


_PROVENANCE: Mapping[str, bool] = {"evidence": True, "manager": True}
"""What a recording says about itself; nothing that an engine could reproduce."""

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
    return dict.fromkeys(("op", *_NATIVE_INPUTS.get(op["op"], ())), True)


def _canonical_native(line: dict[str, Any]) -> dict[str, Any]:
    ops = [_window_first(op, isinstance(op.get("free"), list)) for op in line.get("ops", [])]
    return {**line, "ops": ops}


def _unit(case: Case) -> Mapping[str, Any]:
    from .driver_unit import replay

    return replay(case)


_UNIT_INPUTS: dict[str, Any] = dict.fromkeys(
    (
        *("test", "file", "note", "kind", "config", "policy", "context_lengths", "chunk_unit"),
        *("ctx_token_capacity", "max_context_length", "draft", "max_num_tokens"),
        *("tokens_per_block", "enable_chunked_prefill", "context", "generation_beams"),
        *("chunking", "generation_requests"),
    ),
    True,
)

_EXPECTATIONS: Schema = {
    # Relations: their operands are inputs, see driver_unit.
    **dict.fromkeys(("block_at", "block_not", "free_less_than", "hit_gt0"), True),
    # Values: which ones are asked for is an input.
    "*": "keys",
}
_UNIT_OPS: Schema = {
    **dict.fromkeys(
        (
            *("op", "reqs", "id", "tokens", "kv_add_token", "prefill_done", "store"),
            *("as_tokens", "ms", "pos", "req"),
        ),
        True,
    ),
    "expect": _EXPECTATIONS,
}


def _v2(case: Case) -> Mapping[str, Any]:
    from .driver_v2 import replay

    return replay(case)


V2_RELATIONS = (
    *("first_new_key_equals", "first_new_key_differs", "first_new_key_is_block"),
    "reuse_at_least",
)
_V2_OPS: Schema = {
    **dict.fromkeys(
        (
            *("op", "tokens", "lora", "salt", "name", "parent", "pages", "partial", "scopes"),
            *("keep_open", "num_committed", "context_current_position"),
            "context_remaining_length",
        ),
        True,
    ),
    "expect": {**dict.fromkeys(V2_RELATIONS, True), "*": "keys"},
}


def _one(line: Mapping[str, Any]) -> int:
    return 1


RECORDINGS = Recordings(
    kinds={
        "common": Kind(
            inputs={"workload": True, "config": True, **_PROVENANCE},
            replay=_common,
            canonical=_canonical_common,
        ),
        "native": Kind(
            inputs={
                **dict.fromkeys(("trace", "kind", "config"), True),
                **_PROVENANCE,
                "ops": _native_op,
            },
            replay=_native,
            canonical=_canonical_native,
            requests=_native_requests,
        ),
        "upstream_test": Kind(
            inputs={
                **_UNIT_INPUTS,
                **_PROVENANCE,
                "ops": _UNIT_OPS,
                "positions_after_iteration": "keys",
            },
            replay=_unit,
            requests=_one,
        ),
        "upstream_test_v2": Kind(
            inputs={
                **dict.fromkeys(("test", "file", "note", "commit", "config"), True),
                **_PROVENANCE,
                "ops": _V2_OPS,
            },
            replay=_v2,
            requests=_one,
        ),
    },
    options=from_recorded,
)
