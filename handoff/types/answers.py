"""The answer to "what does this hit really give": ``Match`` before, ``Handoff`` after the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .step import Spans

__all__ = ["REASONS", "Deduction", "GroupAnswer", "GroupMatch", "Handoff", "Match"]

REASONS = (
    "not_stored",
    "isolation",
    "disabled",
    "slot_choice",
    "evicted",
    "tier",
    "group",
    "alignment",
    "last_token",
    "draft",
    "budget",
    "replay",
)
"""Every reason for which a prompt token can be lost, in the order of tables and figures."""


class Deduction(NamedTuple):
    """Prompt positions ``[start, stop)`` lost for one ``reason`` of ``REASONS``.

    ``rule`` cites the rule book's section ("5"), ``group`` names the limiting group if one does,
    ``note`` is one clause for people.
    """

    reason: str
    start: int
    stop: int
    rule: str
    group: str | None = None
    note: str = ""

    @property
    def tokens(self) -> int:
        """Number of positions lost."""
        return self.stop - self.start


class GroupMatch(NamedTuple):
    """Tokens that one group could serve, before the groups are reconciled."""

    group: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """What a pure look-up finds; it holds nothing.

    ``raw_tokens`` is the longest findable prefix before any rule, ``hit_tokens`` what would be
    granted now. ``elsewhere`` is the best prefix held in a place that was not chosen (another slot,
    a RAM entry, a host tier).
    """

    raw_tokens: int
    hit_tokens: int
    groups: tuple[GroupMatch, ...] = ()
    elsewhere: int = 0
    deductions: tuple[Deduction, ...] = ()


class GroupAnswer(NamedTuple):
    """One group's part of a ``Handoff``.

    ``table`` is the block table at admission, ``shared`` of whose first columns hold hit content
    (holes included) and the first of which written anew is column ``fresh``; ``write`` and
    ``visible`` are the first positions stored and seen. ``copied`` are
    ``(source block, new block, tokens)``; ``taken`` tokens lie in column ``fresh``, a block that
    was taken over in place.
    """

    group: str
    matched: int
    table: Sequence[int]
    fresh: int
    write: int
    visible: int = 0
    copied: tuple[tuple[int, int, int], ...] = ()
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Handoff:
    """The six answers for one admission; emitted in the Step of its first row.

    * who matches: ``matcher`` (words); hit: ``raw_tokens - sum(deductions) + moved == hit_tokens``,
      as the framework reports it; references: ``references`` (blocks or nodes held) and ``groups``;
      positions from ``start`` (<= hit; ``[start, hit)`` is *replay*, computed again); read-only in
      group g = ``[0, write)``; still computed: ``known_tokens - start``.
    * ``known_tokens``: prompt plus accepted outputs known at admission; ``prompt_tokens`` of the
      request; ``attempt`` 0 first, +1 each re-admission after a preemption.
    * ``raw_tokens``: longest prefix found before any rule, external tokens included.
    * ``external_tokens``: by tier, part of the hit that came from outside.
    * ``estimate_tokens``: what a scheduler assumed before the truth was known; ``budget_tokens``:
      tokens of the first chunk that its budget left after the correction.
    * ``elsewhere``: as in ``Match``. ``unit``: the grain of a hit in tokens (block, page, lcm).
    * ``moved_spans``: prompt positions ``[start, stop)`` reused although they are no prefix.
    * ``unsound``: rules by which upstream hands out KV that a cold run would not hold.
    * ``cold``: the ``Spans`` of the same request with hit 0, where they are not plain.
    """

    seq: int
    request: str
    prompt_tokens: int
    known_tokens: int
    raw_tokens: int
    hit_tokens: int
    start: int
    deductions: tuple[Deduction, ...] = ()
    groups: tuple[GroupAnswer, ...] = ()
    attempt: int = 0
    moved_spans: tuple[tuple[int, int], ...] = ()
    external_tokens: Mapping[str, int] = field(default_factory=dict)
    estimate_tokens: int | None = None
    budget_tokens: int | None = None
    elsewhere: int = 0
    unit: int = 1
    matcher: str = ""
    references: str = ""
    unsound: tuple[str, ...] = ()
    spans: Spans | None = None
    cold: Spans | None = None

    @property
    def moved_tokens(self) -> int:
        """Tokens reused although they are no prefix (llama.cpp's chunk shift)."""
        return sum(stop - start for start, stop in self.moved_spans)

    def __post_init__(self) -> None:
        lost = sum(deduction.stop - deduction.start for deduction in self.deductions)
        assert self.raw_tokens - lost + self.moved_tokens == self.hit_tokens, (
            f"{self.request}: raw {self.raw_tokens} - lost {lost} + moved {self.moved_tokens}"
            f" != hit {self.hit_tokens}"
        )
        assert 0 <= self.start <= self.hit_tokens, f"{self.request}: start beyond the hit"
        assert self.start < self.known_tokens, f"{self.request}: nothing is left to compute"
        edge = self.raw_tokens
        for deduction in self.deductions:  # from the raw end downwards, without gaps
            assert deduction.reason in REASONS, f"{deduction.reason} is no reason"
            assert deduction.stop == edge and deduction.start < edge, (
                f"{self.request}: deductions must adjoin, in rule order: {self.deductions}"
            )
            edge = deduction.start
