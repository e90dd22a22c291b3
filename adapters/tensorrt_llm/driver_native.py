"""Replays ``native`` traces: operations on the cache half, or iterations of the whole engine.

(Recordings' README, "Native traces")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from handoff.conformance.recording import Case

from .cache_half import CacheHalf
from .journal import Fact
from .manager import Admission, KVCacheManager
from .recorded import Notation
from .request import LlmRequest

__all__ = ["EVENT_KINDS", "admission_entry", "put_events", "replay", "tables_of"]

EVENT_KINDS = (*("copy", "take", "evict", "offload", "onboard", "tie", "store", "detach_front"),)


def replay(case: Case) -> Mapping[str, Any]:
    """The whole recorded line of one trace."""
    operations = case.line["ops"]
    if any(op["op"] == "iter" for op in operations):
        from .driver_iterations import replay_iterations

        return replay_iterations(case)
    player = _Player(case)
    line: dict[str, Any] = {"ops": [player.play(op) for op in operations]}
    notation = player.cache.notation
    line["lru_end"] = notation.named(notation.queues())
    return line


def put_events(entry: dict[str, Any], facts: list[Fact], notation: Notation) -> None:
    """Adds the event rows of one operation; kinds without events are left out."""
    for kind in EVENT_KINDS:
        rows = notation.rows(facts, kind)
        if rows:
            entry[kind] = rows


def admission_entry(
    admission: Admission, tables: list[list[list[int]]], notation: Notation
) -> dict[str, Any]:
    """What the recordings say of one added request."""
    request = admission.request
    return {
        "id": int(request.id),
        "hit": request.prepopulated,
        "pos": request.position,
        "chunk": admission.chunk,
        "reused": request.reused,
        "missed": request.missed,
        "alloc": request.alloc,
        "alloc_new": request.alloc_new,
        "blocks": notation.by_window(tables),
    }


def tables_of(manager: KVCacheManager, request: LlmRequest) -> list[list[list[int]]]:
    """Per window and beam the reported block ids."""
    return [
        [Notation.ids(table) for table in sequence.tables(request.beam_width)]
        for sequence in manager.sequence(request)
    ]


class _Player:
    """Plays one trace on the cache half."""

    def __init__(self, case: Case) -> None:
        self.cache = CacheHalf(case, case.line["config"])
        self._after_tie = False
        self._plays: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "add": self._add,
            "prefill": self._prefill,
            "decode": self._decode,
            "spec": self._spec,
            "finish": self._finish,
            "now": self._now,
            "store_pinned": self._store_pinned,
            "unpin": self._unpin,
        }

    def play(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """One operation as recorded."""
        cache = self.cache
        entry = {"op": op["op"], **self._plays[op["op"]](op)}
        put_events(entry, cache.facts(), cache.notation)
        self._after_tie |= "tie" in entry
        if self._after_tie:
            entry["after_tie"] = True
        entry["free"] = cache.notation.free()
        if cache.notation.has_host:
            entry["free_host"] = cache.notation.free_host()
        return entry

    def _add(self, op: Mapping[str, Any]) -> dict[str, Any]:
        requests = [self.cache.request(entry) for entry in op["reqs"]]
        probes = [self._probe(request) for request in requests]
        out = []
        for admission in self.cache.add(requests):
            entry = admission_entry(
                admission, tables_of(self.cache.manager, admission.request), self.cache.notation
            )
            if self.cache.notation.several:
                matched = [part.matched for part in admission.windows]
                entry["hit_window"] = self.cache.notation.named(matched)
            out.append(entry)
        return {"probe": probes, "out": out}

    def _probe(self, request: LlmRequest) -> dict[str, Any]:
        estimator, notation = self.cache.estimator, self.cache.notation
        entry: dict[str, Any] = {"id": int(request.id)}
        entry["need_completion"] = notation.named(estimator.remaining_to_completion(request))
        entry["est"] = request.estimate
        entry["need_one_step"] = notation.named(estimator.needed_one_step(request))
        entry["est_one_step"] = request.estimate
        if not notation.several:
            found = estimator.analyze_prefix_reuse(request)
            entry["reusable_allocated"] = found.allocated
            entry["reusable_all"] = found.all
            first_new = found.first_new
            entry["first_new_block_tokens"] = -1 if first_new is None else first_new.length
        return entry

    def _prefill(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self.cache.prefill(self._of(op), op["token"])
        return {}

    def _decode(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        for token in op["tokens"]:
            self.cache.decode(request, token)
        return {"blocks": self.cache.notation.by_window(tables_of(self.cache.manager, request))}

    def _spec(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        self.cache.speculate(request, op["draft"], op["tokens"])
        return {"blocks": self.cache.notation.by_window(tables_of(self.cache.manager, request))}

    def _finish(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        self.cache.finish(request)
        return {"tokens": len(request.tokens)}

    def _now(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self.cache.manager.set_now(op["ms"])
        self.cache.manager.refresh_blocks()
        return {"lru": self.cache.notation.by_window(self.cache.notation.queues())}

    def _store_pinned(self, op: Mapping[str, Any]) -> dict[str, Any]:
        return {"pinned": self.cache.manager.store_pinned(self._of(op))}

    def _unpin(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self.cache.manager.unpin_blocks_by_id(op["blocks"])
        return {}

    def _of(self, op: Mapping[str, Any]) -> LlmRequest:
        return self.cache.requests[str(op["id"])]
