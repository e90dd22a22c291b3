"""Planted faults of an executor: the Steps are right, what is done with them is not.

Tags cannot see these, for tags are not tensors; the logits must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from handoff import kernels
from handoff.model.forward import ForwardPlan, KVPlan, StagePlan, StatePlan
from handoff.model.spec import ModelSpec
from handoff.store.tables import Settled
from handoff.types import Copy, Layout, Shift, Step

from .executor import Executor
from .planting import Feed
from .truth import Causes

__all__ = ["BROKEN", "BrokenExecutor"]


@dataclass(frozen=True)
class BrokenExecutor:
    """One kind; ``plant`` breaks an executor and says whether a run can show it.

    A run is its feed and the causes of taint by (Step, sequence): rows with a cause are compared
    with nothing exact, so a fault must also reach others.
    """

    name: str
    what: str
    absent: str
    plant: Callable[[Executor, Feed, Causes], bool]
    needs: str = ""
    """A planner's fault that the run must be able to carry, so that this one can do harm."""


def _hit_steps(feed: Feed, causes: Causes) -> dict[int, int]:
    """First Steps in which an exact row reads cached content, with its sequence."""
    return {
        step.number: handoff.seq
        for step in feed
        if isinstance(step, Step)
        for handoff in step.handoffs
        if handoff.hit_tokens and handoff.start and (step.number, handoff.seq) not in causes
    }


def _has(feed: Feed, kind: type) -> bool:
    return any(isinstance(op, kind) for step in feed if isinstance(step, Step) for op in step.ops)


Change = Callable[[ForwardPlan, int], ForwardPlan]


def _in_hits(executor: Executor, feed: Feed, causes: Causes, change: Change) -> bool:
    """Let ``change(plan, index of the row)`` loose on the rows that follow a hit."""
    hits, build = _hit_steps(feed, causes), executor.build

    def broken(rows: list[Settled], layout: Layout, spec: ModelSpec) -> ForwardPlan:
        plan = build(rows, layout, spec)
        for at, row in enumerate(rows):
            if hits.get(executor.number) == row.of.seq:
                plan = change(plan, at)
        return plan

    executor.build = broken
    return bool(hits)


