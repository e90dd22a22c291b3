"""The Handoff of an admission, and the pure look-up of a probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import (
    NULL,
    Deduction,
    GroupAnswer,
    GroupMatch,
    Handoff,
    Match,
    Request,
    Spans,
)

from .coordinator import Hit, Measure
from .pool import NULL_BLOCK
from .sizes import GroupSpec, Sizes, cdiv, floor_to
from .state import RequestState

if TYPE_CHECKING:
    from .allocate import KVCache
    from .scheduler import Scheduled

__all__ = ["answer", "deductions", "probe", "spans"]

MATCHER = "the scheduler, when it admits the request (get_computed_blocks)"
NOBODY = "nobody: the request does not read the cache"


def deductions(
    sizes: Sizes, measure: Measure | None, hit: Hit, known: int, served: int, skip_reading: bool
) -> tuple[int, tuple[Deduction, ...]]:
    """Raw match and what was taken from it on the way to ``served`` tokens, in upstream's order.

    Cap at ``known - 1``, floor to the hit's grain, EAGLE drop, agreement of the groups, replay
    (RULES 5, 9, 11, 13). What a connector served anyway is not lost.
    """
    if measure is None or measure.raw <= served:
        return served, ()
    raw = measure.raw
    capped = min(raw, known - 1)
    aligned = floor_to(capped, sizes.alignment)
    local = max(hit.tokens, hit.discarded)
    dropped = max(min(measure.dropped, aligned), local)
    names = [group.name for group in sizes.groups]
    if skip_reading:
        unread = "the request does not read the cache"
        steps: list[tuple[int, str, str, str | None, str]] = [
            (served, "disabled", "13", None, unread)
        ]
    else:
        limiting = _limiting(sizes, measure)
        drafting = names[measure.leading] if len(names) > 1 else None
        lacking = measure.missing.get(limiting) or f"{names[limiting]} cannot serve more of it"
        short = f"a hit within the replayed window of {sizes.replay} is given up"
        steps = [
            (capped, "last_token", "5", None, "the last token is always computed"),
            (aligned, "alignment", "5", None, f"hits are multiples of {sizes.alignment}"),
            (dropped, "draft", "9", drafting, "the last unit is dropped for the drafter"),
            (local, "group", "5", names[limiting], lacking),
            (hit.tokens, "group", "11", _replaying(sizes), short),
        ]
    found, edge = [], raw
    for low, reason, rule, group, note in steps:
        low = max(low, served)
        if low < edge:
            found.append(Deduction(reason, low, edge, rule, group, note))
            edge = low
    return raw, tuple(found)


def _replaying(sizes: Sizes) -> str | None:
    """The group whose window is replayed; a hit not longer than that is given up (RULES 11)."""
    return next((group.name for group in sizes.groups if not group.cacheable), None)


def _limiting(sizes: Sizes, measure: Measure) -> int:
    """The cacheable group that serves the least."""
    groups = [group.index for group in sizes.groups if group.cacheable]
    return min(groups, key=lambda index: (measure.matched[index], index == measure.leading))


def answer(cache: KVCache, row: Scheduled) -> Handoff:
    """The Handoff of an admission that was just scheduled (RULES 1)."""
    state, sizes = row.state, cache.sizes
    hit = state.hit
    assert hit is not None
    raw, lost = deductions(sizes, state.measure, hit, state.known, state.served, state.skip_reading)
    return Handoff(
        seq=row.seq,
        request=state.id,
        prompt_tokens=state.prompt_len,
        known_tokens=state.known,
        raw_tokens=raw,
        hit_tokens=state.served,
        start=row.start,
        deductions=lost,
        groups=tuple(_group_answer(group, state, hit, row.start) for group in sizes.groups),
        attempt=state.attempt,
        external_tokens={"connector": state.external} if state.external else {},
        unit=sizes.alignment,
        matcher=NOBODY if state.skip_reading else MATCHER,
        references=f"{state.num_shared} hit blocks held in place" if state.num_shared else "none",
        spans=spans(sizes, state, row.start),
    )


def _group_answer(group: GroupSpec, state: RequestState, hit: Hit, start: int) -> GroupAnswer:
    table = state.tables[group.index]
    write = state.served if group.cacheable else start
    shared = cdiv(write, group.block_size)
    copied: tuple[tuple[int, int, int], ...] = ()
    inside, blocks = hit.tokens % group.block_size, hit.blocks[group.index]
    if inside and blocks:
        column = hit.tokens // group.block_size
        copied = ((blocks[-1], table[column], inside),)
        shared = column
    return GroupAnswer(
        group=group.name,
        matched=state.measure.matched[group.index] if state.measure else 0,
        table=[block or NULL for block in table] if group.leaves else list(table),
        fresh=shared,
        write=write,
        visible=0 if group.cacheable else start,
        copied=copied,
    )


def spans(sizes: Sizes, state: RequestState, start: int) -> Spans | None:
    """Spans of a row that is not plain, else ``None``.

    A replay writes only the window group below the hit (RULES 11). R-SWA sees the prompt and a
    window of the output; a row can name one visible range, so once output blocks have left it names
    the window alone (records: R-SWA is planned, not executed).
    """
    replays = start < state.served
    if not replays and not sizes.has_rswa:
        return None
    visible = [_first_visible(sizes, group, state) for group in sizes.groups]
    if not replays and not any(visible):
        return None
    return Spans(
        compute=(start,),
        write=tuple(
            state.served if replays and group.cacheable else start for group in sizes.groups
        ),
        visible=tuple(visible),
    )


def _first_visible(sizes: Sizes, group: GroupSpec, state: RequestState) -> int:
    if not group.cacheable:
        return max(state.served - sizes.replay, 0)
    table = state.tables[group.index]
    if group.type == "rswa" and NULL_BLOCK in table:
        last = len(table) - 1 - table[::-1].index(NULL_BLOCK)
        return (last + 1) * group.block_size
    return 0


def probe(cache: KVCache, request: Request) -> Match:
    """What a look-up of a new request would find now (RULES 1: it has no side effect)."""
    state = RequestState(request, cache.keys.keys(request), -1, len(cache.sizes.groups))
    hit = cache.find(state)
    if 0 < hit.tokens <= cache.sizes.replay:
        hit = cache.give_up(hit)
    measure = cache.measure(state, hit)
    raw, lost = deductions(cache.sizes, measure, hit, state.known, hit.tokens, state.skip_reading)
    matched = measure.matched if measure else (0,) * len(cache.sizes.groups)
    groups = tuple(GroupMatch(g.name, n) for g, n in zip(cache.sizes.groups, matched))
    return Match(raw, hit.tokens, groups, 0, lost)
