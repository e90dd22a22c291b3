"""What the replays of recordings share: options, scripted outputs, shapes of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.errors import Unsupported
from handoff.types import Request, Row, RowResult, Step, StepResult

from .engine import Engine
from .journal import Evicted, Journal
from .options import Options

__all__ = ["Bench", "gone", "options_of", "run_lengths"]

NAMES = {
    "page": "page_size",
    "pool": "max_total_tokens",
    "swa_pool": "swa_max_total_tokens",
    "window": "sliding_window_size",
    "kind": "attention",
    "policy": "radix_eviction_policy",
    "chunk": "chunked_prefill_size",
    "disable": "disable_radix_cache",
    "hicache": "hicache_write_policy",
    "host_pool": "hicache_max_total_tokens",
    "mamba_pool": "max_mamba_cache_size",
    "replay": "enable_decoder_swa_bounded_replay",
    "evict_interval": "swa_eviction_interval",
    "max_running": "max_running_requests",
    "sched": "schedule_policy",
    "prio": "enable_priority_scheduling",
    "mixed": "enable_mixed_chunk",
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "draft_tokens": "speculative_num_draft_tokens",
}
"""Recorded name of an option -> upstream's name."""

DRIVER_ONLY = frozenset({"stop", "prios", "prefill_aware", "new_ratio"})
"""Keys that are no option of a server, or that ``kind`` says already."""


def options_of(config: Mapping[str, Any]) -> Options:
    """Options of a recorded configuration; its own defaults are those of the recorder."""
    values: dict[str, Any] = {
        "swa_max_total_tokens": config.get("pool", 16384),
        "disable_overlap_schedule": not config.get("overlap", False),
    }
    for key, value in config.items():
        if key == "overlap" or key in DRIVER_ONLY:
            continue
        if key == "eagle":
            values["speculative_algorithm"] = "EAGLE" if value else None
        elif key == "policy_cfg":
            policy = config["policy"]
            values |= {f"{policy}_{name}": setting for name, setting in value.items()}
        elif key in NAMES:
            values[NAMES[key]] = value
        else:
            raise Unsupported(f"recorded option {key}")
    values["enable_hierarchical_cache"] = "hicache" in config
    return Options(**values)


def run_lengths(blocks: Sequence[int]) -> list[list[int]]:
    """``[first, count]`` of each stretch of consecutive ids, in order."""
    out: list[list[int]] = []
    for block in blocks:
        if out and out[-1][0] + out[-1][1] == block:
            out[-1][1] += 1
        else:
            out.append([block, 1])
    return out


def gone(evicted: Evicted) -> list[list[int]]:
    """The blocks that left, sorted."""
    return run_lengths(sorted(block for blocks in evicted.gone for block in blocks.tolist()))


class Transfers(Journal):
    """Collects the copies between tiers as a controller starts them.

    What is queued during a step starts as one copy a direction and pool, loads first; evictions
    under write_back copy at once and stay apart.
    """

    write_back = False

    def __init__(self) -> None:
        self._moved: list[tuple[str, str, int]] = []

    def transfer(self, direction: str, tokens: int, group: str) -> None:
        self._moved.append((direction, group, tokens))

    def moved(self) -> list[list[Any]]:
        """``[direction, tokens]`` of the copies since the last call."""
        out: list[list[Any]] = []
        sums: dict[tuple[str, str], list[Any]] = {}
        if not self.write_back:
            self._moved.sort(key=lambda move: move[0] == "d2h")
        for direction, group, tokens in self._moved:
            apart = self.write_back and direction == "d2h"
            if not apart and (direction, group) in sums:
                sums[direction, group][1] += tokens
            else:
                sums[direction, group] = [direction, tokens]
                out.append(sums[direction, group])
        self._moved.clear()
        return out


class Bench:
    """An engine, its watcher, and scripted outputs."""

    def __init__(self, case: Case, config: Mapping[str, Any], journal: Transfers) -> None:
        self.engine = Engine(options_of(config), journal)
        journal.write_back = config.get("hicache") == "write_back"
        self.cache = self.engine.cache
        scheduler = self.engine.scheduler
        scheduler.counts_processed = False  # the recorder ran no forward pass
        scheduler.new_token_ratio = config.get("new_ratio", scheduler.new_token_ratio)
        self._watcher = case.watch(self.engine.layout) if case.watch else None
        self._requests: dict[str, Request] = {}
        self._of_seq: dict[int, str] = {}
        self._pending: list[Step] = []
        self.planned = False
        """Whether the last ``plan`` gave a Step."""
        self.accepted: Callable[[int, int], int] = lambda step, row: 1
        """Tokens that a row of a verify step accepts, both counted from 0."""
        self._verified = 0

    def submit(self, request: Request) -> None:
        """Queue a request with scripted outputs."""
        self._requests[request.id] = request
        self.engine.enqueue(request)  # the recorder's queue refused nothing

    def plan(self) -> bool:
        """Plan one Step; whether there was one."""
        step = self.engine.step(0.0)
        self.planned = step is not None
        if step is None:
            return False
        if self._watcher:
            self._watcher.step(step)
        self._of_seq |= {handoff.seq: handoff.request for handoff in step.handoffs}
        self._pending.append(step)
        return True

    def answer(self) -> None:
        """Answer the oldest Step with the scripted outputs."""
        step = self._pending.pop(0)
        rows = tuple(self._emit(row, at) for at, row in enumerate(step.rows))
        self._verified += any(row.drafts for row in step.rows)
        result = StepResult(step.number, rows)
        if self._watcher:
            self._watcher.complete(result)
        self.engine.complete(result, 0.0)

    def _emit(self, row: Row, at: int) -> RowResult:
        """Outputs that follow the row, and the right guesses for what comes next."""
        if not row.emits:
            return RowResult(row.seq, ())
        request = self._requests[self._of_seq[row.seq]]
        count = self.accepted(self._verified, at) if row.drafts else 1
        first = row.stop - row.drafts - len(request.prompt)
        tokens = [self._output(request, first + n) for n in range(count + self.engine.num_drafts)]
        return RowResult(row.seq, tuple(tokens[:count]), tuple(tokens[count:]))

    @staticmethod
    def _output(request: Request, index: int) -> int:
        """The scripted output; beyond the script it is arbitrary."""
        assert request.outputs is not None
        return request.outputs[index] if index < len(request.outputs) else 0

    @property
    def in_flight(self) -> int:
        """Steps planned and not answered."""
        return len(self._pending)

    def sizes(self) -> list[int]:
        """Free, evictable and protected tokens of each pool, as recordings order them."""
        cache = self.cache
        out = [cache.room.free_tokens, cache.tree.evictable, cache.tree.protected]
        if cache.windows is not None:
            windows = cache.windows
            out += [cache.room.free_window_tokens, windows.evictable, windows.protected]
        if cache.states is not None:
            states = cache.states
            out += [states.free.num_free, states.evictable, states.protected]
        if cache.host is not None and cache.windows is None:
            out.append(cache.host.free_tokens)
        return out
