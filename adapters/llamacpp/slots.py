"""Slots and the choice among them (RULES 2; get_available_slot)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from handoff.index.spans import Seq, common

from .checkpoints import Checkpoint, Origin

__all__ = ["Choice", "Slot", "Task", "choose", "ratio"]


def ratio(count: int, total: int) -> float:
    """``f32(count) / f32(total)`` as upstream computes it; NaN for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float32(count) / np.float32(total))


@dataclass(slots=True, eq=False)
class Task:
    """A request (or a part of one) on its way through the server."""

    id: int
    request: str
    prompt: Seq
    max_tokens: int
    options: Mapping[str, Any]
    decision: bool = False
    shared: int = 0
    """``n_tokens_shared``: the head a group of decisions has in common; 0 = not grouped."""
    scales: Mapping[str, float] | None = None
    """The ``lora`` field, zero scales left out; ``None`` = no field."""
    children: list[Task] = field(default_factory=list)
    user_starts: tuple[int, ...] = ()

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.prompt)

    @property
    def id_slot(self) -> int | None:
        """The slot the request names, if any."""
        named = self.options.get("id_slot", -1)
        return None if named is None or named < 0 else int(named)


@dataclass(slots=True, eq=False)
class Slot:
    """One slot: the recorded token list, its checkpoints, and the task that runs on it.

    The list is ``text[:length]``; while a prompt is computed, ``text`` already holds all of it.
    """

    id: int
    text: Seq = field(default_factory=Seq)
    length: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    t_last: int = -1
    scales: Mapping[str, float] | None = None
    """Adapter scales of the last task, zeros left out; ``None`` = never used."""
    origin: Origin = field(default_factory=Origin)
    task: Task | None = None
    phase: str = "idle"
    """idle, waiting (a child), fed (a child), started, prompt, generating."""
    num_outputs: int = 0
    sampled: int = 0
    """The last sampled token, not yet fed back."""
    parent: Slot | None = None
    loaded: bool = False
    """Whether the RAM cache filled the slot for its present task."""
    chosen: str = ""
    """How the slot came to its task, in words."""
    isolated: int = 0
    """Prompt tokens it held until a change of adapters emptied it for its present task."""
    truncated: bool = False
    drafts: tuple[int, ...] = ()
    """The drafter's guesses for what follows ``sampled``."""
    ahead: tuple[int, ...] = ()
    """Tokens of the present row behind the fed one: drafts to verify, or ``replay``."""
    replay: tuple[int, ...] = ()
    """Tokens known to be right that a recurrent memory computes again after a rejection."""

    @property
    def lora(self) -> str | None:
        """The adapters in force, as a name that enters content tags."""
        if not self.scales:
            return None
        if len(self.scales) == 1 and 1.0 in self.scales.values():
            return next(iter(self.scales))
        return ",".join(f"{name}={scale:g}" for name, scale in sorted(self.scales.items()))

    @property
    def busy(self) -> bool:
        """Whether a task runs (or waits) here."""
        return self.task is not None

    def isolates(self, task: Task) -> bool:
        """Whether launching ``task`` here empties the slot: it asks for other scales (RULES 10)."""
        return task.scales is not None and task.scales != self.scales

    def lcp(self, prompt: Seq) -> int:
        """Longest common prefix of the list and a prompt."""
        return common(self.text, 0, prompt, 0, min(self.length, len(prompt)))

    def forget(self) -> None:
        """Empty the list; the caller removes the memory and drops the checkpoints' copies."""
        self.text = Seq()
        self.length = 0
        self.origin = Origin()


class Choice(NamedTuple):
    """The slot taken, how, and whether its content should be swapped with the RAM cache."""

    slot: Slot
    how: str
    similarity: float
    keep: float
    update: bool
    threshold: float

    def words(self, held: int, has_ram: bool) -> str:
        """The choice for people; ``held`` = tokens the slot held then."""
        others = "no list is more than {:g} similar" if self.threshold else "-sps is {:g}"
        how = {
            "byid": "named by the request",
            "lru": f"least recently used, {others.format(self.threshold)}",
            "lcp": f"similarity {self.similarity:.3f}",
        }[self.how]
        text = f"slot {self.slot.id} ({how}), then its longest common prefix"
        if not has_ram:
            return text
        if self.update:
            return f"{text}; the RAM cache was searched"
        if not held:
            return f"{text}; the RAM cache was not searched for an empty slot"
        share = round(self.keep, 3)
        return (
            f"{text}; the RAM cache was not searched: the slot keeps {share} of its"
            f" {held:,} tokens, not below 0.5"
        )


def choose(
    slots: Sequence[Slot], prompt: Seq, id_slot: int | None, threshold: float
) -> Choice | None:
    """The slot for a prompt, or None if all are busy; strict float32 comparisons (RULES 2).

    A named slot is returned even if it is busy: the caller then lets the request wait. With a
    threshold of 0 the whole similarity step is skipped, so a named slot is not swapped either.
    """
    found = slots[id_slot] if id_slot is not None and id_slot < len(slots) else None
    how = "byid" if found is not None else ""
    best = 0.0
    if threshold != 0.0:
        for slot in slots if found is None else (found,):
            if slot.busy or not slot.length:
                continue
            similarity = ratio(slot.lcp(prompt), len(prompt))
            if similarity > best and similarity > float(np.float32(threshold)):
                best, found = similarity, slot
                how = how or "lcp"
    if found is not None and threshold == 0.0:
        return Choice(found, how, 0.0, 0.0, False, threshold)
    if found is not None:
        kept = float(np.float32(best) * np.float32(len(prompt)))
        with np.errstate(divide="ignore", invalid="ignore"):
            keep = float(np.float32(kept) / np.float32(found.length))
        return Choice(found, how, best, keep, keep < 0.5, threshold)
    for slot in slots:
        if not slot.busy and (found is None or slot.t_last <= found.t_last):
            found = slot
    return None if found is None else Choice(found, "lru", 0.0, 0.0, True, threshold)
