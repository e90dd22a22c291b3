"""The V2 manager's look-up: chained keys, the block tree, what a match keeps, what a commit adds.

(RULES 12; kv_cache_manager_v2: ``_block_radix_tree.py`` @ 27efb004, ``_core/_kv_cache.py`` @
f4faed18.) Read and checked against upstream's unit tests, not run; the engine does not use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["FULL", "SWA", "Cache", "Match", "Settings", "TreeBlock", "TreeV2", "committable"]

FULL, SWA = "full", "swa"
_MAX_CHILDREN = 32  # a parent with so many children is not searched for a partial match


@dataclass(frozen=True, slots=True)
class Settings:
    """Block size, sliding window if there is a sliding group beside the full one, options."""

    tokens_per_block: int
    window: int | None = None
    sink_tokens: int = 0
    reuse_match_backoff: int = 0
    commit_min_snapshot: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """Layer groups that own pages."""
        return (FULL,) if self.window is None else (FULL, SWA)

    def stale(self, history: int) -> range:
        """Blocks of the sliding group that nobody sees any more after ``history`` tokens."""
        if self.window is None:
            return range(0)
        size = self.tokens_per_block
        return range(-(-self.sink_tokens // size), max(0, history + 1 - self.window) // size)


@dataclass(slots=True, eq=False)
class TreeBlock:
    """A node: the tokens of one block and a page per group, as far as it still has one."""

    key: bytes
    tokens: tuple[int, ...]
    parent: TreeBlock | None
    pages: dict[str, int] = field(default_factory=dict)
    children: dict[bytes, TreeBlock] = field(default_factory=dict)


class Match(NamedTuple):
    """Blocks of a match with the tokens used of each, and the hit after the back-off."""

    blocks: list[tuple[TreeBlock, int]]
    tokens: int


@dataclass(slots=True)
class Cache:
    """One sequence: its committed tokens and the pages of its blocks in the full group."""

    scope: tuple[int | None, int | None]
    tokens: list[int]
    pages: list[int]


class TreeV2:
    """Trees by scope, (LoRA id, salt); ``None`` and 0 differ."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._roots: dict[bytes, TreeBlock] = {}
        self._next_page = 0

    def clear(self) -> None:
        """Forgets everything; a second time is no error."""
        self._roots.clear()

    # -- keys -------------------------------------------------------------------------------

    @staticmethod
    def root_key(lora: int | None, salt: int | None) -> bytes:
        """Digest of a scope."""
        return hashlib.sha256(repr((lora, salt)).encode()).digest()

    @staticmethod
    def chained_key(parent: bytes, tokens: Sequence[int]) -> bytes:
        """Digest of a block behind its prefix; tokens as 8 bytes little endian."""
        words = b"".join(token.to_bytes(8, "little", signed=True) for token in tokens)
        return hashlib.sha256(parent + words).digest()

    def root(self, lora: int | None, salt: int | None) -> TreeBlock:
        """The root of a scope, made if there is none."""
        key = self.root_key(lora, salt)
        return self._roots.setdefault(key, TreeBlock(key, (), None))

    def _pieces(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        size = self.settings.tokens_per_block
        for start in range(0, len(tokens), size):
            yield tuple(tokens[start : start + size])

    # -- match ------------------------------------------------------------------------------

    def match(
        self,
        tokens: Sequence[int],
        lora: int | None = None,
        salt: int | None = None,
        partial: bool = True,
    ) -> Match:
        """The usable prefix of ``tokens``; changes nothing."""
        node = self._roots.get(self.root_key(lora, salt))
        found: list[tuple[TreeBlock, int]] = []
        for piece in self._pieces(tokens) if node is not None else ():
            assert node is not None
            child = node.children.get(self.chained_key(node.key, piece))
            if child is None:
                longest = self._longest(node, piece) if partial else None
                if longest is not None:
                    found.append(longest)
                break
            found.append((child, len(piece)))
            node = child
        found = self._with_pages(found)
        return Match(found, max(0, self._length(found) - self.settings.reuse_match_backoff))

    @staticmethod
    def _longest(node: TreeBlock, piece: tuple[int, ...]) -> tuple[TreeBlock, int] | None:
        """The child with the longest common prefix; the first inserted wins a tie."""
        if len(node.children) >= _MAX_CHILDREN:
            return None
        best: tuple[TreeBlock, int] | None = None
        for child in node.children.values():
            shared = _common(child.tokens, piece)
            if shared > (best[1] if best else 0):
                best = child, shared
        return best

    def _length(self, found: Sequence[tuple[TreeBlock, int]]) -> int:
        size = self.settings.tokens_per_block
        return size * (len(found) - 1) + found[-1][1] if found else 0

    def _with_pages(self, found: list[tuple[TreeBlock, int]]) -> list[tuple[TreeBlock, int]]:
        """Cuts a match to what its pages still serve, full group first."""
        keep = next(
            (at for at, (block, _) in enumerate(found) if FULL not in block.pages), len(found)
        )
        found = found[:keep]
        if self.settings.window is None:
            return found
        while found:
            missing = [at for at, (block, _) in enumerate(found) if SWA not in block.pages]
            stale = self.settings.stale(self._length(found))
            gaps = [at for at in missing if at not in stale]
            if not gaps:
                return found
            found = found[: gaps[-1]]
        return found

    def first_new_key(
        self, tokens: Sequence[int], lora: int | None = None, salt: int | None = None
    ) -> bytes | None:
        """Key, with its prefix, of the block after the last complete one of the match.

        ``None`` if that block would not be full.
        """
        size = self.settings.tokens_per_block
        complete = self.match(tokens, lora, salt).tokens // size
        if len(tokens) < (complete + 1) * size:
            return None
        key = self.root_key(lora, salt)
        for piece in self._pieces(tokens[: (complete + 1) * size]):
            key = self.chained_key(key, piece)
        return key

    # -- create and commit ------------------------------------------------------------------

    def create(self, tokens: Sequence[int], lora: int | None, salt: int | None) -> Cache:
        """A sequence behind its match; a short last block is copied, full ones are shared."""
        found = self.match(tokens, lora, salt)
        size = self.settings.tokens_per_block
        pages = [
            block.pages[FULL] if used == size else self._new_page()
            for block, used in found.blocks[: -(-found.tokens // size)]
        ]
        if found.tokens % size and pages:
            pages[-1] = self._new_page()
        return Cache((lora, salt), list(tokens[: found.tokens]), pages)

    def commit(self, cache: Cache, tokens: Sequence[int], stop: bool) -> None:
        """Adds computed tokens; full blocks become findable, a short tail when it stops.

        A full block that exists already replaces the sequence's own page.
        """
        size = self.settings.tokens_per_block
        cache.tokens += tokens
        while len(cache.pages) * size < len(cache.tokens):
            cache.pages.append(self._new_page())
        node = self.root(*cache.scope)
        path: list[TreeBlock] = []
        for at, piece in enumerate(self._pieces(cache.tokens)):
            if len(piece) < size and not stop:
                break
            block = self.insert(node, piece, {FULL: cache.pages[at]})
            if block is None:
                break
            cache.pages[at] = block.pages.setdefault(FULL, cache.pages[at])
            path.append(block)
            node = block
        self._keep_sliding(path, len(cache.tokens))

    def _keep_sliding(self, path: Sequence[TreeBlock], committed: int) -> None:
        """Pages of the sliding group; a minimal snapshot keeps those that go on from here."""
        if self.settings.window is None:
            return
        stale = self.settings.stale(committed) if self.settings.commit_min_snapshot else range(0)
        for at, block in enumerate(path):
            if at not in stale:
                block.pages.setdefault(SWA, self._new_page())

    def insert(
        self, parent: TreeBlock, tokens: tuple[int, ...], pages: dict[str, int]
    ) -> TreeBlock | None:
        """The block under ``parent``; ``None`` if it is short and a sibling covers it.

        Shorter siblings that the new block covers go.
        """
        key = self.chained_key(parent.key, tokens)
        if key in parent.children:
            return parent.children[key]
        for sibling in list(parent.children.values()):
            shared = _common(sibling.tokens, tokens)
            if shared == len(tokens):
                return None
            if shared == len(sibling.tokens):
                del parent.children[sibling.key]
        block = parent.children[key] = TreeBlock(key, tokens, parent, dict(pages))
        return block

    def evict(self, block: TreeBlock, group: str) -> None:
        """A page goes; without its full-attention page the whole subtree goes."""
        block.pages.pop(group, None)
        if group == FULL and block.parent is not None:
            block.parent.children.pop(block.key, None)

    def new_pages(self, groups: Sequence[str]) -> dict[str, int]:
        """A fresh page for each group."""
        return {group: self._new_page() for group in groups}

    def _new_page(self) -> int:
        self._next_page += 1
        return self._next_page - 1


def committable(
    tokens: Sequence[int], num_committed: int, position: int, remaining: int
) -> tuple[list[int], int, bool]:
    """After a context step: tokens to commit, committed tokens then, whether committing stops."""
    return list(tokens[num_committed:position]), position, remaining == 0


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
