"""Context shift: what a full slot keeps and discards (RULES 10)."""

from __future__ import annotations

from typing import NamedTuple

from .checkpoints import Origin
from .server import Server
from .slots import Slot

__all__ = ["ContextShift", "plan_shift", "shift_context"]


class ContextShift(NamedTuple):
    """Positions ``[keep, keep + discard)`` go, the rest moves down by ``discard``."""

    keep: int
    left: int
    discard: int


def plan_shift(
    length: int, num_prompt: int, limit: int, keep: int, discard: int, add_bos: bool
) -> ContextShift:
    """The shift of a list of ``length`` tokens in a slot of ``limit``.

    ``keep`` < 0 keeps the prompt; ``discard`` 0 discards half of what is not kept.
    """
    kept = (num_prompt if keep < 0 else keep) + int(add_bos)
    kept = min(limit - 4, kept)
    left = length - kept
    wanted = discard or left // 2
    return ContextShift(kept, left, min(max(wanted, 0), max(0, left - 1)))


def shift_context(server: Server, slot: Slot) -> None:
    """Discard and move down the list of a slot that is full (RULES 10)."""
    task = slot.task
    assert task is not None
    if task.children or slot.parent is not None:
        server.say("error", slot, "server_error")
        server.release(slot)
        return
    plan = plan_shift(
        slot.length,
        task.num_prompt,
        server.options.slot_limit,
        int(task.options.get("n_keep", server.options.keep)),
        int(task.options.get("n_discard", 0)),
        server.options.add_bos,
    )
    server.say("ctxshift", slot, *plan)
    kept, gone = plan.keep, plan.discard
    server.memory.close(slot.id)
    server.memory.remove(slot.id, kept, kept + gone)
    server.memory.move(slot.id, kept + gone, slot.length, -gone)
    text = slot.text.slice(0, kept)
    text.extend(slot.text, kept + gone, slot.length)
    slot.text = text
    slot.length -= gone
    slot.origin = Origin(((slot.length, slot.lora),), kept)
    slot.truncated = True
    server.drop_checkpoints(slot)
    server.reopen(slot, task)
