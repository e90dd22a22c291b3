"""How many prompt tokens a slot's content saves: the caps of RULES 3 in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handoff.types import Deduction

from .checkpoints import Checkpoint, fitting
from .memory import Chunk, Memory
from .options import Options
from .reuse import find_chunks
from .slots import Slot, Task

__all__ = ["Hit", "plan_hit"]


@dataclass(frozen=True, slots=True)
class Hit:
    """The outcome for one prompt; planning changes nothing.

    ``common`` is the longest common prefix with the slot, ``chunks`` are what chunk reuse moves,
    ``restore`` the checkpoint taken (``reset``: none fitted), ``pos_next`` the position that
    decides which checkpoints stay, ``full`` says that the last token is computed again.
    """

    common: int
    tokens: int
    pos_next: int
    chunks: tuple[Chunk, ...]
    restore: Checkpoint | None
    reset: bool
    full: bool
    deductions: tuple[Deduction, ...]

    @property
    def matched(self) -> int:
        """Tokens a memory that can be cut anywhere would serve."""
        return self.common + sum(chunk.length for chunk in self.chunks)

    @property
    def moved(self) -> tuple[tuple[int, int], ...]:
        """Prompt positions reused out of place."""
        spans = ((c.target, min(c.target + c.length, self.tokens)) for c in self.chunks)
        return tuple(span for span in spans if span[0] < span[1])


class _Caps:
    """Collects what each rule takes away from the common prefix."""

    def __init__(self, raw: int) -> None:
        self.edge = raw
        self.found: list[Deduction] = []

    def lower(self, to: int, reason: str, rule: str, note: str, group: str | None = None) -> None:
        """The rule leaves ``to`` tokens."""
        if to < self.edge:
            self.found.append(Deduction(reason, to, self.edge, rule, group, note))
            self.edge = to


def plan_hit(slot: Slot, task: Task, options: Options, memory: Memory) -> Hit:
    """Apply RULES 3.1 to 3.9 to what ``slot`` holds now."""
    num_prompt = task.num_prompt
    raw = slot.lcp(task.prompt)
    caps = _Caps(raw)
    hit = raw
    if not _cached(task.options, options):
        hit = 0
        caps.lower(0, "disabled", "3.1", "the request does not want its cache")
    if task.shared and hit > task.shared:
        hit = task.shared
        caps.lower(hit, "disabled", "3.3", "beyond the head that the group shares")
    chunks = _moved(slot, task, options, hit)
    hit += sum(chunk.length for chunk in chunks)
    pos_next = hit
    threshold = max(0, pos_next - options.visible_window - (0 if hit < num_prompt else 1))
    restore, reset = None, False
    low = memory.pos_min(slot.id, chunks)
    if 0 < hit <= slot.length and low >= threshold:
        restore = fitting(slot.checkpoints, pos_next, threshold)
        if restore is None:
            hit = pos_next = 0
            reset = True
        else:
            pos_next = min(pos_next, max(restore.pos_min + 1, restore.pos_max))
            hit = min(pos_next, slot.length, restore.num_tokens)
        if options.memory == "attention":
            caps.lower(hit, "last_token", "3.7", "a one-token prompt is computed anyway")
        else:
            group = "window" if options.memory == "window" else "state"
            if restore is None:
                note = _note_of_reset(slot, options, low, threshold)
            else:
                note = _note_of_restore(restore, num_prompt, hit)
            caps.lower(hit, "group", "5.3" if restore else "3.7", note, group)
    full = hit == num_prompt and hit > 0
    if full:
        hit -= 1
        caps.lower(hit, "last_token", "3.9", "the last token is computed for its logits")
    return Hit(raw, hit, pos_next, tuple(chunks), restore, reset, full, tuple(caps.found))


def _moved(slot: Slot, task: Task, options: Options, hit: int) -> list[Chunk]:
    """What chunk reuse moves behind a prefix of ``hit`` tokens (RULES 3.5, 4)."""
    smallest = int(task.options.get("n_cache_reuse", options.cache_reuse))
    if smallest <= 0 or not options.can_shift or not _cached(task.options, options):
        return []
    return find_chunks(slot.text, slot.length, task.prompt, hit, smallest)


def _note_of_reset(slot: Slot, options: Options, low: int, threshold: int) -> str:
    """Why everything is computed again: what the memory holds, and which checkpoints there are."""
    if options.memory != "window":
        held = f"the state stands at position {low:,}, behind the common prefix"
    elif not threshold:
        held = f"a prefix not longer than the window of {options.n_swa:,} needs a checkpoint"
    else:
        held = f"the window's first position is {low:,}, one below {threshold:,} is needed"
    kept = ", ".join(f"{item.num_tokens:,}" for item in slot.checkpoints)
    fits = f"none of the checkpoints at {kept} fits" if kept else "there is no checkpoint"
    return f"{held}, and {fits}: all is computed again"


def _note_of_restore(restore: Checkpoint, num_prompt: int, hit: int) -> str:
    back = num_prompt - restore.num_tokens
    note = f"back to the checkpoint at {restore.num_tokens:,}, {back:,} before the prompt's end"
    return note if hit == restore.num_tokens else f"{note}, whose last position is computed again"


def _cached(request: Mapping[str, Any], options: Options) -> bool:
    return bool(request.get("cache_prompt", options.cache_prompt))
