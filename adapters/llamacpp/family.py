"""Parents and children: requests that want several answers, and grouped decisions (RULES 9)."""

from __future__ import annotations

from collections.abc import Iterator

from .answer import child_handoff
from .server import Server
from .slots import Slot

__all__ = ["feed_children", "open_child"]


def feed_children(server: Server, slot: Slot) -> Iterator[Slot]:
    """Copy a parent whose prompt is computed to its waiting children (RULES 9)."""
    for child in server.slots:
        if child.parent is not slot or child.phase != "waiting":
            continue
        assert child.task is not None
        shared = child.task.shared or slot.length
        server.empty(child)
        server.memory.copy(slot.id, child.id)
        server.memory.remove(child.id, shared)
        child.text = slot.text.slice(0, shared)
        child.length = shared
        child.origin = slot.origin.cut(shared)
        child.chosen = f"slot {child.id}, the lowest idle one; it gets what slot {slot.id} holds"
        if child.task.decision:
            server.say("share", slot, shared, child.id)
            child.phase = "started"
            continue
        server.say("child", slot, child.id)
        child.checkpoints = server.cloned(slot.checkpoints)
        child.phase = "fed"
        yield child


def open_child(server: Server, slot: Slot, first: int) -> None:
    """A child starts decoding with its first token, sampled from the parent's logits."""
    task = slot.task
    assert task is not None
    slot.phase = "generating"
    known = slot.text.slice(0, slot.length)
    known.append(first)
    seq = server.memory.open(slot.id, task.request, known, slot.lora)
    server.handoffs[seq] = child_handoff(server, slot, task, seq)
