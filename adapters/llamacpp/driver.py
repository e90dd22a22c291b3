"""Replays the recordings of llama-server with the engine (README of the recordings: the schema)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings
from handoff.index.spans import Seq
from handoff.types import Request

from .log import Line
from .native import replay_native
from .options import from_command
from .play import Play, Report

__all__ = ["RECORDINGS"]


# -- common recordings -------------------------------------------------------------------------


def replay_common(case: Case) -> Mapping[str, Any]:
    """One workload, its requests one after the other."""
    assert case.config is not None and case.workload is not None
    play = Play(from_command(case.config), case.watch)
    results = []
    for line in case.workload["requests"]:
        output = Seq.of(line["output"])
        options = {
            **case.config.get("per_request", {}),
            **_lora_field(case.config.get("lora"), line["lora"]),
        }
        request = Request(
            line["id"], Seq.of(line["prompt"]), len(output), outputs=output, options=options
        )
        report = play.serve([request])[0]
        results.append(_common_result(play, report, len(output)))
    return {"workload": case.line["workload"], "config": case.line["config"], "results": results}


def _lora_field(mode: str | None, adapter: Any) -> dict[str, Any]:
    """The ``lora`` field the recorder sent: both scales, or none at all."""
    if mode is None or (mode == "omit" and adapter is None):
        return {}
    wanted = None if adapter is None else int(adapter) - 1
    return {"lora": [{"id": at, "scale": float(at == wanted)} for at in (0, 1)]}


def _common_result(play: Play, report: Report, wanted: int) -> dict[str, Any]:
    """A result line; what equals the schema's default is left out."""
    several = play.options.num_slots > 1
    if report.error is not None:
        result: dict[str, Any] = {
            "req": report.request,
            "err": report.error,
            "prompt_tokens": report.num_prompt,
            "hit_tokens": 0,
            "chunks": [],
        }
    else:
        result = {
            "req": report.request,
            "prompt_tokens": report.num_prompt,
            "hit_tokens": report.hit,
        }
        if several:
            result["slot"] = report.slot
        if report.kept != report.num_prompt + report.num_outputs - 1:
            result["kept"] = report.kept
        if report.num_outputs != wanted:
            result["n_out"] = report.num_outputs
            result["out"] = report.outputs
        if report.chunks != [report.hit]:
            result["chunks"] = report.chunks
        lows = [low for low, _ in report.mem]
        if lows != [_default_low(play, chunk) for chunk in report.chunks]:
            result["pmin"] = lows
        if report.truncated:
            result["trunc"] = 1
    events = [event for line in play.lines if (event := _common_event(line, several)) is not None]
    if events:
        result["ev"] = events
    if several:
        result["slots"] = play.engine.observe()["slots"]
    return result


def _default_low(play: Play, chunk: int) -> int:
    if chunk == 0:
        return -1
    return chunk - 1 if play.options.memory in ("hybrid", "recurrent") else 0


def _common_event(line: Line, several: bool) -> list[Any] | None:
    """A log line as the common files list it: fewer numbers, no slot if there is only one."""
    what, slot, numbers = line.what, line.slot, line.numbers
    if what in ("new", "rm", "mem", "stop", "clear", "purge", "pc_state", "error"):
        return None
    if what in ("lcp", "lru", "byid"):
        return [what, slot] if several else None
    if what == "ck+":
        numbers = (numbers[1], numbers[3])
    elif what in ("ck-inv", "ck-old", "ck-near", "ck-dup"):
        numbers = numbers[-1:]
    elif what in ("pc_room", "pc_size", "pc_tok"):
        numbers = ()
    elif what == "pc_save":
        numbers = numbers[:1]
    place = [slot] if several and slot is not None else []
    return [what, *place, *numbers]


# -- declaration -------------------------------------------------------------------------------

_REQUEST = {"req": True, "prompt": True, "output": True, "body": True}
_STEP = {
    "op": True,
    **_REQUEST,
    "prompts": True,
    "slot": True,
    "file": True,
    "long": _REQUEST,
    "named": _REQUEST,
    "inner": _REQUEST,
    "reqs": _REQUEST,
}
_TRACE = {"trace": True, "kind": True, "model": True, "args": True, "lora": True, "steps": _STEP}


def _marks(event: Sequence[Any]) -> Mapping[str, Any] | None:
    """What is followed of a log event: the name of a ``byid``, name and tokens of a ``pc_save``."""
    return {"byid": {"[0]": True}, "pc_save": {"[0]": True, "[1]": True}}.get(event[0])


FOLLOWED: Mapping[str, Mapping[str, Any]] = {
    # What a model without a grammar said, and when a client hung up, is not the server's doing.
    "draft": {"steps": {"result": {"out": True}}},
    "stop": {"steps": {"result": {"out": True}}},
    "cancel": {"steps": {"kept": True}},
    # When the second request came shows in the tokens that its swap saves, behind its "byid".
    "busy_slot": {"steps": {"ev": {"[]": _marks}}},
}


def _num_requests(line: Mapping[str, Any]) -> int:
    total = 0
    for step in line["steps"]:
        result = step.get("result")
        total += len(result) if isinstance(result, list) else int("prompt" in step)
        total += len(step.get("inner", ())) + len(step.get("reqs", ()))
        total += int("long" in step) + int("named" in step)
    return total


def _native(name: str) -> Kind:
    return Kind(_TRACE, replay_native, FOLLOWED.get(name, {}), requests=_num_requests)


NATIVE: Sequence[str] = (
    "busy_slot",
    "cancel",
    "cmpl",
    "ctxshift",
    "decision",
    "draft",
    "files",
    "hybrid",
    "hybrid_reuse",
    "limits",
    "lora",
    "lora_ram",
    "multi",
    "overlap",
    "pcache",
    "queue",
    "reuse",
    "sim_edge",
    "slots",
    "spans",
    "stop",
    "swa",
    "swa_multi",
)

RECORDINGS = Recordings(
    kinds={
        "common": Kind({"workload": True, "config": True}, replay_common),
        **{f"native_{name}": _native(name) for name in NATIVE},
    },
    options=from_command,
)
