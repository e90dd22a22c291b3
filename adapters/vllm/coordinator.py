"""Reconciling the groups: how long a prefix all of them can serve (RULES 5).

(kv_cache_coordinator.py: no-cache, unitary and hybrid coordinators)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .finders import FINDERS, Found, Lookup, SpecSet, reach_full, spec_sets
from .finders.window import blocks_needed
from .keys import PrefixKeys
from .pool import BlockPool
from .sizes import Sizes, cdiv, floor_to

__all__ = ["Coordinator", "Hit", "Measure"]


@dataclass(slots=True)
class Hit:
    """What a look-up found: ``blocks`` per group, ``tokens`` all groups can serve.

    ``junction``: the place where another group could have gone on (0 = none); upstream keeps it as
    ``shared_prefix_boundary``.
    """

    blocks: list[list[int]]
    tokens: int = 0
    junction: int = 0
    discarded: int = 0
    """Tokens of a hit that was given up because replaying the window would cost as much."""


class Measure(NamedTuple):
    """What the index held for a request before any rule, for the Handoff's deductions.

    ``matched`` are the tokens each group could serve alone; ``raw`` the longest of them, found in
    group ``leading``, which keeps ``dropped`` of them after the EAGLE drop. ``missing`` says in
    words what a window group lacked there.
    """

    matched: tuple[int, ...]
    raw: int
    leading: int
    dropped: int
    missing: Mapping[int, str]


class Coordinator:
    """Looks a request up in all groups; changes nothing."""

    def __init__(self, pool: BlockPool, sizes: Sizes) -> None:
        self._pool = pool
        self._sizes = sizes
        self._sets = spec_sets(sizes.groups)

    def empty(self) -> Hit:
        """No hit."""
        return Hit([[] for _ in self._sizes.groups])

    def find(self, keys: PrefixKeys, known: int) -> Hit:
        """The hit of a request of which ``known`` tokens are known: at most ``known - 1``."""
        look = self._look(keys, known, self._sizes.alignment)
        if len(self._sizes.groups) == 1:
            return self._unitary(look, known - 1)
        return self._hybrid(look, known)

    def measure(self, keys: PrefixKeys, known: int, hit: int) -> Measure:
        """What the groups could serve alone, if together they serve ``hit``; changes nothing."""
        matched = [0] * len(self._sizes.groups)
        best, leading = 0, self._sets[0]
        for wanted in self._sets:
            size = wanted.spec.block_size
            look = self._look(keys, known, self._sizes.hash_block if self._fine(size) else size)
            if wanted.spec.is_full:
                tokens = reach_full(look, wanted, hit)
            else:
                tokens = _find(look, wanted, look.hashed, False).tokens
            for member in wanted.members:
                matched[member] = tokens
            if tokens > best:
                best, leading = tokens, wanted
        dropped = best
        if leading.eagle and best:
            look = self._look(keys, known, self._sizes.alignment)
            limit = known - 1
            if len(self._sizes.groups) > 1 and leading.spec.type != "mamba":
                limit = min(limit + self._margin(leading), look.hashed)
            dropped = _find(look, leading, limit, True).tokens
        return Measure(
            tuple(matched), best, leading.members[0], dropped, self._missing(keys, known, best)
        )

    def _missing(self, keys: PrefixKeys, known: int, length: int) -> dict[int, str]:
        """Which blocks of the window before ``length`` are not cached, by window group."""
        found = {}
        for wanted in self._sets:
            if wanted.spec.type not in ("swa", "swa_mla_replay"):
                continue
            size = wanted.spec.block_size
            look, last = self._look(keys, known, size), length // size
            need = min(blocks_needed(wanted.spec.window, size, wanted.eagle), last)
            gone = sum(
                look.at(wanted, (column + 1) * size) is None for column in range(last - need, last)
            )
            if gone:
                words = f"{gone:,} of the {need:,} window blocks before {length:,} are not cached"
                found.update(dict.fromkeys(wanted.members, words))
        return found

    def _fine(self, block_size: int) -> bool:
        return self._sizes.fine_grained and block_size > self._sizes.hash_block

    def _look(self, keys: PrefixKeys, known: int, unit: int) -> Lookup:
        return Lookup(self._pool, keys, floor_to(known, self._sizes.hash_block), unit)

    def _unitary(self, look: Lookup, limit: int) -> Hit:
        only = self._sets[0]
        found = _find(look, only, limit, only.eagle)
        return Hit(list(found.blocks), found.tokens)

    def _hybrid(self, look: Lookup, known: int) -> Hit:
        """Shorten the hit until every group agrees.

        A group that drops a unit for EAGLE first looks one unit further, once for each length it
        has not verified yet, so that often nothing is lost.
        """
        agreed, longest = known - 1, 0
        verified: set[int] = set()
        first_full: dict[int, Found] = {}
        blocks: list[list[int]] = [[] for _ in self._sizes.groups]
        while True:
            current = agreed
            for number, wanted in enumerate(self._sets):
                if number in first_full:
                    current = min(current, first_full[number].tokens)
                    continue
                drop = wanted.eagle and number not in verified
                limit = current
                if drop and wanted.spec.type != "mamba":
                    limit = min(current + self._margin(wanted), look.hashed)
                found = _find(look, wanted, limit, drop)
                if drop:
                    verified.add(number)
                elif found.tokens < current:
                    verified.clear()
                if wanted.spec.is_full:
                    first_full[number] = found
                for member, ids in zip(wanted.members, found.blocks):
                    blocks[member] = ids
                current = found.tokens
                longest = max(longest, current)
            if current >= agreed:
                break
            agreed = current
            if len(self._sets) == 2 and self._sets[0].spec.is_full:
                break
        for wanted in self._sets:
            if wanted.spec.is_full:
                for member in wanted.members:
                    del blocks[member][cdiv(agreed, wanted.spec.block_size) :]
        return Hit(blocks, agreed, longest if longest > agreed else 0)

    def _margin(self, wanted: SpecSet) -> int:
        if wanted.spec.is_full and self._fine(wanted.spec.block_size):
            return self._sizes.hash_block
        return wanted.spec.block_size


def _find(look: Lookup, wanted: SpecSet, limit: int, drop: bool) -> Found:
    return FINDERS[wanted.spec.type](look, wanted, limit, drop)
