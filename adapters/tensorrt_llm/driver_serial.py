"""Replays ``common`` recordings: requests of a workload, one after the other, through the engine.

(Recordings' README, "Common recordings")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handoff.conformance.recording import Case
from handoff.errors import BadInput
from handoff.index.spans import Seq
from handoff.types import Request, RowResult, Step, StepResult

from .engine import Engine
from .journal import Fact
from .options import from_recorded
from .recorded import SALTS, Notation
from .request import LlmRequest
from .sequence import WindowSequence

__all__ = ["replay"]

_ADD_EVENTS = ("copy", "take", "evict", "offload", "onboard", "tie")
_DECODE_EVENTS = ("evict", "offload", "detach_front")


def replay(case: Case) -> Mapping[str, Any]:
    """The whole recorded line of one workload under one configuration."""
    if case.config is None or case.workload is None:
        raise BadInput("a common recording needs its configuration and workload")
    server = _Server(case)
    return {"results": [server.serve(entry) for entry in case.workload["requests"]]} | server.end()


@dataclass(slots=True)
class _Served:
    """What was seen while one request ran."""

    live: LlmRequest
    estimate: int
    probe: int
    matched: list[int]
    sequences: list[WindowSequence]
    free: list[int]
    columns: list[int]
    added: list[Fact]
    decoded: list[Fact] = field(default_factory=list)
    context: list[Fact] = field(default_factory=list)
    end: list[Fact] = field(default_factory=list)
    chunks: list[list[int]] = field(default_factory=list)


class _Server:
    """One engine that gets one request at a time."""

    def __init__(self, case: Case) -> None:
        assert case.config is not None
        self.engine = Engine(from_recorded(case.config))
        self.engine.number_salts(SALTS)
        self.engine.journal.keeps_facts = True
        self._watcher = case.watch(self.engine.layout) if case.watch else None
        self._lists = bool(case.config["block_lists_recorded"])
        self._notation = Notation(self.engine.manager)
        self._smallest = min(window.num_primary for window in self.engine.manager.windows)
        self._after_tie = False

    # -- run --------------------------------------------------------------------------------

    def serve(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Runs one request to its end and reports it."""
        outputs = list(entry["output"])
        lora = entry.get("lora")
        self.engine.submit(
            Request(
                str(entry["id"]),
                Seq.of(entry["prompt"]),
                len(outputs),
                salt=entry.get("salt"),
                lora=None if lora is None else str(lora),
            ),
            0.0,
        )
        live = self.engine.active[-1]
        served, step = self._admit(live)
        while True:
            outputs = self._complete(served, step, outputs)
            if live not in self.engine.active:
                return self._report(served)
            step = self._plan()
            served.decoded += self.engine.journal.take_facts()

    def _admit(self, live: LlmRequest) -> tuple[_Served, Step]:
        engine = self.engine
        probe = engine.estimator.probe_prefix_match_length(live)
        step = self._plan()
        sequences = engine.manager.sequence(live)
        assert engine.last is not None
        served = _Served(
            live,
            engine.last.estimates.get(live.id, 0),
            probe,
            [part.matched for part in engine.last.admissions[0].windows],
            sequences,
            engine.manager.free_blocks(),
            [len(sequence.ids) for sequence in sequences],
            engine.journal.take_facts(),
        )
        return served, step

    def _plan(self) -> Step:
        step = self.engine.step(0.0)
        assert step is not None, "a single request always runs"
        if self._watcher is not None:
            self._watcher.step(step)
        return step

    def _complete(self, served: _Served, step: Step, outputs: list[int]) -> list[int]:
        """Answers a Step with the next recorded outputs; returns those left."""
        (row,) = step.rows
        if served.live.in_context:
            served.chunks.append([row.start, len(row.tokens)])
        result = StepResult(step.number, (RowResult(row.seq, tuple(outputs[: row.emits])),))
        if self._watcher is not None:
            self._watcher.complete(result)
        self.engine.complete(result, 0.0)
        facts = self.engine.journal.take_facts()
        end = next((at for at, fact in enumerate(facts) if fact.kind == "remove"), len(facts))
        served.context += facts[:end]
        served.end += facts[end + 1 :]
        return outputs[row.emits :]

    def end(self) -> dict[str, Any]:
        """What the line says besides its results."""
        if self._notation.several or self._smallest > 64:
            return {}
        return {"lru_end": self._notation.queues()[0]}

    # -- report -----------------------------------------------------------------------------

    def _report(self, served: _Served) -> dict[str, Any]:
        live = served.live
        result: dict[str, Any] = {
            "req": live.id,
            "prompt_tokens": live.prompt_len,
            "hit_tokens": live.prepopulated,
            "est_tokens": served.estimate,
            "reused_blocks": live.reused,
            "missed_blocks": live.missed,
            "alloc": live.alloc,
            "computed_tokens": sum(size for _, size in served.chunks),
            "chunks": served.chunks,
        }
        if served.probe != served.estimate:
            result["probe_tokens"] = served.probe
        if self._notation.several:
            result["hit_window"] = self._notation.by_window(served.matched)
        for kind in _ADD_EVENTS:
            self._put_rows(result, kind, served.added, kind)
        self._after_tie |= "tie" in result
        if self._after_tie:
            result["after_tie"] = True
        if self._lists:
            tables = [
                self._notation.ids(sequence.ids[:size])
                for sequence, size in zip(served.sequences, served.columns)
            ]
            result["blocks"] = self._notation.by_window(tables)
        if self._smallest < 128:
            result["free"] = self._notation.free(served.free)
        for kind in _DECODE_EVENTS:
            self._put_rows(result, f"dec_{kind}", served.decoded, kind)
        self._put_stored(result, served)
        self._put_decode_blocks(result, served)
        if self._notation.has_host:
            result["free_host_end"] = self._notation.free_host()
        return result

    def _put_rows(self, result: dict[str, Any], name: str, facts: list[Fact], kind: str) -> None:
        rows = self._notation.rows(facts, kind)
        if rows:
            result[name] = rows

    def _put_stored(self, result: dict[str, Any], served: _Served) -> None:
        """Context stores as runs of blocks, the store at the end block by block."""
        runs: list[list[Any]] = []
        for fact in served.context:
            block, index, _ = fact.data
            head = [fact.window] if self._notation.several else []
            if runs and runs[-1][:-2] == head and runs[-1][-2] + len(runs[-1][-1]) == index:
                runs[-1][-1].append(block)
            else:
                runs.append([*head, index, [block]])
        end = [self._notation.row(fact) for fact in served.end if fact.kind == "store"]
        for name, rows in (("stored_ctx", runs), ("stored_end", end)):
            if rows:
                result[name] = rows if self._lists else len(rows)

    def _put_decode_blocks(self, result: dict[str, Any], served: _Served) -> None:
        added = [sequence.ids[size:] for sequence, size in zip(served.sequences, served.columns)]
        if self._notation.several or (added[0] and self._lists):
            result["dec_blocks"] = self._notation.by_window(added)
