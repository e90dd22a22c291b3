"""YoCo bounded replay: which consumer rows a prefill chunk computes, stores and sees.

Only the last K tokens of the **whole prompt** need consumer layers. ``mask`` computes all rows but
narrows what they see, ``compact`` leaves the others out and keeps one placeholder row in a chunk
that ends before the kept part (RULES 6; csrc/engine/input_metadata/*.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

from handoff.types import Spans

from .options import Options

__all__ = ["Kept", "kept", "row_spans"]


class Kept(NamedTuple):
    """Consumer part of one chunk: rows ``[clip, q)`` run; nothing below ``edge`` is seen."""

    clip: int
    edge: int


def kept(options: Options, full_len: int, start: int, stop: int) -> Kept:
    """What the truncation mode leaves of the chunk ``[start, stop)`` of a prompt.

    ``edge`` is R = L - K, counted from the end of the whole prompt, not of the chunk; it may be
    negative.
    """
    edge = full_len - options.keep
    if options.yoco_prefill_truncation_mode != "compact":
        return Kept(0, edge)
    return Kept(min(max(edge - start, 0), stop - start - 1), edge)


def row_spans(
    options: Options, full_len: int, start: int, stop: int, valid_start: int
) -> Spans | None:
    """Spans of a prefill row for the groups (blocks, producer ring, consumer ring).

    ``None`` for a plain row. A placeholder row stores nothing and sees nothing in the consumer
    ring; a masked row below R sees nothing there but is computed and stored.
    """
    halves = 2 if options.shape.has_consumers else 1
    rings = options.num_rings
    if halves == 1 or not options.truncates:
        if not (valid_start and rings):
            return None
        return Spans((start,) * halves, (start,) * (1 + rings), (0, *(valid_start,) * rings))
    clip, edge = kept(options, full_len, start, stop)
    begin = start + clip
    seen = min(max(edge, valid_start, 0), stop)
    stored = start
    if options.yoco_prefill_truncation_mode == "compact":
        stored = max(begin, min(edge, stop))
    write, visible = (start, start, stored), (0, valid_start, seen)
    return Spans((start, begin), write[: 1 + rings], visible[: 1 + rings])
