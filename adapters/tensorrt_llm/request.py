"""What the block manager and the schedulers know of one request.

(RULES 3, 7 and 11; llmRequest.h, kvCacheRetentionConfig)
"""

from __future__ import annotations

from typing import NamedTuple

from handoff.errors import BadInput
from handoff.index.spans import Seq

from .blocks import DEFAULT_PRIORITY
from .keys import PLAIN, BlockKey, Extra, Item, item_entries

__all__ = ["LlmRequest", "Retention", "RetentionRange"]


class RetentionRange(NamedTuple):
    """Prompt tokens ``[start, stop)`` (to the end if ``None``) and what their blocks are worth."""

    start: int
    stop: int | None
    priority: int
    duration: float | None = None
    """Milliseconds; ``None`` lasts for ever."""


class Retention(NamedTuple):
    """How long blocks of a request are worth keeping; ranges ascend and do not overlap."""

    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration: float | None = None

    def check(self) -> Retention:
        """Itself; raises ``BadInput`` for ranges that overlap or are out of order."""
        for before, after in zip(self.ranges, self.ranges[1:]):
            if before.stop is None or before.stop > after.start:
                raise BadInput(f"retention ranges must ascend and be disjoint: {self.ranges}")
        return self

    def per_block(self, num_blocks: int, size: int) -> list[tuple[int | None, float | None]]:
        """``(priority, duration)`` of each prompt block; only where a block starts matters."""
        found: list[tuple[int | None, float | None]] = []
        at = 0
        for start in range(0, num_blocks * size, size):
            while at < len(self.ranges) and _ends_before(self.ranges[at], start):
                at += 1
            if at < len(self.ranges) and self.ranges[at].start <= start:
                found.append((self.ranges[at].priority, self.ranges[at].duration))
            else:
                found.append((None, None))
        return found


KEEP = Retention()
"""Everything at the default priority, for ever."""


def _ends_before(span: RetentionRange, position: int) -> bool:
    return span.stop is not None and span.stop <= position


class LlmRequest:
    """One request: its tokens, how far its prompt is, and what its admission gave.

    * ``tokens``: prompt and accepted outputs; ``position``: next prompt token to compute;
      ``chunk``: tokens of the prompt planned for this iteration; ``prepopulated``: the hit.
    * ``estimate``: tokens the scheduler expects to reuse, 0 once the truth is known.
    * ``seqs``: sequence numbers of its beams in Steps; ``lora``: the name behind ``extra.lora``.
    * ``reused``, ``missed``, ``alloc``, ``alloc_new``: blocks, upstream's statistics per request.
    """

    __slots__ = (
        *("_items", "_keys", "_size", "alloc", "alloc_new", "beam_width", "chunk", "drafts"),
        *("estimate", "extra", "id", "lora", "max_new", "missed", "position", "prepopulated"),
        *("prompt_len", "retention", "reused", "seqs", "tokens"),
    )

    def __init__(
        self,
        ident: str,
        prompt: Seq,
        max_new: int,
        block_size: int,
        *,
        lora: str | None = None,
        lora_id: int | None = None,
        salt: int | None = None,
        items: tuple[Item, ...] = (),
        retention: Retention = KEEP,
        beam_width: int = 1,
        seqs: tuple[int, ...] = (0,),
    ) -> None:
        self.id = ident
        self.tokens = Seq()
        self.tokens.extend(prompt)
        self.prompt_len = len(prompt)
        self.max_new = max_new
        self.retention = retention
        self.beam_width = beam_width
        self.seqs = seqs
        self.lora = lora
        isolated = lora_id is not None or salt is not None
        self.extra = Extra(lora_id, salt) if isolated else PLAIN
        self.position = 0
        self.prepopulated = 0
        self.chunk = self.prompt_len
        self.drafts = 0
        self.estimate = 0
        self.reused = self.missed = self.alloc = self.alloc_new = 0
        self._items = items
        self._size = block_size
        self._keys: list[BlockKey] = []  # of full blocks, built once

    def rewrite(self, tokens: Seq) -> None:
        """Gives the request other tokens; its keys follow."""
        self.tokens = tokens
        self._keys = []

    # -- progress ---------------------------------------------------------------------------

    @property
    def remaining(self) -> int:
        """Prompt tokens not computed yet."""
        return self.prompt_len - self.position

    @property
    def in_context(self) -> bool:
        """The prompt is not finished."""
        return self.position < self.prompt_len

    @property
    def first_chunk(self) -> bool:
        """No token of the prompt was computed yet (RULES 10)."""
        return self.position == self.prepopulated and self.in_context

    @property
    def last_chunk(self) -> bool:
        """The planned chunk ends the prompt."""
        return self.position + self.chunk >= self.prompt_len

    @property
    def materialized(self) -> int:
        """Tokens known to the cache: the position while the prompt lasts, then all (RULES 11b)."""
        return self.position if self.in_context else len(self.tokens)

    def set_prepopulated(self, hit: int) -> None:
        """Starts behind a hit; a chunk that is not the last still ends on a block (RULES 11).

        The chunk window is shifted right by the hit, not shortened by it.
        """
        assert hit < self.prompt_len, f"{self.id}: hit {hit} of {self.prompt_len} tokens"
        self.prepopulated = hit
        chunk = self.chunk
        if hit > 0:
            if hit + chunk < self.prompt_len:
                chunk = (hit + chunk) // self._size * self._size - hit
            self.position = hit
            self.chunk = min(chunk, self.prompt_len - hit)
        self.estimate = 0

    # -- keys -------------------------------------------------------------------------------

    def full_keys(self, tokens: int) -> list[BlockKey]:
        """Keys of the whole blocks among the first ``tokens`` tokens."""
        wanted = tokens // self._size
        for index in range(len(self._keys), wanted):
            self._keys.append(self._key(index * self._size, (index + 1) * self._size))
        return self._keys if len(self._keys) == wanted else self._keys[:wanted]

    def keys(self, tokens: int) -> list[BlockKey]:
        """Keys of the first ``tokens`` tokens, the last one perhaps short."""
        full = tokens // self._size * self._size
        keys = list(self.full_keys(full))
        if full < tokens:
            keys.append(self._key(full, tokens))
        return keys

    def lookup_keys(self, limit: int) -> list[BlockKey]:
        """Keys that are looked up: of all prompt tokens but the last (RULES 3).

        A prompt of one token more than whole blocks ends in an empty key, which never matches.
        """
        length = min(self.prompt_len, limit)
        keys = self.keys(length - 1)
        if length % self._size == 1:
            keys.append(BlockKey(0, None, self.extra))
        return keys

    def key_at(self, start: int, length: int) -> BlockKey:
        """The key of ``length`` tokens from ``start`` on, a block's first token."""
        index = start // self._size
        if length == self._size and index < len(self._keys):
            return self._keys[index]
        return self._key(start, start + length)

    def _key(self, start: int, stop: int) -> BlockKey:
        extra = self.extra
        if self._items:
            entries = item_entries(self._items, start, stop)
            if entries:
                extra = extra._replace(items=entries)
        return BlockKey(stop - start, self.tokens.key(start, stop), extra)