def _each_kv(plan: ForwardPlan, change: Callable[[StagePlan, KVPlan], KVPlan]) -> ForwardPlan:
    stages = tuple(
        replace(stage, kv={key: change(stage, kv) for key, kv in stage.kv.items()})
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _rotation(executor: Executor, feed: Feed, causes: Causes) -> bool:
    def change(plan: ForwardPlan, row: int) -> ForwardPlan:
        stages = []
        for stage in plan.stages:
            positions = stage.positions.copy()
            positions[stage.q_start[row] : stage.q_start[row + 1]] += 1
            stages.append(replace(stage, positions=positions))
        return replace(plan, stages=tuple(stages))

    return _in_hits(executor, feed, causes, change)


def _last_slot(executor: Executor, feed: Feed, causes: Causes) -> bool:
    def change(plan: ForwardPlan, row: int) -> ForwardPlan:
        def lose(stage: StagePlan, kv: KVPlan) -> KVPlan:
            slots = kv.slots.copy()
            slots[stage.q_start[row + 1] - 1] = -1
            return replace(kv, slots=slots)

        return _each_kv(plan, lose)

    return _in_hits(executor, feed, causes, change)


def _one_key_short(executor: Executor, feed: Feed, causes: Causes) -> bool:
    def change(plan: ForwardPlan, row: int) -> ForwardPlan:
        def hide(stage: StagePlan, kv: KVPlan) -> KVPlan:
            segments = kv.segments
            return replace(kv, segments=replace(segments, visible=segments.lowest + 1))

        return _each_kv(plan, hide)

    return _in_hits(executor, feed, causes, change)


def _stale_table(executor: Executor, feed: Feed, causes: Causes) -> bool:
    """The first block of a hit is looked up where it does not lie."""

    def change(plan: ForwardPlan, row: int) -> ForwardPlan:
        def mislead(stage: StagePlan, kv: KVPlan) -> KVPlan:
            table = kv.segments.table.copy()
            if table.shape[1] > 1:
                table[:, 0] = table[:, 1]
            return replace(kv, segments=replace(kv.segments, table=table))

        return _each_kv(plan, mislead)

    return _in_hits(executor, feed, causes, change)


def _window_edge(executor: Executor, feed: Feed, causes: Causes) -> bool:
    build = executor.build

    def narrow(stage: StagePlan, kv: KVPlan) -> KVPlan:
        window = kv.segments.window
        if window is None:
            return kv
        return replace(kv, segments=replace(kv.segments, window=window - 1))

    def broken(rows: list[Settled], layout: Layout, spec: ModelSpec) -> ForwardPlan:
        return _each_kv(build(rows, layout, spec), narrow)

    executor.build = broken
    windows = [layer.window for layer in executor.spec.layers if layer.window]
    longest = max(
        (row.stop for step in feed if isinstance(step, Step) for row in step.rows), default=0
    )
    return any(window < longest for window in windows)


def _state_early(executor: Executor, feed: Feed, causes: Causes) -> bool:
    build = executor.build

    def early(states: StatePlan, starts: Sequence[int]) -> StatePlan:
        rows = tuple(row - (row not in starts) for row in states.save_rows)
        return replace(states, save_rows=rows)

    def broken(rows: list[Settled], layout: Layout, spec: ModelSpec) -> ForwardPlan:
        plan = build(rows, layout, spec)
        starts = plan.stages[0].q_start.tolist()
        return replace(plan, states={at: early(each, starts) for at, each in plan.states.items()})

    executor.build = broken
    return any(layer.kind == "state" for layer in executor.spec.layers)


def _shift_values(executor: Executor, feed: Feed, causes: Causes) -> bool:
    shift, pages = executor.pages.shift, executor.pages

    def broken(
        group: int, runs: Sequence[tuple[int, int]], delta: int, freqs: torch.Tensor
    ) -> None:
        shift(group, runs, delta, freqs)
        values = [pages.of(layer)[1] for layer in executor.spec.owners(group)]
        kernels.shift(values, runs, delta, freqs)

    pages.shift = broken  # type: ignore[method-assign]
    return _has(feed, Shift)


def _shift_sign(executor: Executor, feed: Feed, causes: Causes) -> bool:
    shift = executor.pages.shift

    def broken(
        group: int, runs: Sequence[tuple[int, int]], delta: int, freqs: torch.Tensor
    ) -> None:
        shift(group, runs, -delta, freqs)

    executor.pages.shift = broken  # type: ignore[method-assign]
    return _has(feed, Shift)


def _copy_beside(executor: Executor, feed: Feed, causes: Causes) -> bool:
    copy, layout = executor.pages.copy, executor.layout

    def broken(
        group: int, src_pool: str, dst_pool: str, runs: Sequence[tuple[int, int, int]]
    ) -> None:
        kind = layout.groups[group]
        slots = layout.pool(src_pool).blocks * (kind.block_size if kind.kind == "kv" else 1)
        beside = [
            (src + 1 if src + count < slots else src - 1, dst, count) for src, dst, count in runs
        ]
        copy(group, src_pool, dst_pool, beside)

    executor.pages.copy = broken  # type: ignore[method-assign]
    return _has(feed, Copy)


def _no_zeros(executor: Executor, feed: Feed, causes: Causes) -> bool:
    def broken(group: int, runs: Sequence[tuple[int, int]]) -> None:
        """Nothing is written."""

    executor.pages.zero = broken  # type: ignore[method-assign]
    return any("zeros" in each for each in causes.values())


_NO_HIT = "nothing is served from the cache in these streams"

BROKEN = (
    BrokenExecutor("rotation", "rows behind a hit are rotated one too far", _NO_HIT, _rotation),
    BrokenExecutor("last slot", "the last token behind a hit is not stored", _NO_HIT, _last_slot),
    BrokenExecutor("hidden key", "the first visible key is not attended", _NO_HIT, _one_key_short),
    BrokenExecutor("stale table", "a block of a hit is looked up wrongly", _NO_HIT, _stale_table),
    BrokenExecutor(
        "window edge", "the window is one key short", "no layer has a window", _window_edge
    ),
    BrokenExecutor(
        "early state", "states are saved a position early", "no recurrent layers", _state_early
    ),
    BrokenExecutor(
        "shifted values", "values are rotated like keys", "nothing is shifted", _shift_values
    ),
    BrokenExecutor(
        "rotation sign", "keys are rotated the other way", "nothing is shifted", _shift_sign
    ),
    BrokenExecutor(
        "copy kernel",
        "copies read a slot beside",
        "no row needs a copy",
        _copy_beside,
        "missing copy",
    ),
    BrokenExecutor("zero kernel", "zeros are not written", "nothing reads zeros", _no_zeros),
)
"""Each kind with what is done and why a run may be unable to show it."""
