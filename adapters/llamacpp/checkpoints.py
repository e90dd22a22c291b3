"""Context checkpoints of window and recurrent memories (RULES 5).

A checkpoint is a copy of the window part or the recurrent state. It is validated by position only:
that is upstream's rule, and the reason for two of its unsound hits (RULES 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from handoff.index.spans import Seq, common

from .copies import Saved

__all__ = ["Checkpoint", "Origin", "cut_after", "fitting", "make_room", "wanted"]


@dataclass(frozen=True, slots=True)
class Origin:
    """How a token list was computed; upstream keeps no such record, it serves to name unsound hits.

    ``made`` are ``(stop, adapters)`` in order; from ``moved_at`` on the keys were computed in
    another context than the list shows (chunk reuse, context shift).
    """

    made: tuple[tuple[int, str | None], ...] = ()
    moved_at: int | None = None

    def in_place(self, tokens: int) -> bool:
        """Whether the first ``tokens`` were computed in the context the list shows."""
        return self.moved_at is None or tokens <= self.moved_at

    def under(self, tokens: int, lora: str | None) -> bool:
        """Whether the first ``tokens`` were all computed under ``lora``."""
        start = 0
        for stop, name in self.made:
            if start < tokens and name != lora:
                return False
            start = stop
        return True

    def cut(self, tokens: int, moved_at: int | None = None) -> Origin:
        """The record of the first ``tokens``, moved from ``moved_at`` on if that is given."""
        made = tuple((min(stop, tokens), name) for stop, name in self.made)
        start, kept = 0, []
        for stop, name in made:
            if stop > start:
                kept.append((stop, name))
            start = stop
        marks = [at for at in (self.moved_at, moved_at) if at is not None and at < tokens]
        return Origin(tuple(kept), min(marks, default=None))

    def grown(self, tokens: int, lora: str | None) -> Origin:
        """The record after tokens up to ``tokens`` were computed under ``lora``."""
        made = self.made
        if made and made[-1][1] == lora:
            made = made[:-1]
        return Origin((*made, (tokens, lora)), self.moved_at)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What was stored, and for which positions.

    ``text[:num_tokens]`` and ``origin`` say what it was computed from; upstream does not look.
    """

    pos_min: int
    pos_max: int
    num_tokens: int
    task: int
    saved: Saved
    text: Seq
    origin: Origin

    def same_text(self, prompt: Seq, tokens: int) -> bool:
        """Whether the first ``tokens`` were computed from the head of ``prompt``, in place.

        A window checkpoint reaches one token beyond the hit it serves; that one is cut off.
        """
        same = common(self.text, 0, prompt, 0, tokens) == tokens
        return same and self.origin.in_place(tokens)


def cut_after(
    length: int,
    num_prompt: int,
    batch: int,
    micro_batch: int,
    user_starts: Sequence[int],
    last: int | None,
    min_step: int,
) -> bool:
    """Whether a batch ends after the token that makes the list ``length`` long (RULES 5.1).

    ``last`` is ``num_tokens`` of the newest checkpoint, ``None`` if there is none.
    """
    if num_prompt in (length + min(batch, 4 + micro_batch), length + min(batch, 4)):
        return True
    if length not in user_starts:
        return False
    return length == user_starts[-1] or last is None or length > last + min_step


def wanted(
    start: int,
    length: int,
    num_prompt: int,
    micro_batch: int,
    user_starts: Sequence[int],
    last: int | None,
    min_step: int,
) -> bool:
    """Whether the batch that takes the list from ``start`` to ``length`` tokens makes one (5.2)."""
    near = num_prompt < length + micro_batch
    at_user = start in user_starts
    if not (length == num_prompt or at_user or near):
        return False
    if last is None or near:
        return True
    return (at_user and start == user_starts[-1]) or start > last + min_step


def make_room(
    kept: list[Checkpoint], task: int, num_tokens: int, limit: int, min_step: int
) -> Iterator[tuple[str, Checkpoint]]:
    """Deletes what a new checkpoint displaces, naming why: near, old, dup (RULES 5.2 a-c)."""
    at, before = 0, None
    while at < len(kept) and len(kept) + 1 >= limit:
        entry = kept[at]
        if before is not None and entry.task != task and entry.num_tokens <= before + min_step:
            yield "near", kept.pop(at)
            continue
        before = entry.num_tokens
        at += 1
    while len(kept) >= limit:
        yield "old", kept.pop(0)
    for entry in [entry for entry in kept if entry.num_tokens == num_tokens]:
        kept.remove(entry)
        yield "dup", entry


def fitting(kept: Sequence[Checkpoint], pos_next: int, threshold: int) -> Checkpoint | None:
    """The newest checkpoint that may be restored for ``pos_next`` (RULES 5.3), or None."""
    for entry in reversed(kept):
        if entry.pos_max > pos_next:
            continue
        if entry.pos_min < threshold or entry.pos_min == 0:
            return entry
    return None
