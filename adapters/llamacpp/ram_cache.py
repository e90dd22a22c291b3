"""The RAM prompt cache: whole prompts, oldest first, moved in and out of slots (RULES 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from handoff.index.spans import Seq, common

from .checkpoints import Checkpoint, Origin
from .copies import Saved
from .slots import Slot, ratio

__all__ = ["Entry", "RamCache"]

MIN_KEEP = 0.25
"""An entry of which less would be used is not loaded."""


@dataclass(slots=True, eq=False)
class Entry:
    """One prompt: its tokens ``text[:length]``, state and checkpoints."""

    text: Seq
    length: int
    saved: Saved
    checkpoints: list[Checkpoint] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)

    def lcp(self, other: Seq, length: int | None = None) -> int:
        """Longest common prefix of the entry and ``other[:length]``."""
        length = len(other) if length is None else length
        return common(self.text, 0, other, 0, min(self.length, length))

    @property
    def num_bytes(self) -> int:
        """Bytes of the state and of the checkpoints."""
        return self.saved.num_bytes + sum(item.saved.num_bytes for item in self.checkpoints)


@dataclass(slots=True)
class RamCache:
    """The list of entries and its limits; ``drop(why, entry)`` is told of each one given up."""

    limit_bytes: int | None
    limit_tokens: int
    drop: Callable[[str, Entry], None]
    entries: list[Entry] = field(default_factory=list)

    num_bytes: int = 0
    """Bytes of all entries."""
    num_tokens: int = 0
    """Tokens of all entries."""

    def add(self, entry: Entry) -> None:
        """The newest entry."""
        self.entries.append(entry)
        self.num_bytes += entry.num_bytes
        self.num_tokens += entry.length

    def take(self, entry: Entry) -> None:
        """An entry leaves the list; its copies are the caller's."""
        self.entries.remove(entry)
        self.num_bytes -= entry.num_bytes
        self.num_tokens -= entry.length

    def holds(self, slot: Slot) -> bool:
        """Whether some entry has the slot's whole list as a prefix."""
        return any(entry.lcp(slot.text, slot.length) == slot.length for entry in self.entries)

    def make_room(self, slot: Slot, num_bytes: int) -> bool:
        """Drop prefixes of the slot's list, then the oldest while bytes are short (RULES 8.1).

        False if an entry of ``num_bytes`` is larger than the limit; nothing is dropped then.
        """
        if self.limit_bytes is not None and num_bytes > self.limit_bytes:
            return False
        for entry in list(self.entries):
            if entry.lcp(slot.text, slot.length) == entry.length:
                self._give_up("obs", entry)
        while (
            self.limit_bytes is not None
            and self.entries
            and self.num_bytes + num_bytes > self.limit_bytes
        ):
            self._give_up("room", self.entries[0])
        return True

    def better(self, slot: Slot, prompt: Seq) -> tuple[Entry, float, float] | None:
        """The entry that beats the slot in both ratios, strictly (RULES 8.2), with its ratios."""
        shared = slot.lcp(prompt)
        best_keep = ratio(shared, slot.length) if slot.length else -1.0
        best_similarity = ratio(shared, len(prompt))
        found: Entry | None = None
        for entry in self.entries:
            shared = entry.lcp(prompt)
            keep, similarity = ratio(shared, entry.length), ratio(shared, len(prompt))
            if keep < MIN_KEEP:
                continue
            if keep > best_keep and similarity > best_similarity:
                found, best_keep, best_similarity = entry, keep, similarity
        return None if found is None else (found, best_keep, best_similarity)

    @property
    def token_limit(self) -> int:
        """Tokens that fit: at least the context, more if the entries are small (RULES 8.3)."""
        if self.limit_bytes is None:
            return self.limit_tokens
        return max(self.limit_tokens, self.estimated_limit)

    @property
    def estimated_limit(self) -> int:
        """Tokens that would fill the byte limit at the present bytes per token."""
        assert self.limit_bytes is not None
        tokens = max(1, self.num_tokens)
        per_token = max(np.float32(1.0), np.float32(self.num_bytes) / np.float32(tokens))
        return int(np.float32(self.limit_bytes) / per_token)

    def trim(self) -> None:
        """Byte limit, then token limit; the oldest go first (RULES 8.3)."""
        while self.limit_bytes is not None and self.entries and self.num_bytes > self.limit_bytes:
            self._give_up("size", self.entries[0])
        limit = self.token_limit
        while self.entries and self.num_tokens > limit:
            self._give_up("tok", self.entries[0])

    def _give_up(self, why: str, entry: Entry) -> None:
        self.take(entry)
        self.drop(why, entry)
