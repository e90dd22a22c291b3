"""The answer for one admission, in the words every framework shares.

Deductions stand in upstream's order: the last token is cut off before the look-up (RULES 3), the
walk of the window that got furthest ends at whole or allowed blocks (RULES 4), and the hit is the
minimum over the windows (RULES 5, 8).
"""

from __future__ import annotations

from collections.abc import Sequence

from handoff.types import NULL, Deduction, GroupAnswer, GroupMatch, Handoff, Match

from .journal import group_name
from .manager import Admission
from .match import WindowMatch
from .options import Options
from .request import LlmRequest
from .sequence import WindowSequence

__all__ = ["answer", "probed"]

_MATCHER = (
    "the scheduler estimates whole blocks without references; the real walk over the reuse tree"
    " runs in addSequenceBatch, after scheduling"
)
_REFERENCES = (
    "one reference per block and beam; a partly matching block is copied, or taken over if it is"
    " an idle leaf"
)


def _deductions(
    prompt_len: int, hit: int, matches: Sequence[WindowMatch]
) -> tuple[int, tuple[Deduction, ...]]:
    """Tokens in the tree before any rule, and what the rules take from them in their order."""
    raw = max(max(match.reach for match in matches), hit)
    edge, found = raw, []
    if edge == prompt_len:
        edge = max(prompt_len - 1, hit)
        if edge < raw:
            found.append(Deduction("last_token", edge, raw, "3", note="P - 1 tokens are looked up"))
    longest = max(max(match.alone for match in matches), hit)
    if len(matches) == 1:
        longest = hit
    if longest < edge:
        note = "a block counts whole, or in part where a copy or an idle leaf allows it"
        found.append(Deduction("alignment", longest, edge, "4", note=note))
        edge = longest
    if hit < edge:
        limiting = min(matches, key=lambda match: match.walk.tokens)
        note = "the hit is the minimum over the windows"
        found.append(Deduction("group", hit, edge, "8", group_name(limiting.window), note))
    return raw, tuple(found)


def answer(
    admission: Admission,
    sequences: Sequence[WindowSequence],
    visible: Sequence[int],
    options: Options,
    estimate: int,
) -> Handoff:
    """The Handoff of a request that was just added; its chunk is the corrected one."""
    request, hit = admission.request, admission.hit
    matches = [part.match for part in admission.windows]
    raw, deductions = _deductions(request.prompt_len, hit, matches)
    groups = tuple(
        GroupAnswer(
            group=group_name(part.match.window),
            matched=part.matched,
            table=tuple(NULL if block is None else block.slot for block in sequence.blocks),
            fresh=part.shared,
            write=request.prepopulated,
            visible=edge,
            copied=part.copied,
            taken=part.taken,
        )
        for part, sequence, edge in zip(admission.windows, sequences, visible)
    )
    from_host = min(max(part.from_host for part in admission.windows), hit)
    return Handoff(
        seq=request.seqs[0],
        request=request.id,
        prompt_tokens=request.prompt_len,
        known_tokens=len(request.tokens),
        raw_tokens=raw,
        hit_tokens=hit,
        start=request.prepopulated,
        deductions=deductions,
        groups=groups,
        external_tokens={"host": from_host} if from_host else {},
        estimate_tokens=estimate,
        budget_tokens=request.chunk,
        unit=_unit(options),
        matcher=_MATCHER,
        references=_REFERENCES,
        unsound=("8",) if any(visible) else (),
    )


def probed(request: LlmRequest, matches: Sequence[WindowMatch]) -> Match:
    """The same for a look-up that takes nothing."""
    hit = min(match.walk.tokens for match in matches)
    raw, deductions = _deductions(request.prompt_len, hit, matches)
    groups = tuple(GroupMatch(group_name(m.window), m.walk.tokens) for m in matches)
    return Match(raw, hit, groups, deductions=deductions)


def _unit(options: Options) -> int:
    """Partial reuse matches single tokens, else whole blocks (RULES 0)."""
    return 1 if options.enable_partial_reuse else options.tokens_per_block
