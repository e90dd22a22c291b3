"""The strip as a figure, in three forms: cells, whole with an enlargement, whole alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from . import findings
from .canvas import MARGIN, WIDTH, Canvas, Picture, nice_ticks, text_width
from .palette import CLASSES, FLAGS, Theme, fill
from .strip import CELLS, Run, Strip, StripRow, at_most, clip, median_request, scale, strip
from .words import count, percent

__all__ = ["draw_strip", "strip_figure"]

_PITCH, _BAR = 36.0, 20.0
_MOST_TICKS = 40


def strip_figure(
    frame: pd.DataFrame,
    scenario: str | None = None,
    request: str | None = None,
    theme: Theme = "light",
) -> Picture:
    """The strip of one request; by default of the one with the median loss.

    Raises ``ValueError`` if nothing in ``frame`` shares a prefix and no request is named.
    """
    if request is None:
        chosen = median_request(frame if scenario is None else frame[frame["scenario"] == scenario])
        if chosen is None:
            raise ValueError("no request shares a prefix with an earlier one")
        scenario, request = chosen
    if scenario is None:
        scenario = str(frame.loc[frame["request"] == request, "scenario"].iloc[0])
    return draw_strip(strip(frame, scenario, request), theme)


def draw_strip(one: Strip, theme: Theme = "light") -> Picture:
    """The figure of a strip that was already taken from a ledger."""
    form = "cells" if one.prompt <= CELLS else "lens" if one.lens else "whole"
    subtitle = {
        "cells": "Each cell is one prompt position.",
        "lens": "Left: the whole prompt. Right: the boundary, where the differences lie.",
        "whole": "The whole prompt.",
    }[form]
    note = findings.evidence_note(one.rows)
    subtitle = f"Request {one.request} of {one.scenario}. {subtitle} {note}".rstrip()
    height = 24 + 13 + 30 + _PITCH * len(one.rows) + 90
    canvas = Canvas(findings.strip_title(one), subtitle, height, theme)
    sheet = _Sheet(canvas, one)
    if form == "lens":
        assert one.lens is not None
        wide = sheet.right - sheet.left
        split = sheet.left + 0.55 * wide
        lens_left = split + 30
        sheet.panel(sheet.left, split, (0, one.prompt), enlarged=False)
        sheet.panel(lens_left, sheet.right - sheet.lanes, one.lens, enlarged=True)
        sheet.wedge((sheet.left, split), lens_left)
    else:
        sheet.panel(sheet.left, sheet.right - sheet.lanes, (0, one.prompt), enlarged=True)
    sheet.names()
    sheet.numbers()
    bottom = sheet.top + _PITCH * len(one.rows) + 40
    marks = "bar: hit length, where positions start"
    if any(row.start != row.hit for row in one.rows):
        marks = "bar: hit length; ▼ where positions start"
    used = canvas.legend(one.classes(), bottom, f"{marks}; ticks: block edges")
    canvas.trim(bottom + used)
    rows = " ".join(f"{row.label}: {row.words()}." for row in one.rows)
    return canvas.picture(f"{canvas.title}. {rows}")


class _Sheet:
    """Where the columns of a strip figure stand, and how its parts are drawn."""

    def __init__(self, canvas: Canvas, one: Strip) -> None:
        self.canvas = canvas
        self.one = one
        self.top = canvas.below_title + 34
        names = [text_width(row.name, 9.5, True) for row in one.rows]
        names += [text_width(row.describe, 7.5) for row in one.rows]
        self.left = MARGIN + min(max(names), 150) + 10
        cells = [(count(r.hit), f"{percent(r.saved)} %", count(r.computed)) for r in one.rows]
        self.columns = list(zip(("hit", "saved", "compute"), *cells, strict=True))
        wide = [max(text_width(text, 8.5, True) for text in column) + 12 for column in self.columns]
        if one.lens is not None:
            wide = [max(text_width(f"saved {saved}", 8.5) for _, saved, _ in cells) + 8]
        self.right = WIDTH - MARGIN - sum(wide) - 4
        self.wide = wide
        lanes = {name for row in one.rows for name in row.lanes}
        self.lanes = max((text_width(name, 7.5) + 6 for name in lanes), default=0.0)

    def y(self, at: int) -> float:
        """Top of the bar of row ``at``."""
        return self.top + _PITCH * at

    def names(self) -> None:
        """Label and options at the left of each row."""
        for at, row in enumerate(self.one.rows):
            y = self.y(at)
            size = 7.5
            while size > 6.6 and text_width(row.describe, size) > self.left - MARGIN - 8:
                size -= 0.3
            lines = self.canvas.fold(row.describe, self.left - MARGIN - 8, size)[:2]
            offset = y + 4 - (3 if len(lines) > 1 else 0)
            x = self.left - 8
            self.canvas.text(x, offset, row.name, size=9.5, bold=True, align="right")
            for number, text in enumerate(lines):
                place = offset + 11 + 9 * number
                muted = self.canvas.look.muted
                self.canvas.text(x, place, text, size=size, color=muted, align="right")

    def numbers(self) -> None:
        """Hit, saved and computed tokens at the right; beside an enlargement hit over saved."""
        canvas, muted = self.canvas, self.canvas.look.muted
        if self.one.lens is not None:
            for at, row in enumerate(self.one.rows):
                x, y = WIDTH - MARGIN, self.y(at)
                canvas.text(x, y + 4, f"hit {count(row.hit)}", size=9, bold=True, align="right")
                saved = f"saved {percent(row.saved)} %"
                canvas.text(x, y + 16, saved, size=8.5, color=muted, align="right")
            return
        x = self.right + 4
        for (head, *cells), wide in zip(self.columns, self.wide, strict=True):
            x += wide
            canvas.text(x, self.top - 20, head, size=8.5, color=muted, align="right")
            for at, text in enumerate(cells):
                y = self.y(at) + _BAR / 2
                canvas.text(x, y, text, size=8.5, bold=head == "hit", align="right")

    def panel(self, left: float, right: float, span: tuple[int, int], *, enlarged: bool) -> None:
        """All rows between ``left`` and ``right``, showing the positions ``span``."""
        start, stop = span
        for at, row in enumerate(self.one.rows):
            self.row(at, row, (left, right), span, enlarged=enlarged)
        bottom = self.y(len(self.one.rows) - 1) + _BAR + 10
        ticks = nice_ticks(start, stop, 6)
        places = [(left + (tick - start) / (stop - start) * (right - left), tick) for tick in ticks]
        name = "prompt position"
        if (start, stop) != (0, self.one.prompt):
            name = f"positions {count(start)} to {count(stop)}, enlarged"
        texts = [(x, count(round(tick))) for x, tick in places]
        self.canvas.axis(texts, bottom, name, (left, right))
        self.difference(left, right, span, bottom, labelled=enlarged)

    def difference(
        self, left: float, right: float, span: tuple[int, int], bottom: float, *, labelled: bool
    ) -> None:
        """The dashed line where the shared prefix ends, if it is one place for all rows."""
        places = [at for at in self.one.differences if at > 0]
        if len(places) != 1 or not span[0] <= places[0] <= span[1]:
            return
        x = left + (places[0] - span[0]) / (span[1] - span[0]) * (right - left)
        style = {"linestyle": (0, (2, 2)), "linewidth": 1.1}
        self.canvas.line((x, x), (self.top - 10, bottom), **style)
        if labelled:
            text = f"first difference {count(places[0])}"
            half = text_width(text, 8.5) / 2
            middle = min(max(x, left + half), max(right - half, left + half))
            self.canvas.text(middle, self.top - 18, text, size=8.5, align="center")

    def row(
        self,
        at: int,
        row: StripRow,
        sides: tuple[float, float],
        span: tuple[int, int],
        *,
        enlarged: bool,
    ) -> None:
        """One framework's bar (or lanes), its block ticks and marks."""
        left, right = sides
        y = self.y(at)
        lanes = list(row.lanes.items()) or [("", row.runs)]
        height = _BAR / len(lanes)
        for number, (name, runs) in enumerate(lanes):
            shown = at_most(clip(runs, *span))
            place = _place(shown, left, right)
            top = y + number * height
            self.bar(shown, place, top, height - (1 if name else 0))
            self.labels(shown, place, (top, height), words=enlarged, clipped=span)
            if name and enlarged:
                muted = self.canvas.look.muted
                self.canvas.text(right + 4, top + height / 2, name, size=7.5, color=muted)
        shown = at_most(clip(row.runs, *span))
        place = _place(shown, left, right)
        if row.unit > 1 and (span[1] - span[0]) / row.unit < _MOST_TICKS:
            self.ticks(row.unit, span, sides, y + _BAR)
        self.marks(row, place, span, y)

    def bar(
        self, runs: Sequence[Run], place: Callable[[int], float], top: float, height: float
    ) -> None:
        """The blocks of a bar; up to 120 tokens with a gap between positions."""
        canvas = self.canvas
        for name, start, stop in runs:
            x = place(start)
            canvas.block(name, x, top, place(stop) - x, height)
            if self.one.prompt <= CELLS and name != "unneeded":
                for position in range(start + 1, stop):
                    x = place(position)
                    look = {"color": canvas.look.background, "linewidth": 0.9}
                    canvas.line((x, x), (top, top + height), **look)

    def labels(
        self,
        runs: Sequence[Run],
        place: Callable[[int], float],
        rows: tuple[float, float],
        *,
        words: bool,
        clipped: tuple[int, int],
    ) -> None:
        """Number and word in each run they fit in, else the number, else nothing."""
        top, height = rows
        size = 8.0 if height >= 15 else 6.6
        for name, start, stop in runs:
            room = place(stop) - place(start) - 8
            full = clipped == (0, self.one.prompt)
            whole = full or clipped[0] < start < stop < clipped[1]
            number = count(stop - start)
            word = "not computed in any case" if name == "unneeded" else name
            options = [f"{number} {word}"] if words and whole else []
            options += [number] if whole else [word] if words else []
            if name == "unneeded":
                options = [word] if full else []
            text = next((each for each in options if text_width(each, size, True) <= room), "")
            middle = (place(start) + place(stop)) / 2
            canvas = self.canvas
            plain = name == "unneeded"
            gaps = self.one.prompt <= CELLS
            ground = _ground(canvas, name) if not plain and (gaps or _hatched(name)) else None
            canvas.text(
                middle,
                top + height / 2,
                text,
                size=size,
                bold=not plain,
                color=canvas.look.muted if plain else canvas.ink_on(name),
                align="center",
                ground=ground,
            )

    def ticks(self, unit: int, span: tuple[int, int], sides: tuple[float, float], y: float) -> None:
        """Short ticks at the block edges below a bar."""
        (start, stop), (left, right) = span, sides
        for edge in range(-(-start // unit) * unit, stop + 1, unit):
            x = left + (edge - start) / (stop - start) * (right - left)
            self.canvas.line(
                (x, x), (y + 1.5, y + 5), color=self.canvas.look.outline, linewidth=0.8
            )

    def marks(
        self, row: StripRow, place: Callable[[int], float], span: tuple[int, int], y: float
    ) -> None:
        """The bar at the hit length with its halo, and ▼ where positions start if elsewhere."""
        canvas = self.canvas
        if span[0] <= row.hit <= span[1] and row.hit:
            x = place(row.hit)
            for width, color in ((4.6, canvas.look.background), (2.0, canvas.look.ink)):
                canvas.line((x, x), (y - 2.5, y + _BAR + 2.5), color=color, linewidth=width)
        if row.start != row.hit and span[0] <= row.start <= span[1]:
            canvas.text(place(row.start), y - 5, "▼", size=7, align="center")

    def wedge(self, sides: tuple[float, float], lens_left: float) -> None:
        """The frame of the enlarged part and the dotted lines to its enlargement."""
        assert self.one.lens is not None
        canvas, (left, right) = self.canvas, sides
        a, b = (left + at / self.one.prompt * (right - left) for at in self.one.lens)
        top, bottom = self.top - 9, self.y(len(self.one.rows) - 1) + _BAR + 6
        edge = {"facecolor": "none", "edgecolor": canvas.look.ink, "linewidth": 0.9, "zorder": 4}
        canvas.box(a, top, b - a, bottom - top, **edge)
        for y in (top, bottom):
            look = {"linestyle": (0, (1, 1.5)), "linewidth": 0.8, "color": canvas.look.outline}
            canvas.line((b, lens_left), (y, y), **look)


def _place(runs: Sequence[Run], left: float, right: float) -> Callable[[int], float]:
    place = scale(runs)
    return lambda position: left + place(position) / 100 * (right - left)


def _hatched(name: str) -> bool:
    return bool((CLASSES | FLAGS)[name].hatch)


def _ground(canvas: Canvas, name: str) -> str:
    return fill(name, canvas.theme) if name in CLASSES else FLAGS[name].colour
