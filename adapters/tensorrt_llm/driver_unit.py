"""Replays ``upstream_test`` recordings: facts of upstream's own unit tests.

(Recordings' README, "upstream_test schema".) The tests call the block manager and the schedulers
directly. What a test asserts as a relation (a block that must not be used, a hit above 0) is no
value that could be reproduced: it is checked, and a line that violates it gets an entry
``violated`` that the recording does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from handoff.conformance.recording import Case
from handoff.errors import BadInput
from handoff.index.spans import Seq

from .blocks import NoFreeBlock
from .budget import fit_token_budget
from .cache_half import CacheHalf
from .journal import Fact
from .microbatch import MicroBatchScheduler, plan_chunks
from .request import LlmRequest

__all__ = ["replay"]


def replay(case: Case) -> Mapping[str, Any]:
    """The whole recorded line of one unit test."""
    kind = case.line.get("kind")
    plays: Mapping[Any, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
        "chunk_plan": _chunk_plan,
        "fit_token_budget": _fit_token_budget,
        "micro_batch": _micro_batch,
    }
    if kind is None:
        test = _BlockManagerTest(case)
        return {"ops": [test.play(op) for op in case.line["ops"]]}
    if kind not in plays:
        raise BadInput(f"unknown kind of unit test {kind!r}", field="kind")
    return plays[kind](case.line)


class _BlockManagerTest:
    """Plays one test of the block manager."""

    def __init__(self, case: Case) -> None:
        self._cache = CacheHalf(case, case.line["config"])
        self._manager = self._cache.manager
        self._pinned: list[int] = []
        self._num_blocks = sum(window.num_primary for window in self._manager.windows)
        self._plays: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "add": self._add,
            "check": self._nothing,
            "finish": self._finish,
            "kv_add_token": self._kv_add_token,
            "now": self._now,
            "prefill_done": self._prefill_done,
            "probe": self._probe,
            "set_position": self._set_position,
            "start": self._nothing,
            "store_context": self._store_context,
            "store_pinned": self._store_pinned,
            "tokens": self._tokens,
            "unpin": self._unpin,
        }
        self._probed: dict[str, Any] = {}
        self._throws = False

    def play(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """One operation and, if the test expects something after it, what holds."""
        entry = {"op": op["op"], **self._plays[op["op"]](op)}
        facts = self._cache.facts()
        if "expect" in op:
            entry["expect"] = self._observed(op["expect"], facts)
        return entry

    # -- operations -------------------------------------------------------------------------

    def _nothing(self, op: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _add(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._throws = False
        try:
            self._cache.add([self._cache.request(entry) for entry in op["reqs"]])
        except NoFreeBlock:
            self._throws = True
        return {}

    def _tokens(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        for token in op["tokens"]:
            request.tokens.append(token)
            if op["kv_add_token"]:
                self._manager.add_token(request)
        return {}

    def _kv_add_token(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._manager.add_token(self._of(op))
        return {}

    def _prefill_done(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        request.position = request.prompt_len
        return {}

    def _set_position(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._of(op).position = op["pos"]
        return {}

    def _store_context(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._manager.store_context(self._of(op))
        return {}

    def _finish(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._of(op)
        if op.get("prefill_done"):
            request.position = request.prompt_len
        if "as_tokens" in op:
            request.rewrite(Seq.of(op["as_tokens"]))
            for sequence in self._manager.sequence(request):
                sequence.unsettle()
        self._manager.remove_sequence(request, store=op["store"])
        return {}

    def _store_pinned(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._pinned = self._manager.store_pinned(self._of(op))
        return {"expect_pinned": len(self._pinned)}

    def _unpin(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._manager.unpin_blocks_by_id(self._pinned)
        return {}

    def _now(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._manager.set_now(op["ms"])
        self._manager.refresh_blocks()
        return {}

    def _probe(self, op: Mapping[str, Any]) -> dict[str, Any]:
        request = self._cache.request(op["req"])
        estimator = self._cache.estimator
        self._probed = {
            "need_completion": estimator.remaining_to_completion(request)[0],
            "need_one_step": estimator.needed_one_step(request)[0],
            "est": {request.id: request.estimate},
            "reusable_all": estimator.analyze_prefix_reuse(request).all,
        }
        return {}

    def _of(self, op: Mapping[str, Any]) -> LlmRequest:
        return self._cache.requests[str(op["id"])]

    # -- expectations -----------------------------------------------------------------------

    def _observed(self, expected: Mapping[str, Any], facts: list[Fact]) -> dict[str, Any]:
        """Values for the keys a test asks for; ``violated`` names relations that do not hold.

        A key nobody knows is left out and shows as a difference.
        """
        free = sum(self._manager.free_blocks())
        whole: dict[str, Callable[[], Any]] = {
            "free": lambda: free,
            "allocated": lambda: self._num_blocks - free,
            "throws": lambda: self._throws,
            "evicted_from_tree": lambda: sum(fact.kind == "evict" for fact in facts),
        }
        by_request: dict[str, Callable[[LlmRequest], Any]] = {
            "hit": lambda request: request.prepopulated,
            "reused": lambda request: request.reused,
            "missed": lambda request: request.missed,
            "alloc_total": lambda request: request.alloc,
            "alloc_new": lambda request: request.alloc_new,
            "blocks": self._table,
            "num_blocks": lambda request: len(self._table(request)),
        }
        observed: dict[str, Any] = {}
        for key, value in expected.items():
            if key in whole:
                observed[key] = whole[key]()
            elif key in self._probed:
                observed[key] = self._probed[key]
            elif key in by_request:
                observed[key] = {
                    ident: by_request[key](self._cache.requests[ident]) for ident in value
                }
        violated = [key for key in _RELATIONS if not self._holds(key, expected.get(key), free)]
        if violated:
            observed["violated"] = violated
        return observed

    def _holds(self, key: str, value: Any, free: int) -> bool:
        """Whether the relation ``key`` with the test's operands holds; absent ones do."""
        if value is None:
            return True
        if key == "free_less_than":
            return free < int(value)
        if key == "hit_gt0":
            return all(self._cache.requests[str(ident)].prepopulated > 0 for ident in value)
        return all(
            (self._table(self._cache.requests[str(ident)])[index] == block) is (key == "block_at")
            for ident, index, block in value
        )

    def _table(self, request: LlmRequest) -> list[int]:
        return self._manager.sequence(request)[0].tables(request.beam_width)[0]


