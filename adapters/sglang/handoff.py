"""The six answers for one admission, and where the rest of a stored prefix went (rules 1, 2)."""

from __future__ import annotations

from array import array

from handoff.types import Deduction, GroupAnswer, Handoff, Spans

from .layout import FULL, RING, STATE, SWA
from .options import Options
from .req import Req, Row

__all__ = ["build_handoff", "deductions", "ring_spans"]

MATCHER = "scheduler, right before admission, by token ids in the radix tree"


def deductions(
    options: Options, known: int, *, raw: int, limit: int, matched: int, best: int, hit: int
) -> tuple[Deduction, ...]:
    """Partition ``[hit, raw)`` by rule, from the raw end downwards.

    ``known`` tokens are wanted, the key has ``limit`` of them after the caps of rule 2.1; the tree
    gave ``matched``, of which every group accepted ``best``, on the host too.
    """
    out: list[Deduction] = []
    edge = raw

    def lose(
        down_to: int, reason: str, rule: str, group: str | None = None, note: str = ""
    ) -> None:
        nonlocal edge
        down_to = max(down_to, hit)
        if down_to < edge:
            out.append(Deduction(reason, down_to, edge, rule, group, note))
            edge = down_to

    lose(known - 1, "last_token", "2.1", note="the last token is always computed")
    if options.enable_decoder_swa_bounded_replay:
        group = RING if options.ring_rows else SWA
        lose(limit, "group", "7", group, "the last window is always recomputed")
    lose(limit, "disabled", "2.1", note="input logprobs were asked for")
    if options.bigram:
        lose(edge - 1, "draft", "9", note="keys are pairs of tokens")
    lose(matched, "alignment", "2.2", note=f"page of {options.page_size}")
    if options.attention == "mamba":
        lose(best, "group", "8", STATE, "no state was stored further on")
    elif options.attention == "swa":
        lose(best, "group", "7", SWA, "window KV before the end is gone")
    if options.enable_hierarchical_cache:
        lose(hit, "tier", "10", note="the host part was too short or did not fit")
    lose(hit, "disabled", "12", note="SGLANG_RADIX_FORCE_MISS")
    return tuple(out)


def build_handoff(options: Options, req: Req) -> Handoff:
    """The handoff of a request whose row exists."""
    hit, page = req.hit, options.page_size
    raw = max(req.raw, hit)
    main = SWA if options.attention == "pure_swa" else FULL
    columns = hit // page
    spans = None
    groups = [GroupAnswer(main, req.matched, _table(req.row), columns, hit)]
    if options.attention == "swa":
        groups.append(GroupAnswer(SWA, req.best, _table(req.window_row), columns, hit))
    elif req.state is not None:
        copied = () if req.copied_state is None else ((req.copied_state, req.state, hit),)
        groups.append(GroupAnswer(STATE, req.best, (req.state,), 0, hit, copied=copied))
    elif req.ring is not None:
        first = req.ring_start
        groups.append(GroupAnswer(RING, 0, (req.ring,), 0, first, first))
        spans = ring_spans(options, req, first, hit)
    return Handoff(
        seq=req.sequence or 0,
        request=req.id,
        prompt_tokens=req.prompt,
        known_tokens=req.known,
        raw_tokens=raw,
        hit_tokens=hit,
        start=req.ring_start if req.ring is not None else hit,
        deductions=deductions(
            options,
            req.known,
            raw=raw,
            limit=req.limit,
            matched=req.matched,
            best=req.best,
            hit=hit,
        ),
        groups=tuple(groups),
        attempt=req.attempt,
        external_tokens={"host": req.loaded} if req.loaded else {},
        unit=page,
        spans=spans,
        matcher=MATCHER,
        references=f"a lock on each node of the path, {hit} tokens; slots are shared, not copied",
    )


def ring_spans(options: Options, req: Req, first: int, start: int) -> Spans | None:
    """Where a row from ``first`` on writes and sees; full KV is new from ``start`` on (rule 7).

    ``None`` where nothing is missing: a ring holds the request's own rows since ``ring_start``.
    """
    assert options.sliding_window_size is not None
    edge = start - options.sliding_window_size + 1
    if first == start and (req.ring_start == 0 or edge >= req.ring_start):
        return None
    return Spans((first,), (start, first), (0, req.ring_start))


def _table(row: Row) -> array[int]:
    """The row's blocks, compact."""
    table = array("i")
    table.frombytes(row.view(0, len(row)).tobytes())
    return table
