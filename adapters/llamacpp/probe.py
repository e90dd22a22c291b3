"""A look-up that changes nothing: which slot or RAM entry would serve a prompt, and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.types import GroupMatch, Match

from .hit import plan_hit
from .slots import Task, choose

if TYPE_CHECKING:
    from .server import Server

__all__ = ["probe"]


def probe(server: Server, task: Task) -> Match:
    """The match on the slot that would be chosen now.

    A RAM entry that would be swapped in first counts with its common prefix; checkpoints inside it
    are not looked at.
    """
    choice = choose(server.slots, task.prompt, task.id_slot, server.options.slot_prompt_similarity)
    lengths = [slot.lcp(task.prompt) for slot in server.slots]
    entries = server.ram.entries if server.ram is not None else []
    lengths += [entry.lcp(task.prompt) for entry in entries]
    elsewhere = max(lengths, default=0)
    groups = [group.name for group in server.memory.layout.groups]
    if choice is None or choice.slot.busy:
        return Match(0, 0, tuple(GroupMatch(name, 0) for name in groups), elsewhere)
    if choice.update and server.ram is not None:
        better = server.ram.better(choice.slot, task.prompt)
        if better is not None:
            raw = better[0].lcp(task.prompt)
            hit = min(raw, task.num_prompt - 1)
            return Match(raw, hit, tuple(GroupMatch(name, raw) for name in groups), elsewhere)
    hit_plan = plan_hit(choice.slot, task, server.options, server.memory)
    found = tuple(GroupMatch(name, hit_plan.common) for name in groups)
    return Match(hit_plan.common, hit_plan.tokens, found, elsewhere, hit_plan.deductions)
