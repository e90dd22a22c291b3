"""The Handoff of one admission: what the engine got, and what it still computes."""

from __future__ import annotations

from handoff.types import GroupAnswer, Handoff, Spans

from .edits import Edits
from .layout import BLOCKS
from .options import Options
from .replay import row_spans
from .scheduler import Scheduled

__all__ = ["make_handoff"]


def make_handoff(options: Options, edits: Edits, scheduled: Scheduled) -> Handoff:
    """The six answers for the sequence of a first row (RULES 1)."""
    seq = scheduled.seq
    grant = seq.grant
    start = seq.num_tokens
    length = seq.length  # a preempted sequence prefills its outputs like a prompt
    spans = row_spans(options, length, start, length, seq.valid_start)
    cold = row_spans(options, length, 0, length, 0) if options.truncates else None
    size = options.block_size
    groups = [
        GroupAnswer(
            BLOCKS,
            matched=grant.raw,
            table=tuple(seq.table),
            fresh=start // size,
            write=start,
            copied=seq.copied,
        )
    ]
    for at, ring in enumerate(edits.rings, 1):
        groups.append(
            GroupAnswer(
                ring.name,
                matched=grant.hit,
                table=(seq.state,),
                fresh=0,
                write=_of(spans, "write", at, start),
                visible=_of(spans, "visible", at, 0),
            )
        )
    return Handoff(
        seq=seq.seq,
        request=seq.id,
        prompt_tokens=seq.prompt_len,
        known_tokens=seq.length,
        raw_tokens=grant.raw,
        hit_tokens=grant.hit,
        start=start,
        deductions=grant.deductions,
        groups=tuple(groups),
        attempt=seq.attempt,
        external_tokens={"outside": grant.hit} if grant.external and grant.hit else {},
        budget_tokens=scheduled.q,
        unit=1 if options.outside_policy == "none" else options.outside_grain,
        matcher=grant.matcher,
        references=grant.references,
        unsound=grant.unsound,
        spans=spans,
        cold=cold,
    )


def _of(spans: Spans | None, part: str, group: int, default: int) -> int:
    """One group's bound of a row that may be plain."""
    return getattr(spans, part)[group] if spans is not None else default
