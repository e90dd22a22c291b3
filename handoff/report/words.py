"""How numbers are written for people: separators, one decimal, true minus, small things visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "all_of",
    "count",
    "join",
    "number_word",
    "percent",
    "plural",
    "points",
    "seconds",
    "short_count",
    "span_of",
]

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def count(value: int) -> str:
    """``1,867``, with a true minus sign."""
    return f"{value:,}".replace("-", "−")


def short_count(value: int) -> str:
    """A size in binary units where it is a round one: ``4 Mi``, else ``count``."""
    for factor, unit in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if value >= factor and value % factor == 0:
            return f"{value // factor:,} {unit}"
    return count(value)


def percent(ratio: float | None) -> str:
    """``85.2`` for 0.852; a share that is not 0 or 1 is never printed as 0.0 or 100.0.

    A loss that rounds to nothing keeps its sign, ``−0.0``. ``None`` (nothing to divide by) is a
    dash.
    """
    if ratio is None:
        return "–"
    text = f"{100 * ratio:.1f}"
    if text in ("0.0", "-0.0") and ratio != 0:
        return "<0.1" if ratio > 0 else "−0.0"
    if text == "100.0" and ratio < 1:
        return ">99.9"
    return text.replace("-0.0", "0.0").replace("-", "−")


def points(ratio: float | None) -> str:
    """A signed difference of two ratios in points: ``+1.9``, ``−5.9``, ``0.0``."""
    if ratio is None:
        return "–"
    text = f"{100 * ratio:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def seconds(value: float | None) -> str:
    """Three significant digits in a unit that fits: ``0.41 s``, ``12.3 ms``."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    for scale, unit in _UNITS:
        if value >= 0.1 * scale or unit == "µs":
            scaled = value / scale
            digits = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
            return f"{scaled:,.{digits}f} {unit}"
    raise AssertionError("unreachable")


def span_of(texts: Sequence[str], low: str, high: str) -> str:
    """``64.0 to 81.0``, or the one value if all texts are equal."""
    return low if len(set(texts)) == 1 else f"{low} to {high}"


def number_word(value: int) -> str:
    """``five``; figures above ten."""
    return _NUMBERS[value] if 0 <= value < len(_NUMBERS) else count(value)


def all_of(value: int) -> str:
    """``both`` or ``all five``."""
    return "both" if value == 2 else f"all {number_word(value)}"


def plural(value: int, noun: str) -> str:
    """``1 request``, ``4,320 requests``."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def join(parts: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(parts)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
