"""What a field case expects, compared with what came of its run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handoff.ledger.entries import Entry
from handoff.types import Handoff

__all__ = ["Checked", "Difference", "Played", "check", "numbers_in"]

REMARKS = frozenset(
    {
        "name",
        "set",
        "config",
        "framework",
        "requests",
        "variants",
        "status",
        "explain",  # checked apart
        "must_say",
        "must_not",
        "why",
        "rule",
        "remark",
        "also",
        "reported",
    }
)
"""Keys of an expectation that hold no number to compare."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a run: entries by request, and what only Steps tell.

    ``corrected`` are the tokens that the first over-full batch needed and got (a batch of several
    admissions). ``called`` are the words by which an expectation may name a group.
    """

    entries: Mapping[str, Entry]
    again: Mapping[str, Entry]
    handoffs: Mapping[str, Handoff]
    chunks: Mapping[str, list[tuple[int, int]]]
    first_step: Mapping[str, int]
    passes: list[list[str]]
    corrected: tuple[int, int] | None
    called: Mapping[str, Sequence[str]]
    story: list[str]


Difference = tuple[str, Any, Any]
"""Path, expected, got."""


@dataclass(slots=True)
class Checked:
    """``fields`` values were compared, ``differences`` found, ``unchecked`` keys passed over."""

    fields: int = 0
    differences: list[Difference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def compare(self, path: str, wanted: Any, got: Any) -> None:
        """One value."""
        self.fields += 1
        if not _fits(wanted, got):
            self.differences.append((path, wanted, got))


def check(expected: Mapping[str, Any], played: Played) -> Checked:
    """Compare everything that an expectation states in numbers or names of classes."""
    checked = Checked()
    for key, wanted in expected.items():
        if key in REMARKS:
            continue
        if key in _TOTALS:
            checked.compare(key, wanted, _TOTALS[key](played))
        elif key in _BY_REQUEST:
            for request, value in wanted.items():
                checked.compare(f"{key}.{request}", value, _BY_REQUEST[key](played, request))
        else:
            checked.unchecked.append(key)
    for request, reasons in expected.get("explain", {}).items():
        checked.fields += max(1, len(reasons))
        checked.differences += _reasons(request, reasons, played)
    return checked


def _reasons(request: str, reasons: Sequence[str], played: Played) -> Iterator[Difference]:
    entry = played.entries.get(request)
    kinds = {} if entry is None else {**entry.lost, "moved": entry.moved}
    kinds = {kind: tokens for kind, tokens in kinds.items() if tokens}
    served = entry is not None and bool(entry.runs)
    if not reasons and (set(kinds) - {"moved"} or not served):
        yield f"explain.{request}", [], kinds
    for reason in reasons:
        if not set(reason.split("|")) & set(kinds):
            yield f"explain.{request}", reason, kinds


def _fits(wanted: Any, got: Any) -> bool:
    """Equal; a pair of integers is a closed interval where one number is checked."""
    if isinstance(wanted, list) and len(wanted) == 2 and isinstance(got, int):
        return bool(wanted[0] <= got <= wanted[1])
    if isinstance(wanted, Mapping) and isinstance(got, list):
        return _fit_groups(wanted, got)
    if isinstance(wanted, list) and isinstance(got, list):
        if wanted and isinstance(wanted[0], int) and got and isinstance(got[0], list):
            return wanted == [length for _, length in got]
        return wanted == got
    return bool(wanted == got)


def _entry(read: Callable[[Entry], Any]) -> Callable[[Played, str], Any]:
    def found(played: Played, request: str) -> Any:
        entry = played.entries.get(request)
        if entry is None or entry.status.startswith("refused"):
            return None  # no number of a request that was never served agrees with anything
        return read(entry)

    return found


def _groups(played: Played, request: str) -> Any:
    """Tokens that each group matched before the groups were reconciled, by what it is called."""
    handoff = played.handoffs.get(request)
    if handoff is None:
        return None
    return [(played.called[answer.group], answer.matched) for answer in handoff.groups]


def _fit_groups(wanted: Mapping[str, int], got: Sequence[tuple[Sequence[str], int]]) -> bool:
    """Whether each group, named by its type or window, matched so much."""
    return all(
        [tokens] == [matched for names, matched in got if key in names]
        for key, tokens in wanted.items()
    )


def _stats(played: Played, name: str) -> float:
    """One of the framework's own counters, summed over first admissions."""
    return sum(e.counters.get(f"prefix_cache_{name}", 0) for e in played.entries.values())


def _external(played: Played, request: str) -> int | None:
    handoff = played.handoffs.get(request)
    return None if handoff is None else sum(handoff.external_tokens.values())


def _local(played: Played, request: str) -> int | None:
    handoff = played.handoffs.get(request)
    external = _external(played, request)
    return None if handoff is None or external is None else handoff.hit_tokens - external


def _copies(played: Played, request: str) -> int | None:
    handoff = played.handoffs.get(request)
    return None if handoff is None else sum(len(answer.copied) for answer in handoff.groups)


def _charged(played: Played, request: str) -> int | None:
    handoff = played.handoffs.get(request)
    if handoff is None or handoff.estimate_tokens is None:
        return None
    return handoff.known_tokens - handoff.estimate_tokens


def _chunks(played: Played, request: str) -> list[list[int]]:
    return [list(chunk) for chunk in played.chunks.get(request, ())]


_BY_REQUEST: dict[str, Callable[[Played, str], Any]] = {
    "hit": _entry(lambda entry: entry.hit_tokens),
    "hit_matched": _entry(lambda entry: entry.raw_tokens),
    "start": _entry(lambda entry: entry.start),
    "compute": _entry(lambda entry: entry.computed_tokens),
    "saved": _entry(lambda entry: entry.prompt_tokens - entry.computed_tokens),
    "moved": _entry(lambda entry: entry.moved),
    "estimate": _entry(lambda entry: entry.estimate_tokens),
    "group_hits": _groups,
    "hit_local": _local,
    "hit_external": _external,
    "copies": _copies,
    "charged": _charged,
    "chunks": _chunks,
    "stats": _stats,
    "step": lambda played, request: played.first_step.get(request),
    "readmission": lambda played, request: (
        played.again[request].hit_tokens if request in played.again else None
    ),
}


def _forward(played: Played) -> Any:
    return played.corrected and dict(zip(("needed", "after_correction"), played.corrected))


_TOTALS: dict[str, Callable[[Played], Any]] = {
    "forward_tokens": _forward,
    "passes": lambda played: played.passes,
    "extra_compute_by_isolation": lambda played: sum(
        e.count("isolation") for e in played.entries.values()
    ),
    "compute_total": lambda played: sum(e.computed_tokens for e in played.entries.values()),
}

_NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?=(?:th|st|nd|rd)?(?![\w]))")


def numbers_in(text: str) -> list[str]:
    """The numbers of a text without separators, each once; names like ``r4`` hold none.

    >>> numbers_in("r4: 1,024 of the 128th, 1,024 again")
    ['1024', '128']
    """
    found = [match.group().rstrip(",").replace(",", "") for match in _NUMBER.finditer(text)]
    return list(dict.fromkeys(found))
