"""Block keys: what must be equal for a block to be reused, and the hash that orders siblings.

(RULES 2, 3 and 13; blockKey.h/.cpp)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from handoff.index.spans import Seq

__all__ = ["BlockKey", "Extra", "Item", "PLAIN", "bucket_hash", "item_entries"]

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B9


class Item(NamedTuple):
    """A multimodal item: its digest and the runs ``(start, length)`` of tokens it covers."""

    digest: Hashable
    runs: tuple[tuple[int, int], ...]


class Extra(NamedTuple):
    """The part of a key that is not tokens; ``None`` is "none", 0 is a value of its own."""

    lora: int | None = None
    salt: int | None = None
    items: tuple[tuple[Hashable, int], ...] = ()
    """Per multimodal item in the block: (digest, offset in the item of its first token here)."""


PLAIN = Extra()


class BlockKey(NamedTuple):
    """Key of one block: its own tokens only; the path in the tree supplies the prefix."""

    length: int
    ident: Hashable
    extra: Extra


def item_entries(items: Sequence[Item], start: int, stop: int) -> tuple[tuple[Hashable, int], ...]:
    """One entry for each item that overlaps ``[start, stop)``."""
    entries = []
    for item in items:
        before = 0
        for first, length in item.runs:
            if first < stop and first + length > start:
                entries.append((item.digest, before + max(0, start - first)))
                break
            before += length
    return tuple(entries)


def _mix32(seed: int, value: int) -> int:
    value = (((value >> 16) ^ value) * 0x45D9F3B) & _MASK32
    value = (((value >> 16) ^ value) * 0x45D9F3B) & _MASK32
    value = (value >> 16) ^ value
    return seed ^ ((((value + _GOLDEN) & _MASK32) + (seed << 6) + (seed >> 2)) & _MASK64)


def _mix64(seed: int, value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    value ^= value >> 31
    return seed ^ ((value + _GOLDEN + (seed << 6) + (seed >> 2)) & _MASK64)


def bucket_hash(tokens: Seq, start: int, length: int, extra: Extra) -> int:
    """The 64-bit hash that places a key in its parent's map (RULES 13).

    Words of multimodal items are not known from the recordings and left out: they can only change
    which of several equally long candidates comes first.
    """
    seed = length
    if extra.salt is not None:
        seed = _mix64(seed, extra.salt)
    for token in tokens.tokens(start, start + length):
        seed = _mix32(seed, token & _MASK32)
    if extra.lora is not None:
        seed = _mix64(seed, extra.lora)
    return seed
