"""Which recordings there are, and which of their keys are inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings

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


RECORDINGS = Recordings(
    kinds={
        "common": Kind(
            inputs={"workload": True, "config": True},
            replay=_common,
            canonical=_canonical_common,
        ),
    },
    options=from_recorded,
)
