"""What every finder is given and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..keys import PrefixKeys
from ..pool import BlockPool
from ..sizes import GroupSpec

__all__ = ["Found", "Lookup", "SpecSet", "spec_sets"]


class Found(NamedTuple):
    """``tokens`` of a prefix are cached; per group the blocks that hold it (0 = not needed)."""

    blocks: tuple[list[int], ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class SpecSet:
    """Groups of identical spec, looked up together; ``eagle`` if any of them is an EAGLE group."""

    spec: GroupSpec
    members: tuple[int, ...]
    eagle: bool


def spec_sets(groups: tuple[GroupSpec, ...]) -> tuple[SpecSet, ...]:
    """The cacheable groups by identical spec: full-attention specs first, else in group order."""
    alike: dict[tuple[object, ...], list[GroupSpec]] = {}
    for group in groups:
        if group.cacheable:
            alike.setdefault(group.alike, []).append(group)
    sets = [
        SpecSet(same[0], tuple(g.index for g in same), any(g.eagle for g in same))
        for same in alike.values()
    ]
    return tuple(sorted(sets, key=lambda s: not s.spec.is_full))


class Lookup(NamedTuple):
    """One request looking into the pool.

    ``hashed``: tokens of its complete hash pieces; ``unit``: hits are multiples of it.
    """

    pool: BlockPool
    keys: PrefixKeys
    hashed: int
    unit: int

    def at(self, wanted: SpecSet, length: int) -> tuple[int, ...] | None:
        """Blocks of all groups that stand for the prefix of ``length``, or ``None``."""
        blocks = []
        for group in wanted.members:
            block = self.pool.find(self.keys.key(length, group))
            if block is None:
                return None
            blocks.append(block)
        return tuple(blocks)
