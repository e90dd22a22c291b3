"""Chunks never end inside an image (RULES 3.3)."""

from __future__ import annotations

from .sequence import Sequence

__all__ = ["IMAGE", "IMAGE_PAD", "fit_chunk"]

IMAGE_PAD = 1
"""Token id of further positions of an image: vocabulary size + 1."""
IMAGE = 2
"""Token id of an image's first position: vocabulary size + 2."""


def fit_chunk(seq: Sequence, tokens: int, room: int, vocab_size: int, *, first: bool) -> int:
    """The chunk grown to the end of an image it would split, or shrunk to before it.

    Growing is for the first sequence of a step and the raw budget ``room``; shrinking stops at what
    is ready already.
    """
    image, pad = vocab_size + IMAGE, vocab_size + IMAGE_PAD
    ready, end = seq.num_tokens, seq.num_tokens + tokens
    if end >= seq.length or seq.tokens[end] != pad:
        return tokens
    begin = end
    while begin > 0 and seq.tokens[begin] == pad:
        begin -= 1
    if seq.tokens[begin] != image:
        return tokens
    if first:
        stop = end
        while stop < seq.length and seq.tokens[stop] == pad:
            stop += 1
        if stop - ready <= room:
            return stop - ready
    return max(begin, ready) - ready
