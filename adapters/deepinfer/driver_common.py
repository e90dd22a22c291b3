"""Common workloads: requests one after the other, hits injected by the outside store."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request, Step

from .engine import DeepInferEngine
from .environment import Environment
from .flops import Estimator
from .metadata import PromptTables, Rows
from .options import Options, from_recorded
from .outside import Store
from .scheduler import Scheduled
from .window import decode_window

__all__ = ["replay_common", "runs", "written"]

_WINDOWS = ("b16_load",)
"""Configurations whose first decode step was recorded with its window."""
_PIVOTS = ("b16_load", "b16_anchor140")
"""Configurations recorded with the plain pivots."""
_WRITES_ONLY = ("b16_share_token",)
"""Configurations recorded without ring writes and window loads."""


def replay_common(case: Case) -> dict[str, Any]:
    """All requests of one workload under one configuration."""
    assert case.config is not None and case.workload is not None
    options = from_recorded(case.config)
    engine = DeepInferEngine(options)
    name, config = str(case.line["workload"]), str(case.line["config"])
    outputs = {request["id"]: request["output"] for request in case.workload["requests"]}
    watcher = case.watch(engine.layout) if case.watch else None
    env = Environment(engine, name, lambda r, i: int(outputs[r][i]), watcher)
    results = [
        _Serving(engine, env, config, request).serve() for request in case.workload["requests"]
    ]
    return {**case.line, "results": results}


def runs(ids: Items[int]) -> list[list[int]]:
    """Ids as ``[first, count]`` of consecutive runs."""
    found: list[list[int]] = []
    for ident in ids:
        if found and ident == found[-1][0] + found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([ident, 1])
    return found


def written(slots: Any) -> list[int]:
    """``[written, first, last]`` of a slot mapping, ``[0]`` if nothing is written."""
    real = slots[slots >= 0]
    return [len(real), int(real[0]), int(real[-1])] if len(real) else [0]


def _name(value: object) -> str | None:
    """An isolation key as text."""
    return None if value is None else str(value)


class _Serving:
    """One request, served alone until the engine reports no work."""

    def __init__(
        self, engine: DeepInferEngine, env: Environment, config: str, given: Mapping[str, Any]
    ) -> None:
        self.engine = engine
        self.options: Options = engine.options
        self.env = env
        self.config = config
        self.given = given
        self.estimator = Estimator(
            self.options.shape, self.options.yoco_prefill_truncation_mode, self.options.keep
        )
        self.result: dict[str, Any] = {
            "req": given["id"],
            "prompt_tokens": len(given["prompt"]),
            "hit_tokens": 0,
        }
        self.prefill: list[list[Any]] = []
        self.decode: list[int] = []
        self.idle = 0
        self.attention = self.total = 0

    def serve(self) -> dict[str, Any]:
        """The recorded result of this request."""
        given, engine = self.given, self.engine
        request = Request(
            given["id"],
            Seq(given["prompt"]),
            len(given["output"]),
            salt=_name(given["salt"]),
            lora=_name(given["lora"]),
        )
        free = len(engine.blocks.free)
        engine.submit(request, 0.0)
        engine.place()
        if engine.options.outside_policy == "share":  # made room, took nothing
            free = len(engine.blocks.free)
        last = None
        while True:
            step = engine.step(0.0)
            if step is None:
                break
            self.env.plan(step)
            last = self._see(step) or last
            self.env.complete(step)
        assert last is not None
        result = self.result
        if self.idle:
            result["idle"] = self.idle
        result["P"] = self.prefill
        result["dq"] = self.decode if self.options.drafts else len(self.decode)
        result["f"] = [self.attention, self.total]
        states = len(engine.states.free) if engine.states else 0
        result["end"] = [
            last.num_tokens,
            last.length,
            free,
            len(engine.blocks.free),
            states,
        ]
        return result

    def _see(self, step: Step) -> Any:
        batch = self.engine.oldest
        if not batch.rows:
            if not self.prefill and not self.decode:
                self.idle += 1
            return None
        (scheduled,) = batch.rows
        if not self.prefill and not self.decode:
            self._first(scheduled)
        if batch.kind == "prefill":
            self._prefill(scheduled)
        else:
            self._decode(scheduled)
        return scheduled.seq

    def _first(self, scheduled: Scheduled) -> None:
        """What was recorded at the request's first step."""
        seq, result, store = scheduled.seq, self.result, self.engine.outside
        assert isinstance(store, Store)
        batch, found = self.engine.oldest, store.last
        result["hit_tokens"] = seq.grant.hit
        if found.hit != found.start:
            result["aligned"] = found.hit
        if seq.grant.hit and found.entry is not None:
            result["src"] = found.entry.request
            if store.shares:
                result["path"] = batch.kind
        if store.dropped:
            result["ev"] = list(store.dropped)
        result["bt"] = runs(seq.table)
        result["st"] = seq.state
        if batch.clones.blocks:
            result["clb"] = [list(pair) for pair in batch.clones.blocks]
        if batch.clones.states:
            result["cls"] = [list(pair) for pair in batch.clones.states]
        extra = sum(count - 1 for count in self.engine.blocks.counts.counts if count > 1)
        if extra:
            result["nref"] = extra

    def _prefill(self, scheduled: Scheduled) -> None:
        seq, options = scheduled.seq, self.options
        flops = self.estimator.estimate(scheduled.q, scheduled.k, True, seq.length, seq.valid_start)
        self._count(flops)
        rows = Rows(
            scheduled.q, scheduled.k, seq.length, tuple(seq.table), seq.state, seq.valid_start
        )
        tables = PromptTables(options, [rows])
        item: list[Any] = [scheduled.q, scheduled.k, flops.total]
        if not options.shape.window_size:
            self.prefill.append(item)
            return
        item.append([written(tables.compressed_writes(r)) for r in options.shape.ratios])
        if self.config not in _WRITES_ONLY:
            item.append(written(tables.ring_writes()))
            item.append([list(piece) for piece in tables.history()])
            extra = self._extra(tables)
            if extra:
                item.append(extra)
        self.prefill.append(item)

    def _extra(self, tables: PromptTables) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self.config in _PIVOTS:
            extra["piv"] = _ends(tables.pivots())
        mode = self.options.yoco_prefill_truncation_mode
        if mode == "mask":
            extra["ym"] = _ends(tables.masked())
        elif mode == "compact":
            compact = tables.compact()
            extra["yc"] = [
                compact.cu[-1],
                int(compact.places[0]),
                *_ends(compact.pivots),
                written(compact.ring_writes),
            ]
        return extra

    def _decode(self, scheduled: Scheduled) -> None:
        if not self.decode:
            first: list[Any] = [scheduled.q, scheduled.k]
            if self.config in _WINDOWS:
                options = self.options
                window, ring = options.shape.window_size, options.ring_size
                position = scheduled.k - scheduled.q
                first.append(list(decode_window(scheduled.seq.state, position, window, ring)))
            self.result["d1"] = first
        self.decode.append(scheduled.q)
        self._count(self.estimator.estimate(scheduled.q, scheduled.k, False))

    def _count(self, flops: tuple[int, int]) -> None:
        self.attention += flops[0]
        self.total += flops[1]


def _ends(pivots: Any) -> list[list[int]]:
    """First and last row of a table."""
    return [pivots[0].tolist(), pivots[-1].tolist()]