_RELATIONS = ("block_at", "block_not", "free_less_than", "hit_gt0")


# -- schedulers ---------------------------------------------------------------------------


def _plain_request(index: int, length: int, unit: int, **values: int) -> LlmRequest:
    request = LlmRequest(str(values.pop("id", index)), Seq.of(range(length)), 1, unit)
    for name, value in values.items():
        setattr(request, name, value)
    return request


def _chunk_plan(line: Mapping[str, Any]) -> dict[str, Any]:
    """Plans chunk after chunk, as many iterations as the test looks at."""
    unit, drafts = line["chunk_unit"], line.get("draft")
    requests = [
        _plain_request(at, length, unit, drafts=drafts[at] if drafts else 0)
        for at, length in enumerate(line["context_lengths"])
    ]
    positions = []
    for _ in line["positions_after_iteration"]:
        waiting = [request for request in requests if request.in_context]
        plan_chunks(
            *(waiting, line["policy"], unit),
            *(line["ctx_token_capacity"], line["max_context_length"]),
        )
        for request in waiting:
            request.position += request.chunk
        positions.append([request.position for request in requests])
    out: dict[str, Any] = {"positions_after_iteration": positions}
    if drafts:
        out["final_draft"] = [request.drafts for request in requests]
    return out


def _fit_token_budget(line: Mapping[str, Any]) -> dict[str, Any]:
    size = line["tokens_per_block"]
    context = [
        _plain_request(
            *(at, entry["prompt_len"], size),
            position=entry["pos"],
            chunk=entry["chunk"],
            drafts=entry["draft"],
        )
        for at, entry in enumerate(line["context"])
    ]
    decoding = []
    for at, beams in enumerate(line["generation_beams"]):
        request = _plain_request(len(context) + at, 1, size, position=1)
        request.beam_width = beams
        decoding.append(request)
    ordered = sorted(context, key=lambda request: request.last_chunk)
    fit_token_budget(
        ordered, decoding, line["max_num_tokens"], size, line["enable_chunked_prefill"]
    )
    return {"chunks_after": [request.chunk for request in context]}


def _micro_batch(line: Mapping[str, Any]) -> dict[str, Any]:
    policy, unit = line["chunking"] or (None, 1)
    decoding: Iterable[LlmRequest] = (
        _plain_request(at, 1, unit, position=1) for at in range(line["generation_requests"])
    )
    context = [
        _plain_request(
            *(at, entry["prompt_len"], unit),
            id=entry["id"],
            estimate=entry["estimated_reusable_tokens"],
        )
        for at, entry in enumerate(line["context"])
    ]
    limit = line["max_num_tokens"]
    scheduler = MicroBatchScheduler(limit, len(context) + 64, policy, unit)
    batch = scheduler.schedule([*decoding, *context])
    return {"scheduled_id_chunk": [[int(r.id), r.chunk] for r in batch.context]}
