"""Replays the event traces: add, schedule, update, abort and reset in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.errors import HandoffError
from handoff.index.spans import VIRTUAL, Seq
from handoff.types import Event, Image, Request

from .insert import MOVED_EXTRA
from .options import VllmOptions
from .replay import Run, copies, crc, pack

__all__ = ["op_inputs", "replay_native", "spell"]

LISTED_POOL = 130
"""Largest pool whose free queue is recorded as a list; larger ones as a crc32."""


def op_inputs(op: Mapping[str, Any]) -> dict[str, Any]:
    """The input keys of an op: all of ``add``, else only what the caller chose."""
    if op.get("op") == "add":
        return {"*": True}
    return {"op": True, "req": True, "n": True, "running": True}


def spell(runs: Sequence[Sequence[int]]) -> list[int]:
    """Token ids of ``[segment, first, count]`` runs."""
    return [1000 * segment + first + i for segment, first, count in runs for i in range(count)]


def request_of(op: Mapping[str, Any]) -> Request:
    """The request of an ``add`` op (or of a hash vector, which has no outputs)."""
    prompt = Seq.of(spell(op["p"]))
    options: dict[str, Any] = {}
    if op.get("skip"):
        options["skip_reading_prefix_cache"] = True
    if op.get("ext"):
        options["external_tokens"] = op["ext"]
    if op.get("emb"):
        options["prompt_embeds"] = op["emb"]
        prompt = Seq.virtual(VIRTUAL + (op["emb"] << 24), len(prompt))
    outputs = spell(op.get("o", ()))
    return Request(
        op.get("req", ""),
        prompt,
        len(outputs),
        outputs=Seq.of(outputs),
        salt=op.get("salt"),
        lora=f"lora{op['lora']}" if op.get("lora") else None,
        images=tuple(Image(*item) for item in op.get("mm", ())),
        priority=op.get("priority", 0),
        options=options,
    )


class _Trace:
    """Writes the op lines of a trace as they would have been recorded."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.engine = run.engine
        self._queue: Any = None
        self._shared: dict[str, int] = {}
        self._tables: dict[str, list[str]] = {}

    def schedule(self) -> dict[str, Any]:
        step, events = self.run.schedule()
        batch = self.engine.batch
        for event in events:
            if event.kind == "preempt":  # its table is listed anew, even if it gets the same one
                self._tables.pop(str(event.request), None)
        out: dict[str, Any] = {"op": "sch"}
        out["s"] = [
            [row.state.id, row.start, row.tokens, *([len(row.drafts)] if row.drafts else [])]
            for row in batch.rows
        ]
        admitted = {}
        for state, hit, external in batch.admitted:
            admitted[state.id] = [hit.tokens, external, [pack(ids) for ids in hit.blocks]]
        if admitted:
            out["adm"] = admitted
        changed = {}
        for row in batch.rows:
            tables = [pack(table) for table in row.state.tables]
            if self._tables.get(row.state.id) != tables:
                changed[row.state.id] = self._tables[row.state.id] = tables
        if changed:
            out["bt"] = changed
        self._note(out, events)
        if step is not None:
            copied = copies(step)
            if copied:
                out["cow"] = copied
        return out

    def update(self) -> dict[str, Any]:
        before = {name: (s, s.known) for name, s in self.engine.requests.items()}
        events = self.run.update()
        out: dict[str, Any] = {"op": "upd"}
        emitted = {name: s.known - known for name, (s, known) in before.items() if s.known > known}
        if emitted:
            out["o"] = emitted
        finished = [event.request for event in events if event.kind == "finish"]
        if finished:
            out["fin"] = finished
        self._note(out, events)
        return out

    def abort(self, request: str) -> dict[str, Any]:
        self.engine.abort(request, 0.0)
        out = {"op": "abort", "req": request}
        self._note(out, self.run.news())
        return out

    def reset(self, running: bool) -> dict[str, Any]:
        done: bool | str
        try:
            done = self.engine.reset(running=running)
        except HandoffError:  # upstream raises: a load holds blocks
            done = "error"
        out: dict[str, Any] = {"op": "reset", "running": running, "ok": done}
        self._note(out, self.run.news())
        return out

    def _note(self, out: dict[str, Any], events: Sequence[Event]) -> None:
        """What any op may carry: preemptions, refusals, keys, evictions, queue, references."""
        groups = {group.name: group for group in self.engine.sizes.groups}
        lists: dict[str, list[Any]] = {"pre": [], "fail": [], "ins": [], "ev": []}
        for event in events:
            if event.kind == "preempt":
                lists["pre"].append(event.request)
            elif event.kind == "defer":
                lists["fail"].append(event.request)
            elif event.kind == "evict":
                lists["ev"] += event.ids
            elif event.kind == "insert":
                assert event.group is not None
                group = groups[event.group]
                for index, block in enumerate(event.ids):
                    tokens = event.tokens - (len(event.ids) - 1 - index) * group.block_size
                    known = None if event.rule == MOVED_EXTRA else tokens
                    lists["ins"].append([group.index, block, known])
        for key, values in lists.items():
            if values:
                out[key] = pack(values) if key == "ev" else values
        pool = self.engine.cache.pool
        queue = list(pool.queue)
        listed = self.engine.options.num_gpu_blocks <= LISTED_POOL
        shown = pack(queue) if listed else crc(queue)
        if shown != self._queue:
            out["fq"] = self._queue = shown
        shared = {str(b): n for b, n in enumerate(pool.holders.counts) if n > 1}
        if shared != self._shared:
            out["rc"] = self._shared = shared


def replay_native(case: Case, options: VllmOptions) -> dict[str, Any]:
    """One event trace on a fresh engine."""
    run = Run(case, options)
    trace = _Trace(run)
    ops: list[dict[str, Any]] = []
    for op in case.line["ops"]:
        kind = op["op"]
        if kind == "add":
            run.submit(request_of(op))
            ops.append(dict(op))
        elif kind == "sch":
            ops.append(trace.schedule())
        elif kind == "upd":
            ops.append(trace.update())
        elif kind == "rep":
            ops.append(_repeat(trace, ops[-2:], op["n"]))
        elif kind == "abort":
            ops.append(trace.abort(op["req"]))
        else:
            ops.append(trace.reset(op["running"]))
    return {
        "trace": case.line["trace"],
        "config": case.line["config"],
        "ops": ops,
        "stats": run.engine.stats.prefix_cache.as_list(),
        "prefill": {name: s.as_list() for name, s in run.engine.stats.prefill.items()},
    }


def _repeat(trace: _Trace, pair: list[dict[str, Any]], times: int) -> dict[str, Any]:
    """The last pair again, each row further on; a pair that is not so becomes a difference."""
    out: dict[str, Any] = {"op": "rep", "n": times}
    rows = pair[0]["s"]
    for _ in range(times):
        rows = [
            [name, start + 1, tokens, *drafts] if drafts else [name, start + tokens, 1]
            for name, start, tokens, *drafts in rows
        ]
        wanted = [
            {"op": "sch", "s": rows} | ({"fail": pair[0]["fail"]} if "fail" in pair[0] else {}),
            {"op": "upd"} | ({"o": pair[1]["o"]} if "o" in pair[1] else {}),
        ]
        got = [trace.schedule(), trace.update()]
        if got != wanted:
            out["instead"] = got
            break
    return out
