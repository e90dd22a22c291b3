"""Replays ``common`` recordings: one request after another, each until nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request

from .journal import Evicted
from .replay import Bench, Transfers, gone, run_lengths
from .req import Req
from .slots import Blocks

__all__ = ["INPUTS", "replay_common"]

INPUTS: Mapping[str, Any] = {"workload": True, "config": True}
EOS_SLACK = 8
"""Outputs wanted beyond the scripted ones when the last one stops the request."""


class _Listener(Transfers):
    """Collects one request's result."""

    bench: Bench

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """A new request is served."""
        self.chunks: list[list[int]] = []
        self.loaded = 0
        self.lock = self.window_lock = 0
        self.table: list[int] = []
        self.evicted = [0, 0]
        self.gone: list[list[list[int]]] = []
        self.transfers: list[list[Any]] = []
        self.path: list[int] = []
        self.tree = 0
        self.reported: int | None = None

    def extend(self, req: Req, start: int, length: int, blocks: Blocks) -> None:
        cache = self.bench.cache
        self.chunks.append([start, length])
        self.lock = max(self.lock, cache.tree.protected)
        if cache.windows is not None:
            self.window_lock = max(self.window_lock, cache.windows.protected)
        self.loaded = req.loaded
        self._see_table(req)

    def decode(self, rows: Sequence[tuple[Req, Blocks]]) -> None:
        self._see_table(rows[0][0])

    def _see_table(self, req: Req) -> None:
        self.table = req.row.view(0, len(req.row)).tolist()

    def evict(self, evicted: Evicted) -> None:
        self.evicted[0] += evicted.full
        self.evicted[1] += evicted.window
        if evicted.gone:
            self.gone.append(gone(evicted))

    def insert(self, req: Req, up_to: int, finished: bool) -> None:
        assert req.end is not None
        self.tree = req.protected
        self.path = [node.stop for node in req.end.path()]

    def finish(self, req: Req) -> None:
        self.reported = req.reported

    def result(self, name: str, prompt: int, stopped: bool) -> dict[str, Any]:
        """The line's entry for the request just served."""
        cache = self.bench.cache
        hit = self.chunks[0][0]
        out: dict[str, Any] = {"req": name, "prompt_tokens": prompt}
        if len(self.chunks) > 1:
            out["chunks"] = self.chunks
        if stopped:
            out["stop"] = "length"
        out["hit_tokens"] = hit
        if self.reported != hit:
            out["cached_api"] = self.reported
        if cache.host is not None:
            out |= {"host": self.loaded, "dev": hit - self.loaded}
        out["lock"] = self.lock
        if cache.windows is not None:
            out["slock"] = self.window_lock
        out |= {"table": run_lengths(self.table), "tree": self.tree}
        out |= {"computed": sum(length for _, length in self.chunks), "path": self.path}
        if any(self.evicted):
            out |= {"evict": self.evicted, "gone": self.gone}
        sizes = self.bench.sizes()
        out["state"] = [size for at, size in enumerate(sizes) if at not in (2, 5)]
        if self.transfers:
            out["dma"] = self.transfers
        return out


def replay_common(case: Case) -> Mapping[str, Any]:
    """The whole line as our engine records it."""
    assert case.workload is not None and case.config is not None
    config = case.config
    listener = _Listener()
    bench = listener.bench = Bench(case, config, listener)
    priorities = config.get("prios", [0])
    results = []
    for index, given in enumerate(case.workload["requests"]):
        outputs = given["output"]
        by_eos = config.get("stop", "length") == "eos"
        early = by_eos and outputs[-1] in outputs[:-1]  # it would stop there: run to the length
        by_eos = by_eos and not early
        wanted = len(outputs) + (EOS_SLACK if by_eos else 0)
        listener.begin()
        bench.submit(
            Request(
                id=given["id"],
                prompt=Seq.of(given["prompt"]),
                max_tokens=wanted,
                outputs=Seq.of(outputs + [0] * (wanted - len(outputs))),
                salt=given["salt"],
                lora=None if given["lora"] is None else f"lora-{given['lora']}",
                priority=priorities[index % len(priorities)],
                options={"stop_token_ids": [outputs[-1]]} if by_eos else {},
            )
        )
        while bench.plan() or bench.in_flight:
            if bench.in_flight == bench.engine.depth or not bench.planned:
                bench.answer()
            listener.transfers += listener.moved()
        results.append(listener.result(given["id"], len(given["prompt"]), early))
    return {**case.line, "results": results}
