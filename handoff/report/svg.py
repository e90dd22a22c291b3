"""The page's inline drawings: strips, bars and waterfall steps as SVG without a viewBox.

Lengths along a prompt are percentages, so a drawing fits any width and its hatches keep their
scale. Fills are CSS classes (``k-`` and the class of tokens); patterns are defined once a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from .palette import CLASSES, FLAGS, THEMES, TokenClass, dark_ink
from .strip import CELLS, Run, Strip, StripRow, at_most, clip, scale
from .totals import Fall, Total
from .words import count, percent

__all__ = [
    "answer_bar",
    "fall_bar",
    "fall_words",
    "fills",
    "patterns",
    "scale",
    "strip_svg",
    "swatch",
]

_TICKS = 40
_STROKES = {
    "///": "M0 6 6 0",
    "\\\\\\": "M0 0 6 6",
    "|||": "M3 0V6",
    "---": "M0 3H6",
    "+++": "M0 3H6M3 0V6",
    "xxx": "M0 0 6 6M0 6 6 0",
}


def _all() -> list[TokenClass]:
    return [*CLASSES.values(), FLAGS["recomputed"]]


def patterns() -> Markup:
    """The hidden SVG with one pattern for every hatched class."""
    defs = []
    for look in _all():
        if not look.hatch:
            continue
        ink = THEMES["light"].ink if dark_ink(look.colour) else "#FFFFFF"
        if look.hatch == "...":
            mark = f'<circle cx="3" cy="3" r="1" fill="{ink}" fill-opacity=".6"/>'
        else:
            mark = f'<path d="{_STROKES[look.hatch]}" stroke="{ink}" stroke-opacity=".55"/>'
        defs.append(
            f'<pattern id="p-{look.name}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<rect width="6" height="6" fill="{look.colour}"/>{mark}</pattern>'
        )
    return Markup(f'<svg class="defs" aria-hidden="true"><defs>{"".join(defs)}</defs></svg>')


def fills() -> str:
    """CSS: the fill of every class."""
    rules = [".k-fresh{fill:var(--fresh);stroke:var(--outline);stroke-width:.5}"]
    rules.append(".k-unneeded{fill:none;stroke:var(--outline);stroke-dasharray:2 2}")
    for look in _all():
        if look.name != "fresh":
            paint = f"url(#p-{look.name})" if look.hatch else look.colour
            rules.append(f".k-{look.name}{{fill:{paint}}}")
    return "".join(rules)


def swatch(name: str) -> Markup:
    """A legend's sample of one class."""
    return Markup(
        f'<svg class="swatch" aria-hidden="true"><rect class="k-{name}" x="1" y="1" width="14"'
        ' height="10"/></svg>'
    )


def strip_svg(one: Strip, row: StripRow, window: tuple[int, int] | None = None) -> Markup:
    """A row of a strip, whole or enlarged to ``window``; each run has its title."""
    start, stop = window or (0, one.prompt)
    where = f"positions {count(start)} to {count(stop)}" if window else "whole prompt"
    runs = at_most(clip(row.runs, start, stop))
    place = scale(runs)
    lanes = [(name, at_most(clip(lane, start, stop))) for name, lane in row.lanes.items()]
    parts = [f"<title>{escape(row.label)}, {where}: {row.words()}</title>"]
    height = 26 / max(1, len(lanes))
    for at, (name, lane) in enumerate(lanes or [("", runs)]):
        top = 4 + at * height
        parts += _rects(lane, scale(lane), top, height - (1 if lanes else 0))
        if name and (window or one.lens is None):
            y = f"{top + height - 3:.1f}"
            parts.append(f'<text class="lane" x="100%" dx="-3" y="{y}">{escape(name)}</text>')
    if one.prompt <= CELLS:
        parts.append(_grid(start, stop, 4, 26, 1, "cell"))
    if row.unit > 1 and (stop - start) / row.unit <= _TICKS:
        parts.append(_grid(start, stop, 31, 3, row.unit, "tick"))
    parts += _marks(row, place, start, stop)
    label = escape(f"{row.label}, {where}: {row.words()}")
    return Markup(f'<svg class="strip" role="img" aria-label="{label}">{"".join(parts)}</svg>')


