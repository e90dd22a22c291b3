"""Chunk reuse: which later runs of the cached text the prompt continues with (RULES 4)."""

from __future__ import annotations

from handoff.index.spans import Seq, common

from .memory import Chunk

__all__ = ["find_chunks"]


def find_chunks(cached: Seq, length: int, prompt: Seq, hit: int, smallest: int) -> list[Chunk]:
    """The chunks moved behind a hit of ``hit`` tokens; only deletions from the text are healed.

    The walk never skips prompt tokens. Edits of the list touch only what lies before the walk, so
    the unedited list can be compared throughout.
    """
    chunks: list[Chunk] = []
    source = target = hit
    while source < length and target < len(prompt):
        limit = min(length - source, len(prompt) - target)
        if limit < smallest:
            break  # no run can be long enough any more
        run = common(cached, source, prompt, target, limit)
        if run >= smallest:
            chunks.append(Chunk(source, target, run))
            source += run
            target += run
        else:
            source += 1
    return chunks
