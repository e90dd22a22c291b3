"""The Handoff of an admission: what the hit gave, what it lost, and where upstream is unsound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import Deduction, GroupAnswer, Handoff

from .hit import Hit
from .layout import FULL, STATE, WINDOW
from .memory import Memory
from .slots import Slot, Task

if TYPE_CHECKING:
    from .server import Server

__all__ = ["child_handoff", "emptied", "handoff_of", "unsound_rules"]

REFERENCES = "none; the slot's cells stay in place, only idle slots are candidates"


def handoff_of(
    server: Server,
    slot: Slot,
    task: Task,
    hit: Hit,
    seq: int,
    elsewhere: int,
) -> Handoff:
    """The answer for a prompt that starts on ``slot``, which holds the hit and is open."""
    raw, deductions = hit.common, hit.deductions
    if slot.isolated:
        raw, deductions = slot.isolated, (emptied(slot.isolated),)
    return Handoff(
        seq=seq,
        request=task.request,
        prompt_tokens=task.num_prompt,
        known_tokens=task.num_prompt,
        raw_tokens=raw,
        hit_tokens=hit.tokens,
        start=hit.tokens,
        deductions=deductions,
        groups=_groups(server.memory, slot, hit.tokens, hit.matched, hit.tokens + hit.full),
        moved_spans=hit.moved,
        external_tokens={"host": hit.tokens} if slot.loaded and hit.tokens else {},
        elsewhere=elsewhere,
        matcher=slot.chosen,
        references=REFERENCES,
        unsound=unsound_rules(server.memory, slot, task, hit),
    )


def emptied(tokens: int) -> Deduction:
    """The loss of a slot that is emptied for other adapters before its prefix is looked at."""
    return Deduction("isolation", 0, tokens, "10", None, "the slot was emptied for other adapters")


def child_handoff(server: Server, slot: Slot, task: Task, seq: int) -> Handoff:
    """The answer for a child of ``n_cmpl``: it gets the parent's prompt whole (RULES 9)."""
    return Handoff(
        seq=seq,
        request=task.request,
        prompt_tokens=task.num_prompt,
        known_tokens=task.num_prompt + 1,
        raw_tokens=task.num_prompt,
        hit_tokens=task.num_prompt,
        start=task.num_prompt,
        groups=_groups(server.memory, slot, *[task.num_prompt] * 3),
        matcher=slot.chosen,
        references="cells shared with the parent" if server.options.unified else "a copied stream",
    )


def unsound_rules(memory: Memory, slot: Slot, task: Task, hit: Hit) -> tuple[str, ...]:
    """The rules by which this hit hands out what a cold run would not hold (RULES 11)."""
    if not hit.tokens:
        return ()
    found = []
    if hit.restore is not None and not hit.restore.same_text(task.prompt, hit.tokens):
        found.append("11.1")
    if memory.states is not None and hit.restore is None and not slot.origin.in_place(hit.tokens):
        found.append("11.2")
    window = memory.kv.get(WINDOW)
    if window is not None and window.window is not None:
        first_seen = max(0, hit.tokens - window.window + 1)
        if window.pos_min(slot.id) > first_seen:
            # Without --swa-full: a checkpoint is tested for the prefix, not for the (shorter) hit
            # it leads to; one made after a restore may lack the first position that hit sees.
            found.append("11.3" if memory.options.swa_full else "5.3")
    if not slot.origin.under(hit.tokens, slot.lora):
        found.append("11.5")
    return tuple(found)


def _groups(
    memory: Memory, slot: Slot, hit: int, matched: int, carried: int
) -> tuple[GroupAnswer, ...]:
    """Each group's table and bounds at admission.

    ``matched`` is what a memory that can be cut offers, ``carried`` how far a window or a state
    could go along.
    """
    cuttable = memory.states is None and not memory.options.visible_window
    answers = []
    for group in memory.layout.groups:
        found = matched if group.name == FULL or cuttable else carried
        if group.name == STATE:
            assert memory.states is not None
            ident = (memory.states.ids(slot.id)[0],)
            answers.append(GroupAnswer(STATE, found, ident, 1 if hit else 0, hit))
            continue
        cells = memory.kv[group.name]
        table = tuple(cells.tables[slot.id])
        low = cells.low[slot.id] if table else 0
        visible = 0
        if group.window is not None and low > max(0, hit - group.window + 1):
            visible = low
        answers.append(GroupAnswer(group.name, found, table, hit, hit, visible))
    return tuple(answers)
