"""Two figures of a whole run: the waterfall by reason, and hit ratio against saved ratio."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from . import findings
from .canvas import MARGIN, WIDTH, Canvas, Frame, Picture, text_width
from .grids import band
from .palette import CLASSES, Theme, framework_mark
from .svg import fall_words
from .totals import Fall, Total, common, counted, named, totals, waterfall
from .words import count, percent

__all__ = ["hit_vs_saved", "waterfall_figure"]

_COLUMNS = 6
_ROW = 21.0
_MANY = 2000
_BOLD = ("shared prefix", "hit tokens", "saved compute")


def waterfall_figure(frame: pd.DataFrame, theme: Theme = "light", window: str = "") -> Picture:
    """From the shared prefix to the saved compute, one column a row of the run.

    ``window`` says what was counted. Raises ``ValueError`` if no request finished.
    """
    rows = [row for row in totals(common(frame)) if row.prompt]
    falls = [(row, waterfall(row)) for row in rows]
    falls = [(row, steps) for row, steps in falls if steps]
    if not falls:
        raise ValueError("no request finished: there is no waterfall")
    used = {step.name for _, steps in falls for step in steps if step.value or step.kind == "total"}
    names = [step.name for step in falls[0][1] if step.name in used]
    subtitle = (
        f"{window}{'. ' if window else ''}Bars in % of prompt tokens; the last two rows in % of"
        " the FLOPs of cold prefills. A plain line: nothing lost for this reason."
    )
    names_of = named(rows)
    if any(name.endswith("*") for name in names_of.values()):
        subtitle += " * served fewer requests than the others."
    tiers = [falls[at : at + _COLUMNS] for at in range(0, len(falls), _COLUMNS)]
    height = 60 + len(tiers) * (_ROW * len(names) + 60) + 20
    canvas = Canvas(findings.waterfall_title([row for row, _ in falls]), subtitle, height, theme)
    y: float = canvas.below_title + 16
    for tier in tiers:
        _tier(canvas, [(row, names_of[row.run], steps) for row, steps in tier], names, y)
        y += _ROW * len(names) + 50
    canvas.trim(y - 4)
    words = "; ".join(
        f"{row.label}: {percent(row.shared_ratio)} % shared, {percent(row.hit_ratio)} % hit,"
        f" {percent(row.saved_ratio)} % saved"
        for row, _ in falls
    )
    return canvas.picture(f"{canvas.title}. {words}.")


def _tier(
    canvas: Canvas, tier: Sequence[tuple[Total, str, list[Fall]]], names: Sequence[str], top: float
) -> None:
    left = MARGIN + max(text_width(name, 9, True) for name in names) + 8
    wide = (WIDTH - MARGIN - left) / max(len(tier), 3)
    for at, name in enumerate(names):
        y = top + 12 + at * _ROW + _ROW / 2
        canvas.text(left - 8, y, name, bold=name in _BOLD, align="right")
    for number, (row, title, steps) in enumerate(tier):
        x = left + number * wide
        weak = "" if row.evidence == "ran" else row.evidence
        size, room = 9.5, wide - 8 - (text_width(weak, 7.5) + 4 if weak else 0)
        while size > 6.6 and text_width(title, size, True) > room:
            size -= 0.3
        canvas.text(x, top, title, size=size, bold=True)
        beside = x + text_width(title, size, True) + 4
        canvas.text(beside, top, weak, size=7.5, color=canvas.look.muted)
        _column(canvas, [step for step in steps if step.name in names], (x, wide - 24), top + 12)


def _column(canvas: Canvas, steps: Sequence[Fall], place: tuple[float, float], top: float) -> None:
    """One framework: levels from 0, steps with connectors, the number beside or inside each bar."""
    left, wide = place
    look = canvas.look

    def x(share: float) -> float:
        return left + wide * min(max(share, 0.0), 1.0)

    for at, step in enumerate(steps):
        y = top + at * _ROW
        text = fall_words(step)
        if step.kind == "total":
            canvas.box(left, y, wide, _ROW, facecolor=look.card)
            _level(canvas, step, (left, x(step.value)), y, text)
        else:
            after = step.before + step.value
            low, high = sorted((x(step.before), x(after)))
            if step.value:
                thick = max(high - low, 2.2)
                low = min(low, high - thick) if step.value < 0 else low
                _step(canvas, step.name, (low, thick), y)
                room = low - left
                beside = low - 4 if room > text_width(text, 8.5) + 6 else low + thick + 4
                align = "right" if beside < low else "left"
                canvas.text(beside, y + _ROW / 2, text, size=8.5, align=align)
        if at + 1 < len(steps):
            edge = x(step.value) if step.kind == "total" else x(step.before + step.value)
            ends = (y + _ROW - 4, y + _ROW + 4) if step.value else (y - 4, y + _ROW + 4)
            canvas.line((edge, edge), ends, color=look.outline, linewidth=0.8)
    bottom = top + len(steps) * _ROW + 2
    canvas.axis([(x(share), str(round(100 * share))) for share in (0.0, 0.5, 1.0)], bottom)


def _level(canvas: Canvas, step: Fall, sides: tuple[float, float], y: float, text: str) -> None:
    left, right = sides
    look = canvas.look
    width = right - left
    if step.name == "shared prefix":
        style = {"facecolor": "none", "edgecolor": look.ink, "linewidth": 1.2}
        canvas.box(left, y + 4, width, _ROW - 8, **style)
        ink = look.ink
    else:
        face = CLASSES["reused"].colour if step.name == "hit tokens" else look.ink
        canvas.box(left, y + 4, width, _ROW - 8, facecolor=face)
        ink = "#FFFFFF" if step.name == "hit tokens" else look.background
    inside = width > text_width(text, 8.5, True) + 8
    where = right - 4 if inside else right + 4
    align = "right" if inside else "left"
    color = ink if inside else look.ink
    canvas.text(where, y + _ROW / 2, text, size=8.5, bold=True, color=color, align=align)


def _step(canvas: Canvas, name: str, sides: tuple[float, float], y: float) -> None:
    left, width = sides
    if name in CLASSES:
        canvas.block(name, left, y + 4, width, _ROW - 8)
    else:
        canvas.box(left, y + 4, width, _ROW - 8, facecolor=canvas.look.outline)


_LEFT, _SIDE = 70.0, 288.0
"""The square of the scatter: left edge and side in points."""


def hit_vs_saved(
    frame: pd.DataFrame, theme: Theme = "light", cost: Callable[[int], float] | None = None
) -> Picture:
    """Hit ratio against saved ratio, a mark a request, with the band that causality allows.

    ``cost`` gives the FLOPs of a cold prefill of n tokens; with it three lines of equal length are
    drawn. Above 2,000 requests: hexagons of counts, outliers as marks. Raises ``ValueError`` if no
    request finished.
    """
    entries = counted(common(frame))
    entries = entries[entries["cold_flops"] > 0]
    if entries.empty:
        raise ValueError("no request finished: nothing to compare")
    rows = [row for row in totals(common(frame)) if row.prompt]
    outside = band(entries)
    below, above = int((outside < 0).sum()), int((outside > 0).sum())
    marks = "one mark each" if len(entries) <= _MANY else "darker: more of them; outliers as marks"
    subtitle = (
        f"Hit ratio against saved ratio of {count(len(entries))} admissions, {marks}."
        " Band: what causal attention allows."
    )
    title = findings.ratio_title(rows, below, above)
    canvas = Canvas(title, subtitle, 400, theme)
    scatter = _Scatter(canvas, canvas.below_title + 14)
    scatter.frame(_lengths(entries) if cost else (), cost)
    shown = scatter.marks(entries, outside)
    scatter.totals(rows)
    scatter.notes(rows, shown, bool(cost))
    canvas.trim(scatter.top + _SIDE + 36)
    return canvas.picture(
        f"{title}. "
        + "; ".join(
            f"{row.label}: {percent(row.hit_ratio)} % hit, {percent(row.saved_ratio)} % saved"
            for row in rows
        )
        + "."
    )


def _lengths(entries: pd.DataFrame) -> tuple[int, ...]:
    """Three prompt lengths of the data: the 10th, 50th and 90th percentile, without repeats."""
    return tuple(sorted({int(entries["prompt_tokens"].quantile(q)) for q in (0.1, 0.5, 0.9)}))


class _Scatter:
    """The square with its band, its marks and the words beside it."""

    def __init__(self, canvas: Canvas, top: float) -> None:
        self.canvas = canvas
        self.top = top

    def at(self, hit: np.ndarray, saved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points of the sheet for ratios; savings below 0 stand on the axis."""
        clipped = np.clip(saved, 0.0, 1.0)
        return _LEFT + _SIDE * hit, self.top + _SIDE * (1 - clipped)

    def frame(self, lengths: Sequence[int], cost: Callable[[int], float] | None) -> None:
        canvas, look = self.canvas, self.canvas.look
        grid = np.linspace(0, 1, 101)
        xs, low = self.at(grid, grid**2)
        _, high = self.at(grid, grid)
        canvas.axes.fill_between(xs, low, high, color=look.card, linewidth=0)
        canvas.line(xs, high, linewidth=1.3)
        canvas.line(xs, low, linestyle=(0, (3, 2)))
        for length in lengths:
            assert cost is not None
            whole = cost(length)
            saved = np.array(
                [cost(round(share * length)) / whole if share else 0 for share in grid]
            )
            canvas.line(*self.at(grid, saved), color=look.outline, linewidth=0.8)
        square = Frame(_LEFT, self.top, _SIDE, _SIDE, (0, 1), (0, 1))
        ticks = [(tick, f"{tick:.2f}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
        across = [(square.x(tick), text) for tick, text in ticks]
        canvas.axis(across, square.bottom, "hit ratio = hit tokens / prompt tokens")
        canvas.upright(square, ticks, "saved ratio = saved FLOPs / cold FLOPs")

    def marks(self, entries: pd.DataFrame, outside: pd.Series) -> dict[str, int]:
        """Draw the requests; how many outliers of each kind there are."""
        canvas = self.canvas
        hit = (entries["hit_tokens"] / entries["prompt_tokens"]).to_numpy(float)
        saved = (entries["saved_flops"] / entries["cold_flops"]).to_numpy(float)
        xs, ys = self.at(hit, saved)
        kinds = _kinds(entries, outside)
        plain = (kinds == "").to_numpy()
        if len(entries) > _MANY:
            extent = (_LEFT, _LEFT + _SIDE, self.top, self.top + _SIDE)
            canvas.axes.hexbin(
                xs[plain],
                ys[plain],
                gridsize=36,
                extent=extent,
                mincnt=1,
                bins="log",
                cmap="Blues" if canvas.theme != "dark" else "Blues_r",
                linewidths=0.2,
            )
            canvas.axes.set(xlim=(0, WIDTH), ylim=(canvas.height, 0))
        for run in entries["run"].unique():
            mine = (entries["run"] == run).to_numpy()
            marker = framework_mark(str(entries.loc[mine, "adapter"].iloc[0])).marker
            for kind in ("", "replay", "moved", "group", "other"):
                chosen = mine & (kinds == kind).to_numpy()
                if not chosen.any() or (kind == "" and len(entries) > _MANY):
                    continue
                if kind == "":
                    look = {"facecolors": "none", "edgecolors": canvas.look.gain}
                    canvas.dots(xs[chosen], ys[chosen], 22, marker=marker, zorder=3, **look)
                    continue
                face = canvas.look.ink if kind == "other" else CLASSES[kind].colour
                look = {"facecolors": face, "edgecolors": canvas.look.ink}
                canvas.dots(xs[chosen], ys[chosen], 36, marker=marker, linewidths=0.6, **look)
        return {kind: int((kinds == kind).sum()) for kind in ("replay", "moved", "group", "other")}

    def totals(self, rows: Sequence[Total]) -> None:
        """Each row's whole run as a filled mark in ink, and the key of the shapes."""
        canvas = self.canvas
        for number, row in enumerate(rows):
            marker = framework_mark(row.adapter).marker
            hit, saved = np.array([row.hit_ratio]), np.array([row.saved_ratio])
            xs, ys = self.at(hit, saved)
            ink = {
                "facecolors": canvas.look.ink,
                "edgecolors": canvas.look.background,
            }
            canvas.dots(xs, ys, 58, marker=marker, linewidths=1.0, zorder=6, **ink)
            if number < 8:
                y = self.top + 10 + 13 * number
                key = {"facecolors": "none", "edgecolors": canvas.look.gain}
                canvas.dots([_LEFT + 12], [y], 22, marker=marker, linewidths=0.9, **key)
                canvas.text(_LEFT + 22, y, row.marked, size=8)

    def notes(self, rows: Sequence[Total], shown: dict[str, int], lines: bool) -> None:
        """The words beside the square: only what can be seen in it."""
        parts = [
            "Line: saved = hit, if every token cost the same. Dashed: saved = hit², if attention"
            " were all the cost. Long prompts lie lower: the reused tokens are the early ones,"
            " which attend to less.",
            "Filled in ink: the whole run. It may lie above the line without an error: long"
            " prompts weigh more.",
        ]
        if lines:
            parts.append("Grey lines: prompts of equal length.")
        told = {
            "moved": "moved chunks: tokens from the middle cost more than an average one.",
            "replay": "replay: hit tokens that were computed again.",
            "group": "layer groups that compute these positions with and without a hit.",
            "other": "outside the band for no such reason: very short prompts, whose last-position"
            " logits weigh, or an error in an adapter or in the ledger.",
        }
        parts += [f"{count(shown[kind])} × {text}" for kind, text in told.items() if shown[kind]]
        x, y = _LEFT + _SIDE + 28, self.top + 8
        for part in parts:
            y += 12.2 * self.canvas.paragraph(x, y, part, WIDTH - MARGIN - x) + 10


def _kinds(entries: pd.DataFrame, outside: pd.Series) -> pd.Series:
    """Why a request lies outside the band: ``replay``, ``moved``, ``group``, ``other``, or ""."""
    kinds = pd.Series("", index=entries.index, dtype=object)
    kinds[outside != 0] = "other"
    lanes = entries["lanes"].str.contains("unneeded|recomputed") | (entries["group"] > 0)
    kinds[(outside < 0) & lanes] = "group"
    kinds[(outside < 0) & (entries["replay"] > 0)] = "replay"
    kinds[(outside > 0) & (entries["moved"] > 0)] = "moved"
    return kinds