def _rects(
    runs: Sequence[Run], place: Callable[[int], float], top: float, height: float
) -> list[str]:
    out = []
    for name, start, stop in runs:
        left = place(start)
        words = (CLASSES | FLAGS)[name].words
        title = f"positions {count(start)} to {count(stop)}: {count(stop - start)} {name} ({words})"
        out.append(
            f'<rect class="k-{name}" x="{left:.2f}%" y="{top:.1f}"'
            f' width="{place(stop) - left:.2f}%" height="{height:.1f}">'
            f"<title>{escape(title)}</title></rect>"
        )
    return out


def _grid(start: int, stop: int, top: int, height: int, unit: int, kind: str) -> str:
    """Vertical lines at every multiple of ``unit``, as one stretched path."""
    first = -(-start // unit) * unit
    path = "".join(f"M{at - start} 0V1" for at in range(first, stop + 1, unit) if start < at)
    return (
        f'<svg x="0" y="{top}" width="100%" height="{height}" viewBox="0 0 {stop - start} 1"'
        f' preserveAspectRatio="none"><path class="{kind}" d="{path}"/></svg>'
    )


def _marks(row: StripRow, place: Callable[[int], float], start: int, stop: int) -> list[str]:
    """First difference (dashed), hit length (bar with halo), start of positions if elsewhere."""
    out = []
    if start <= row.shared <= stop and row.shared > 0:
        x = place(row.shared)
        out.append(f'<line class="diff" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="34"/>')
    if start <= row.hit <= stop and row.hit:
        x = place(row.hit)
        for kind in ("halo", "hit"):
            out.append(f'<line class="{kind}" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="34"/>')
    if row.start != row.hit and start <= row.start <= stop:
        out.append(f'<text class="from" x="{place(row.start):.2f}%" y="7">▼</text>')
    return out


def answer_bar(row: Total, *, pale: bool = False) -> Markup:
    """Hit ratio as an outline over saved ratio as a solid bar; ``pale``: of fewer requests."""
    hit, saved = 100 * (row.hit_ratio or 0.0), 100 * max(0.0, row.saved_ratio or 0.0)
    return Markup(
        f'<svg class="bar{" pale" if pale else ""}" aria-hidden="true">'
        f'<rect class="hb" x="0" y="1" width="{hit:.2f}%" height="7"/>'
        f'<rect class="sb" x="0" y="11" width="{saved:.2f}%" height="8"/></svg>'
    )


def fall_bar(step: Fall) -> Markup:
    """One cell of the waterfall: a level from 0, a step with its connector, or the connector."""
    if step.kind == "total":
        kind = {"shared prefix": "wt", "hit tokens": "k-reused", "saved compute": "sb"}[step.name]
        width = 100 * min(max(step.value, 0.0), 1.0)
        return _wf(f'<rect class="{kind}" x="0" y="4" width="{width:.2f}%" height="17"/>')
    low, high = sorted((step.before, step.before + step.value))
    after = 100 * min(max(step.before + step.value, 0.0), 1.0)
    line = f'<line class="conn" x1="{after:.2f}%" x2="{after:.2f}%" y1="0" y2="25"/>'
    if step.value == 0:
        return _wf(line)
    width = max(1.0, 100 * (high - low))  # a step that occurs is seen
    left = min(max(0.0, 100 * low), 100 - width)
    kind = f"k-{step.name}" if step.name in CLASSES else "weights"
    return _wf(
        f'{line}<rect class="{kind}" x="{left:.2f}%" y="4" width="{width:.2f}%" height="17"/>'
    )


def _wf(inner: str) -> Markup:
    return Markup(f'<svg class="fall" aria-hidden="true">{inner}</svg>')


def fall_words(step: Fall) -> str:
    """The number of a waterfall cell: a level plainly, a step with its sign, nothing for none."""
    if step.kind == "total":
        return percent(step.value)
    if step.value == 0:
        return ""
    text = percent(step.value)
    return text if step.value < 0 else "+0.0" if text == "<0.1" else f"+{text}"
