"""Replays ``upstream_test_v2`` recordings: unit-test facts of the V2 manager.

Relations (a key that equals another one's) are checked as in ``driver_unit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from handoff.conformance.recording import Case

from .driver import V2_RELATIONS as RELATIONS
from .v2 import FULL, SWA, Cache, Settings, TreeBlock, TreeV2, committable

__all__ = ["replay"]


def replay(case: Case) -> Mapping[str, Any]:
    """The whole recorded line of one unit test."""
    test = _Test(case.line["config"])
    return {"ops": [test.play(op) for op in case.line["ops"]]}


class _Test:
    """Plays one test on a tree."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._tree = TreeV2(
            Settings(
                int(config.get("tokens_per_block", 32)),
                config.get("window"),
                int(config.get("sink_tokens", 0)),
                int(config.get("reuse_match_backoff", 0)),
                bool(config.get("commit_min_snapshot", False)),
            )
        )
        self._blocks: dict[str, TreeBlock] = {}
        self._caches: dict[str, Cache] = {}
        self._committed: list[Cache] = []
        self._keys: dict[str, bytes | None] = {}
        self._plays: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "clear": self._clear,
            "commit": self._commit,
            "commit_more": self._commit_more,
            "create": self._create,
            "make_block": self._make_block,
            "match": self._match,
            "note": self._note,
            "probe": self._probe,
            "scopes": self._scopes,
            "try_commit_blocks": self._try_commit_blocks,
        }

    def play(self, op: Mapping[str, Any]) -> dict[str, Any]:
        """One operation; of what it observes, what the test asks for (an unknown key differs)."""
        observed = self._plays[op["op"]](op)
        entry: dict[str, Any] = {"op": op["op"]}
        if "expect" not in op:
            return entry
        expected = op["expect"]
        entry["expect"] = {key: observed[key] for key in expected if key in observed}
        violated = [
            key
            for key in RELATIONS
            if key in expected and not self._holds(key, expected[key], observed)
        ]
        if violated:
            entry["expect"]["violated"] = violated
        return entry

    def _holds(self, key: str, operand: Any, observed: Mapping[str, Any]) -> bool:
        if key == "reuse_at_least":
            return bool(observed["reuse"] >= operand)
        if key == "first_new_key_is_block":
            return bool(observed["key"] == self._blocks[operand].key)
        return (observed["key"] == self._keys[operand]) is (key == "first_new_key_equals")

    # -- operations -------------------------------------------------------------------------

    def _clear(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._tree.clear()
        return {}

    def _commit(self, op: Mapping[str, Any]) -> dict[str, Any]:
        cache = self._tree.create(op["tokens"], *_scope(op))
        rest = op["tokens"][len(cache.tokens) :]
        self._tree.commit(cache, rest, stop=not op.get("keep_open", False))
        self._committed.append(cache)
        return {}

    def _commit_more(self, op: Mapping[str, Any]) -> dict[str, Any]:
        self._tree.commit(self._caches[op["name"]], op["tokens"], stop=False)
        return {}

    def _create(self, op: Mapping[str, Any]) -> dict[str, Any]:
        cache = self._tree.create(op["tokens"], *_scope(op))
        if "name" in op:
            self._caches[op["name"]] = cache
        return {"committed": len(cache.tokens)}

    def _make_block(self, op: Mapping[str, Any]) -> dict[str, Any]:
        parent = self._blocks[op["parent"]] if "parent" in op else self._tree.root(*_scope(op))
        wanted = op.get("pages") or dict.fromkeys((FULL, SWA), True)
        pages = self._tree.new_pages([group for group, present in wanted.items() if present])
        block = self._tree.insert(parent, tuple(op["tokens"]), pages)
        assert block is not None
        if "name" in op:
            self._blocks[op["name"]] = block
        return {}

    def _match(self, op: Mapping[str, Any]) -> dict[str, Any]:
        partial = bool(op.get("partial", False))
        return {"tokens": self._tree.match(op["tokens"], *_scope(op), partial).tokens}

    def _note(self, op: Mapping[str, Any]) -> dict[str, Any]:
        pages = self._caches["B"].pages
        other = self._committed[1].pages
        return {"B_block1_page_differs_from_second_request": pages[1] != other[1]}

    def _probe(self, op: Mapping[str, Any]) -> dict[str, Any]:
        scope = _scope(op)
        found = self._tree.match(op["tokens"], *scope)
        key = self._tree.first_new_key(op["tokens"], *scope)
        if "name" in op:
            self._keys[op["name"]] = key
        return {
            "reuse": found.tokens,
            "first_new_key_none": key is None,
            "swa_pages_present": [SWA in block.pages for block, _ in found.blocks],
            "key": key,
        }

    def _scopes(self, op: Mapping[str, Any]) -> dict[str, Any]:
        keys = {self._tree.root_key(lora, salt) for lora, salt in op["scopes"]}
        return {"distinct_root_keys": len(keys)}

    def _try_commit_blocks(self, op: Mapping[str, Any]) -> dict[str, Any]:
        now, committed, stopped = committable(
            op["tokens"],
            op["num_committed"],
            op["context_current_position"],
            op["context_remaining_length"],
        )
        return {"committed_now": now, "num_committed": committed, "stopped": stopped}


def _scope(op: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return op.get("lora"), op.get("salt")
