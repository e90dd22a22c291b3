"""The six answers for one admission, and where the rest of a stored prefix went (rules 1, 2)."""

from __future__ import annotations

from handoff.types import Deduction, GroupAnswer, Handoff

from .layout import FULL, STATE, SWA
from .options import Options
from .req import Req

__all__ = ["build_handoff", "deductions"]

MATCHER = "scheduler, right before admission, by token ids in the radix tree"


def deductions(
    options: Options, req: Req, *, raw: int, limit: int, matched: int, device: int, hit: int
) -> tuple[Deduction, ...]:
    """Partition ``[hit, raw)`` by rule, from the raw end downwards.

    ``limit`` is the key's length after the caps of rule 2.1, ``matched`` what the tree gave,
    ``device`` what every group accepted, ``hit`` what was granted with the host part.
    """
    out: list[Deduction] = []
    edge = raw

    def lose(down_to: int, reason: str, rule: str, group: str | None = None, note: str = "") -> None:
        nonlocal edge
        down_to = max(down_to, hit)
        if down_to < edge:
            out.append(Deduction(reason, down_to, edge, rule, group, note))
            edge = down_to

    lose(req.known - 1, "last_token", "2.1", note="the last token is always computed")
    if limit < req.known - 1:
        if options.enable_decoder_swa_bounded_replay:
            lose(limit, "group", "7", SWA, "the last window is always recomputed")
        else:
            lose(limit, "disabled", "2.1", note="input logprobs were asked for")
    if options.bigram:
        lose(max(min(raw, limit) - 1, 0), "draft", "9", note="keys are pairs of tokens")
    lose(matched, "alignment", "2.2", note=f"page of {options.page_size}")
    if options.radix_force_miss:
        lose(0, "disabled", "12", note="SGLANG_RADIX_FORCE_MISS")
    limiting = SWA if options.attention == "swa" else STATE
    if options.enable_hierarchical_cache and device == matched:
        lose(hit, "tier", "10", note="the host part was too short or did not fit")
    lose(hit, "group", "8" if limiting == STATE else "7", limiting)
    return tuple(out)


def build_handoff(options: Options, req: Req, limit: int) -> Handoff:
    """The handoff of a request whose first row is planned."""
    hit, page = req.hit, options.page_size
    main = SWA if options.attention == "pure_swa" else FULL
    columns = hit // page
    groups = [
        GroupAnswer(main, req.matched, _table(req.row.view(0, len(req.row))), columns, hit)
    ]
    if options.attention == "swa":
        row = req.window_row
        groups.append(
            GroupAnswer(SWA, hit, _table(row.view(0, len(row))), columns, hit)
        )
    elif options.attention == "mamba":
        assert req.state is not None
        copied = ((req.copied_state, req.state, hit),) if req.copied_state is not None else ()
        groups.append(GroupAnswer(STATE, hit, (req.state,), 0, hit, copied=copied))
    assert req.sequence is not None
    return Handoff(
        seq=req.sequence,
        request=req.id,
        prompt_tokens=req.prompt,
        known_tokens=req.known,
        raw_tokens=max(req.raw, hit),
        hit_tokens=hit,
        start=hit,
        deductions=deductions(
            options,
            req,
            raw=max(req.raw, hit),
            limit=limit,
            matched=req.matched,
            device=hit - req.loaded,
            hit=hit,
        ),
        groups=tuple(groups),
        attempt=req.attempt,
        external_tokens={"host": req.loaded} if req.loaded else {},
        unit=page,
        matcher=MATCHER,
        references=f"path lock to the root, {hit} tokens; slots are shared",
    )


def _table(blocks: object) -> tuple[int, ...]:
    return tuple(blocks.tolist())  # type: ignore[attr-defined]
