"""Chrome trace events of a run, for Perfetto or chrome://tracing.

A process is a row of the run in one scenario, a thread is a request. With the tables of step logs
every chunk of every step is a slice and pool use is a counter; from the ledger alone, waiting and
prefill of every admission are. Times are microseconds of the virtual clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from .grids import labels
from .totals import run_order

__all__ = ["trace_events", "write_perfetto"]

_MICRO = 1e6


def trace_events(frame: pd.DataFrame, steps: pd.DataFrame | None = None) -> dict[str, Any]:
    """The trace as a JSON-ready object in the trace-event format.

    ``frame`` is a ledger; ``steps`` the tables of its step logs, one after the other, if there are
    any.
    """
    names = labels(frame)
    events: list[dict[str, Any]] = []
    process = 0
    for run in run_order(frame):
        mine = frame[frame["run"] == run]
        for scenario in mine["scenario"].drop_duplicates():
            process += 1
            entries = mine[mine["scenario"] == scenario]
            threads = {str(name): at for at, name in enumerate(entries["request"].unique(), 1)}
            events.append(_name("process_name", process, 0, f"{names[run]} · {scenario}"))
            events += [_name("thread_name", process, at, name) for name, at in threads.items()]
            logged = _logged(steps, run, str(scenario))
            if logged is None:
                events += _from_ledger(entries, process, threads)
            else:
                events += _from_steps(logged, process, threads)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_perfetto(
    path: str | Path, frame: pd.DataFrame, steps: pd.DataFrame | None = None
) -> Path:
    """Write ``trace_events`` as JSON; the same ledger gives the same bytes."""
    path = Path(path)
    text = json.dumps(trace_events(frame, steps), separators=(",", ":"), ensure_ascii=False)
    path.write_text(text + "\n", "utf-8", newline="\n")
    return path


def _logged(steps: pd.DataFrame | None, run: str, scenario: str) -> pd.DataFrame | None:
    if steps is None:
        return None
    mine = steps[(steps["run"] == run) & (steps["scenario"] == scenario)]
    return mine if len(mine) else None


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(
    name: str, process: int, thread: int, time: tuple[float, float], **args: Any
) -> dict[str, Any]:
    start, length = time
    return {
        "ph": "X",
        "name": name,
        "cat": "request",
        "pid": process,
        "tid": thread,
        "ts": round(start * _MICRO, 3),
        "dur": round(length * _MICRO, 3),
        "args": args,
    }


def _instant(name: str, process: int, thread: int, at: float, **args: Any) -> dict[str, Any]:
    head = {"ph": "i", "s": "t", "name": name, "cat": "cache", "pid": process, "tid": thread}
    return head | {"ts": round(at * _MICRO, 3), "args": args}


def _counter(name: str, process: int, at: float, **values: int) -> dict[str, Any]:
    head = {"ph": "C", "name": name, "pid": process, "tid": 0}
    return head | {"ts": round(at * _MICRO, 3), "args": values}


def _from_ledger(
    entries: pd.DataFrame, process: int, threads: dict[str, int]
) -> Iterable[dict[str, Any]]:
    for entry in entries.to_dict("records"):
        thread = threads[str(entry["request"])]
        if str(entry["status"]).startswith("refused"):
            yield _instant("refused", process, thread, entry["arrival_s"], why=entry["status"])
            continue
        queue = 0.0 if pd.isna(entry["queue_s"]) else float(entry["queue_s"])
        length = 0.0 if pd.isna(entry["ttft_s"]) else float(entry["ttft_s"])
        start = float(entry["arrival_s"]) + queue
        yield _slice("waiting", process, thread, (float(entry["arrival_s"]), queue))
        numbers = {
            name: int(entry[name])
            for name in ("prompt_tokens", "hit_tokens", "computed_tokens", "attempt")
        }
        yield _slice("prefill", process, thread, (start, length), **numbers)


def _from_steps(
    steps: pd.DataFrame, process: int, threads: dict[str, int]
) -> Iterable[dict[str, Any]]:
    for _, group in steps.groupby("step", sort=True):
        first = group.iloc[0]
        start, length = float(first["start_s"]), float(first["forward_s"])
        yield _counter("blocks in use", process, start, blocks=int(group["blocks"].max()))
        computed = {"first": int((group["tokens"] - group["again"]).sum())}
        yield _counter("tokens", process, start, again=int(group["again"].sum()), **computed)
        for name in str(first["preempted"]).split():
            yield _instant("preempted", process, threads.get(name, 0), start)
        for line in group.to_dict("records"):
            if not line["request"]:
                continue
            thread = threads.get(str(line["request"]), 0)
            if not pd.isna(line["hit"]):
                args = {"hit_tokens": int(line["hit"]), "attempt": int(line["attempt"])}
                yield _instant("admitted", process, thread, start, **args)
            kind = "decode" if line["decode"] else "prefill"
            args = {name: int(line[name]) for name in ("step", "tokens", "again")}
            args["position"] = int(line["start"])
            yield _slice(kind, process, thread, (start, length), **args)
