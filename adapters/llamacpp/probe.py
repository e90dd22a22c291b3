"""A look-up that changes nothing: which slot or RAM entry would serve a prompt, and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import GroupMatch, Match

from .answer import emptied
from .hit import plan_hit
from .slots import Task, choose

if TYPE_CHECKING:
    from .server import Server

__all__ = ["probe"]


def probe(server: Server, task: Task) -> Match:
    """The match on the slot that would be chosen now.

    A RAM entry that would be swapped in first counts with its common prefix; checkpoints inside it
    are not looked at. A slot that would be emptied for other adapters loses all of it.
    """
    choice = choose(server.slots, task.prompt, task.id_slot, server.options.slot_prompt_similarity)
    lengths = [slot.lcp(task.prompt) for slot in server.slots]
    entries = server.ram.entries if server.ram is not None else []
    lengths += [entry.lcp(task.prompt) for entry in entries]
    elsewhere = max(lengths, default=0)
    groups = [group.name for group in server.memory.layout.groups]
    if choice is None or choice.slot.busy:
        return Match(0, 0, tuple(GroupMatch(name, 0) for name in groups), elsewhere)
    slot, better = choice.slot, None
    if choice.update and server.ram is not None:
        better = server.ram.better(slot, task.prompt)
    raw = slot.lcp(task.prompt) if better is None else better[0].lcp(task.prompt)
    found = tuple(GroupMatch(name, raw) for name in groups)
    if slot.isolates(task):
        return Match(raw, 0, found, elsewhere, (emptied(raw),) if raw else ())
    if better is not None:
        return Match(raw, min(raw, task.num_prompt - 1), found, elsewhere)
    hit = plan_hit(slot, task, server.options, server.memory)
    return Match(raw, hit.tokens, found, elsewhere, hit.deductions)
