"""Where each prompt position went: nested prefix lengths turned into a partition of the prompt.

Every border is a prefix length, so the classes sum to the prompt exactly, for any input:

    ever computed >= same isolation key >= ever findable >= raw >= ... >= hit >= start

``[0, start)`` is reused, ``[start, hit)`` replay, ``[hit, raw)`` the framework's own deductions in
its own order, ``[raw, findable)`` was findable once and is gone (evicted, or held in a place that
was not chosen), ``[findable, key)`` was computed but never made findable, ``[key, computed)``
belongs to another tenant or adapter, and the rest is fresh. Lengths are first cut to whole units of
the framework; what no unit could have covered is alignment, stored or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from handoff.types import Deduction, Handoff, Layout, Spans

from .entries import Run

__all__ = ["WORDS", "Shared", "classify", "lanes", "outside"]

WORDS = {
    "alignment": "no whole unit covers them",
    "budget": "the scheduler's budget left no room for them",
    "disabled": "caching was off for them, or the request chose not to read the cache",
    "draft": "the drafter needs the position before the resume point computed again",
    "evicted": "they were findable once and are gone from the pool",
    "group": "a layer group could not go along",
    "isolation": "they are cached under another salt, LoRA or key",
    "last_token": "the last known token is always computed, its logits are wanted",
    "not_stored": "they were computed but not findable",
    "replay": "they were granted and are computed again",
    "slot_choice": "they are held in a place that was not chosen",
    "tier": "an outer tier refused them or came too late",
}
"""Each reason as a clause about tokens."""


class Shared(NamedTuple):
    """How much of a prompt this run of one adapter had seen before, in tokens.

    ``computed`` under any isolation key, ``key`` under the request's own, ``findable`` under its
    own and once inserted into the index.
    """

    computed: int
    key: int
    findable: int


def classify(handoff: Handoff, shared: Shared, length: int, *, inserts: bool) -> tuple[Run, ...]:
    """The partition of ``[0, length)`` into classes; ``inserts`` is false if caching is off."""
    hit, unit = min(handoff.hit_tokens, length), max(handoff.unit, 1)
    found = min(max(handoff.raw_tokens, hit), length)

    def whole(tokens: int, least: int) -> int:
        return max(least, min(tokens, length) // unit * unit)

    findable = whole(shared.findable, found)
    elsewhere = min(max(found, handoff.elsewhere), length)
    findable = max(findable, elsewhere)
    key = whole(shared.key, findable)
    computed = whole(shared.computed, key)
    edge = max(computed, min(shared.computed, length))

    runs = _granted(handoff, hit)
    for deduction in reversed(handoff.deductions):  # they lie from the raw end downwards
        start, stop = max(deduction.start, hit), min(deduction.stop, length)
        runs.append(Run(deduction.reason, start, stop))
    runs += [
        Run("slot_choice", found, elsewhere),
        Run("evicted", elsewhere, findable),
        Run("not_stored" if inserts else "disabled", findable, key),
        Run("isolation", key, computed),
        Run("alignment", computed, edge),
        Run("fresh", edge, length),
    ]
    return _joined(runs)


def _granted(handoff: Handoff, hit: int) -> list[Run]:
    """``[0, hit)``: reused, moved chunks in it, and the replayed end."""
    start = min(handoff.start, hit)
    runs = []
    at = 0
    for first, last in sorted(handoff.moved_spans):
        runs += [Run("reused", at, min(first, start)), Run("moved", first, min(last, start))]
        at = max(at, min(last, start))
    return [*runs, Run("reused", at, start), Run("replay", start, hit)]


def _joined(runs: list[Run]) -> tuple[Run, ...]:
    """Empty runs dropped, neighbours of one kind made one."""
    out: list[Run] = []
    for run in runs:
        if run.start >= run.stop:
            continue
        if out and out[-1].kind == run.kind and out[-1].stop == run.start:
            out[-1] = Run(run.kind, out[-1].start, run.stop)
        else:
            out.append(run)
    return tuple(out)


def outside(
    handoff: Handoff, runs: tuple[Run, ...], rules: Mapping[str, str]
) -> tuple[Deduction, ...]:
    """The losses beyond what the index held, as deductions from the shared prefix downwards."""
    found = max(handoff.raw_tokens, handoff.hit_tokens)
    return tuple(
        Deduction(run.kind, run.start, run.stop, rules.get(run.kind, ""), note=WORDS[run.kind])
        for run in reversed(runs)
        if run.start >= found and run.kind != "fresh"
    )


def lanes(
    handoff: Handoff,
    runs: tuple[Run, ...],
    layout: Layout,
) -> dict[str, tuple[Run, ...]]:
    """The partition per group, where groups differ; empty where the request's classes say it all.

    A group with layers in several stages has a lane for each. A group that held what another could
    not follow computes it again (``recomputed``); a stage that starts later than the first one
    reuses what it does not compute, or would not compute it without a hit either (``unneeded``).
    """
    matched = {answer.group: answer.matched for answer in handoff.groups}
    out = {}
    deeper = False
    for name, group, stage in _depths(layout):
        first = _stage_start(handoff.spans, stage)
        cold = _stage_start(handoff.cold, stage)
        deeper = deeper or first is not None or cold is not None
        start = handoff.start if first is None else first
        out[name] = _lane(runs, start, cold or 0, matched.get(group, 0))
    return out if deeper or len(set(out.values())) > 1 else {}


def _depths(layout: Layout) -> list[tuple[str, str, int]]:
    """(name of the lane, group, stage) of every group, in the layout's order."""
    out = []
    for group in layout.groups:
        stages = sorted({layer.stage for layer in layout.layers if layer.group == group.name})
        for stage in stages or [0]:
            name = f"{group.name} stage {stage}" if stage and stages[0] == 0 else group.name
            out.append((name, group.name, stage))
    return out


def _stage_start(spans: Spans | None, stage: int) -> int | None:
    """Where a deeper stage starts to compute, if it starts later than the first."""
    if spans is None or stage == 0 or spans.compute[stage] == spans.compute[0]:
        return None
    return spans.compute[stage]


def _lane(runs: tuple[Run, ...], start: int, cold: int, matched: int) -> tuple[Run, ...]:
    """One group's lane: it computes from ``start`` on (cold from ``cold`` on), held ``matched``."""
    length = runs[-1].stop if runs else 0
    edges = {run.start for run in runs} | {length}
    edges |= {edge for edge in (start, cold, matched) if 0 < edge < length}
    out = []
    for first, last in pairwise(sorted(edges)):
        kind = next(run.kind for run in runs if run.start <= first < run.stop)
        if first < start and first < cold:
            kind = "unneeded"
        elif first < start and kind == "replay":
            kind = "reused"
        elif kind == "replay" or (kind == "group" and first < matched):
            kind = "recomputed"
        out.append(Run(kind, first, last))
    return _joined(out)
