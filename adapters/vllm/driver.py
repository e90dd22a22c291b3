"""Replays the conformance recordings: translates them into calls and back; no rules in here."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings
from handoff.index.spans import VIRTUAL, Seq
from handoff.types import Copy, Event, Image, Request, Row, RowResult, Step, StepResult

from .allocate import MOVED_EXTRA
from .engine import VllmEngine
from .hashes import block_hashes, none_hash
from .options import CacheGroup, VllmOptions
from .scheduler import Scheduled

__all__ = ["RECORDINGS", "options_of", "pack"]

MAIN = frozenset(
    "b16 b16_pool64 b16_eagle swa64 hyb_f_s64 hyb_f_s128_eagle_dense hyb_f_local64"
    " mamba_f64_h16 mamba_f64_h16_eagle dsv41_w128_b64".split()
)
"""Configurations whose serial recordings also hold tables and the number of keyed blocks."""
WITH_CREATED = frozenset({"b16", "mamba_f64_h16"})
LISTED_POOL = 130
"""Largest pool whose free queue is recorded as a list; larger ones as a crc32."""
STEPS_OF_A_LOAD = 3
"""The fake store's loads end at the third processed output after admission."""


def options_of(config: Mapping[str, Any]) -> VllmOptions:
    """Options of a recorded configuration; what it does not name has the recordings' default."""
    spec = config.get("spec") or {}
    return VllmOptions(
        groups=tuple(CacheGroup(**group) for group in config["groups"]),
        num_gpu_blocks=config.get("num_blocks", 1024),
        max_num_batched_tokens=config.get("budget", 2048),
        max_num_seqs=config.get("max_num_seqs", 128),
        max_model_len=config.get("max_model_len", 8192),
        enable_prefix_caching=config.get("caching", True),
        prefix_cache_retention_interval=config.get("retention", 0),
        prefix_match_unit=config.get("prefix_match_unit"),
        decode_context_parallel_size=config.get("dcp", 1),
        async_scheduling=config.get("scheduler", "sync") == "async",
        policy=config.get("policy", "fcfs"),
        watermark=config.get("watermark", 0.0),
        scheduler_reserve_full_isl=config.get("reserve_full_isl", True),
        long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
        enable_mamba_shared_prefix_checkpoint=config.get("mamba_shared_prefix_checkpoint", False),
        speculative_method=spec.get("method"),
        num_speculative_tokens=spec.get("k", 0),
        num_mtp_modules=spec.get("modules", 1),
        disable_eagle_block_drop=not spec.get("drop", True),
        kv_connector=config.get("connector"),
    )


def pack(ids: Sequence[int]) -> str:
    """A list of ids as the recordings write it: ``a-b``, ``a~b``, ``a*n`` for runs of 3 or more."""
    parts = []
    at = 0
    while at < len(ids):
        first = ids[at]
        for sign, step in (("-", 1), ("~", -1), ("*", 0)):
            stop = at + 1
            while stop < len(ids) and ids[stop] - ids[stop - 1] == step:
                stop += 1
            if stop - at >= 3:
                last = stop - at if sign == "*" else ids[stop - 1]
                parts.append(f"{first}{sign}{last}")
                break
        else:
            stop = at + 1
            parts.append(str(first))
        at = stop
    return " ".join(parts)


def _crc(items: Iterable[object]) -> str:
    return f"{zlib.crc32(','.join(map(str, items)).encode()):08x}"


class _Model:
    """The environment: emits the scripted outputs and accepts as many drafts as was recorded.

    Drafts are the coming outputs themselves, so that accepted ones are what was computed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        spec = config.get("spec") or {}
        self._num_drafts = spec.get("k", 0) if spec.get("drafts") == "mixed" else 0
        self._outputs: dict[str, list[int]] = {}
        self._emitted: dict[str, int] = {}

    def add(self, request: Request) -> None:
        assert request.outputs is not None
        self._outputs[request.id] = request.outputs.tokens()
        self._emitted.setdefault(request.id, 0)

    def answer(
        self, request: str, row: Row, *, padded: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tokens of a row that samples, and the drafts for the next one."""
        outputs = self._outputs[request]
        done = self._emitted[request]
        right = 0
        if self._num_drafts and not padded:
            first = row.stop - row.drafts  # where the row's first sampled token will stand
            right = min((first * 7 + 3) % (self._num_drafts + 1), row.drafts)
        tokens = tuple(outputs[done : done + right + 1])
        done += len(tokens)
        self._emitted[request] = done
        drafts = (*outputs[done:], *(0,) * self._num_drafts)[: self._num_drafts]
        return tokens, drafts


