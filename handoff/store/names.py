"""Content has a name: a 64-bit word for "this adapter and this text up to here".

The name of position p is the wrapping sum of one mixed word per (position, token) in ``[0, p]`` and
a seed for the LoRA. A sum needs no sequential pass, so numpy can extend it by whole chunks; two
different texts collide with probability 2**-64.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["Names", "Words", "seed", "words"]

Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_TOKEN, _POSITION = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03  # odd: products do not lose bits
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # finaliser of splitmix64


def seed(lora: str | None, salt: str | None = None) -> int:
    """What the name starts from: 0, or a hash of the LoRA and (where it shall count) the salt."""
    if lora is None and salt is None:
        return 0
    key = repr((lora, salt)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def words(tokens: NDArray[np.int64], start: int) -> Words:
    """One mixed word for each token of the positions from ``start`` on."""
    positions = np.arange(start + 1, start + 1 + len(tokens), dtype=np.uint64)
    word: Words = tokens.astype(np.uint64) * np.uint64(_TOKEN)
    word += positions * np.uint64(_POSITION)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    word ^= word >> np.uint64(31)
    return word


def _word(token: int, position: int) -> int:
    """``words`` for one token without numpy: a decode row has just one."""
    word = (token * _TOKEN + (position + 1) * _POSITION) & _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


class Names:
    """Names of the positions of one sequence; grows with it.

    >>> a, b = Names(None), Names(None)
    >>> a.extend(np.array([5, 6])); b.extend(np.array([5])); b.extend(np.array([6]))
    >>> bool(a.of(0, 2)[1] == b.of(0, 2)[1])
    True
    """

    __slots__ = ("_names", "length", "seed")

    def __init__(self, lora: str | None, salt: str | None = None) -> None:
        self.seed = seed(lora, salt)
        self.length = 0
        self._names: Words = np.empty(16, np.uint64)

    def last(self, length: int) -> int:
        """Name of the first ``length`` tokens; the seed for none."""
        return int(self._names[length - 1]) if length else self.seed

    def of(self, start: int, stop: int) -> Words:
        """Names of the positions ``[start, stop)``, all of them known (a view)."""
        assert stop <= self.length
        return self._names[start:stop]

    def extend(self, tokens: NDArray[np.int64]) -> None:
        """Append tokens at the end."""
        stop = self.length + len(tokens)
        if stop > len(self._names):
            grown = np.empty(max(stop, 2 * len(self._names)), np.uint64)
            grown[: self.length] = self._names[: self.length]
            self._names = grown
        self._names[self.length : stop] = self.follow(self.length, tokens)
        self.length = stop

    def follow(self, start: int, tokens: NDArray[np.int64]) -> Words:
        """Names that ``tokens`` would have behind the first ``start`` tokens."""
        before = self.last(start)
        if len(tokens) == 1:
            return np.array([(before + _word(int(tokens[0]), start)) & _MASK], np.uint64)
        return np.cumsum(words(tokens, start), dtype=np.uint64) + np.uint64(before)