class _Run:
    """An engine with its environment; remembers what each call told."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        self.config = config
        self.engine = VllmEngine(options_of(config))
        self.model = _Model(config)
        self.watcher = case.watch(self.engine.layout) if case.watch else None
        self._batches: deque[tuple[Step, list[tuple[Scheduled, bool]]]] = deque()
        self._loads: dict[int, int] = {}  # transfer -> processed outputs until it ends
        self._told = 0  # events of the outbox that were seen already

    def submit(self, request: Request) -> None:
        self.engine.enqueue(request)
        self.model.add(request)

    def schedule(self) -> tuple[Step | None, list[Event]]:
        """One ``schedule()``; the Step if it runs something, and the new events."""
        engine = self.engine
        step = engine.step(0.0)
        if step is None:
            return None, self.news()
        events = list(step.events[self._told :])
        self._told = 0
        batch = engine.batch
        for state in batch.loads:
            assert state.transfer is not None
            self._loads[state.transfer] = STEPS_OF_A_LOAD
        if self.watcher:
            self.watcher.step(step)
        rows = [(row, row.hit is not None) for row in batch.rows]
        self._batches.append((step, rows))
        return step, events

    def update(self) -> list[Event]:
        """One ``update_from_output()`` of the oldest batch."""
        arrived = []
        for transfer in list(self._loads):
            self._loads[transfer] -= 1
            if not self._loads[transfer]:
                del self._loads[transfer]
                arrived.append(transfer)
        if self._batches:
            step, rows = self._batches.popleft()
            answers = []
            for row, (scheduled, admitted) in zip(step.rows, rows):
                tokens: tuple[int, ...] = ()
                drafts: tuple[int, ...] = ()
                if row.emits and not scheduled.dropped:
                    tokens, drafts = self.model.answer(scheduled.state.id, row, padded=admitted)
                answers.append(RowResult(row.seq, tokens, drafts))
            result = StepResult(step.number, tuple(answers), arrived=tuple(arrived))
            self.engine.complete(result, 0.0)
            if self.watcher:
                self.watcher.complete(result)
        return self.news()

    def news(self) -> list[Event]:
        """Events since the last look that wait for the next Step."""
        events = self.engine.out.events[self._told :]
        self._told += len(events)
        return events


# -- serial recordings --------------------------------------------------------------------------


def replay_common(case: Case) -> dict[str, Any]:
    """Requests of one workload, one after the other, on a fresh engine."""
    assert case.config is not None and case.workload is not None
    name = case.line["config"]
    run = _Run(case, case.config)
    results = []
    for spec in case.workload["requests"]:
        results.append(_serve(run, spec, name))
    return {"workload": case.line["workload"], "config": name, "results": results}


def _serve(run: _Run, spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    engine, pool = run.engine, run.engine.cache.pool
    request = Request(
        spec["id"],
        Seq.of(spec["prompt"]),
        len(spec["output"]),
        outputs=Seq.of(spec["output"]),
        salt=spec.get("salt"),
        lora=f"lora{spec['lora']}" if spec.get("lora") else None,
    )
    run.submit(request)
    state = engine.requests[request.id]
    chunks: list[int] = []
    tables: list[list[str]] = []
    evicted: list[int] = []
    copies: list[list[int]] = []
    steps = 0
    in_flight = 0
    while True:
        step, events = run.schedule()
        if step is not None:
            in_flight += 1
            steps += 1
            for row in step.rows:
                if row.start < len(request.prompt):
                    chunks.append(len(row.tokens))
            tables.append([pack(table) for table in state.tables])
            copies += _copies(step, engine)
        evicted += [block for event in events if event.kind == "evict" for block in event.ids]
        if in_flight == engine.depth or step is None:
            run.update()
            in_flight -= 1
        if request.id not in engine.requests:
            break
    while in_flight:
        run.update()
        in_flight -= 1
    run.news()
    hit = engine.stats.prefill[request.id]
    start = hit.start
    out: dict[str, Any] = {
        "req": request.id,
        "prompt_tokens": len(request.prompt),
        "hit_tokens": hit.local,
    }
    if start != hit.local:
        out["start"] = start
    if chunks != [len(request.prompt) - start]:
        out["chunks"] = chunks
    if steps != len(spec["output"]) + len(chunks) - 1:
        out["steps"] = steps
    if evicted:
        out["ev"] = pack(evicted)
    if copies:
        out["cow"] = copies
    out["fq"] = _crc(f"{b}h" if pool.primary[b] else b for b in pool.queue)
    if name in WITH_CREATED:
        out["new_cached"] = hit.created
    if name in MAIN:
        out["cached"] = pool.num_keyed()
        out["bt"] = tables[0]
        if tables[-1] != tables[0]:
            out["bt_end"] = tables[-1]
    return out


def _copies(step: Step, engine: VllmEngine) -> list[list[int]]:
    found = []
    for op in step.ops:
        if isinstance(op, Copy):
            ((source, target, slots),) = op.runs
            found.append([source // slots, target // slots])
    return found


# -- event traces -------------------------------------------------------------------------------


def _op_inputs(op: Mapping[str, Any]) -> dict[str, Any]:
    """The input keys of an op: all of ``add``, else only what the caller chose."""
    if op.get("op") == "add":
        return {"*": True}
    return {"op": True, "req": True, "n": True, "running": True}


def _spell(runs: Sequence[Sequence[int]]) -> list[int]:
    return [1000 * segment + first + i for segment, first, count in runs for i in range(count)]


def request_of(op: Mapping[str, Any]) -> Request:
    """The request of an ``add`` op (or of a hash vector, which has no outputs)."""
    prompt = Seq.of(_spell(op["p"]))
    options: dict[str, Any] = {}
    if op.get("skip"):
        options["skip_reading_prefix_cache"] = True
    if op.get("ext"):
        options["external_tokens"] = op["ext"]
    if op.get("emb"):
        options["prompt_embeds"] = op["emb"]
        prompt = Seq.virtual(VIRTUAL + (op["emb"] << 24), len(prompt))
    outputs = _spell(op.get("o", ()))
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

    def __init__(self, run: _Run) -> None:
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
            copies = _copies(step, self.engine)
            if copies:
                out["cow"] = copies
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
        done = self.engine.reset(running=running)
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
        shown = pack(queue) if listed else _crc(queue)
        if shown != self._queue:
            out["fq"] = self._queue = shown
        shared = {str(b): n for b, n in enumerate(pool.holders.counts) if n > 1}
        if shared != self._shared:
            out["rc"] = self._shared = shared


def replay_native(case: Case) -> dict[str, Any]:
    """One event trace on a fresh engine."""
    assert case.config is not None
    run = _Run(case, case.config)
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


# -- hash vectors -------------------------------------------------------------------------------


def replay_hashes(case: Case) -> dict[str, Any]:
    """One vector: the NONE hash and the chain of block hashes."""
    line = case.line
    seed, lora, rows = line["PYTHONHASHSEED"], line.get("lora"), line.get("emb")
    tokens = _spell(line["p"])
    embeds = None
    if rows:
        embeds = [[2 * r + 1000 * rows, 2 * r + 1 + 1000 * rows] for r in range(len(tokens))]
        tokens = [0] * len(tokens)
    hashes = block_hashes(
        tokens,
        line["block_size"],
        line["algo"],
        seed,
        lora=(f"lora{lora}", f"adapters/{lora}") if lora else None,
        images=[Image(*item) for item in line.get("mm", ())],
        salt=line.get("salt"),
        embeds=embeds,
    )
    return {
        **line,
        "none_hash": none_hash(line["algo"], seed).hex(),
        "hashes": [value.hex() for value in hashes],
    }


RECORDINGS = Recordings(
    kinds={
        "common": Kind(inputs={"workload": True, "config": True}, replay=replay_common),
        "native": Kind(
            inputs={"trace": True, "config": True, "ops": _op_inputs},
            replay=replay_native,
            requests=lambda line: sum(op["op"] == "add" for op in line["ops"]),
        ),
        "hashes": Kind(
            inputs={
                key: True
                for key in (
                    "algo PYTHONHASHSEED block_size p salt lora mm emb".split()
                )
            },
            replay=replay_hashes,
        ),
    },
    options=options_of,
    config_entry=lambda configs, name: configs.get("configs", {}).get(name),
)
