"""One sheet for all figures: everything is placed by hand in points, so nothing overlaps by luck.

A ``Canvas`` is a matplotlib figure with a single axes whose unit is the point (1/72 inch), origin
at the top left. Texts are measured before they are set; ``boxes`` keeps where each one stands.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from .palette import CLASSES, FLAGS, THEMES, Theme, dark_ink, fill

__all__ = ["WIDTH", "Box", "Canvas", "Frame", "Picture", "apart", "nice_ticks", "text_width"]

WIDTH = 691.0
"""Points: 9.6 inches."""
MARGIN = 8.0
DPI = 130
_SIZE = 100.0
_RC = {
    "font.family": ["DejaVu Sans"],
    "hatch.linewidth": 0.7,
    "svg.fonttype": "path",
    "svg.hashsalt": "handoff",
    "path.sketch": None,
}
_DENSE = {"///": "//////", "\\\\\\": "\\\\\\\\\\\\", "|||": "||||||", "...": "....", "---": "-----"}
_DENSE |= {"+++": "++++", "xxx": "xxxx"}


class Box(NamedTuple):
    """Where a text stands: left, top, right, bottom in points."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of ``text`` in points."""
    font = _font(bold)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64 * size / _SIZE


@cache
def _font(bold: bool) -> FT2Font:
    """The font as it is measured: 100 points at 72 dots an inch.

    An object of our own: matplotlib's shared one changes its size whenever a figure is drawn.
    """
    properties = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    font = FT2Font(findfont(properties))
    font.set_size(_SIZE, 72)
    return font


class Picture:
    """A finished figure: its finding as ``title`` and ``alt`` text, saved as SVG or PNG.

    The same picture gives the same bytes: no date, no random ids.
    """

    def __init__(self, figure: Figure, title: str, alt: str, boxes: Sequence[Box]) -> None:
        self.figure = figure
        self.title = title
        self.alt = alt
        self.boxes = tuple(boxes)

    def svg(self) -> str:
        """The figure as an SVG document."""
        out = io.StringIO()
        with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return out.getvalue()

    def png(self) -> bytes:
        """The figure as a PNG of 130 dots an inch."""
        out = io.BytesIO()
        with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
            self.figure.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
        return out.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write ``path`` as what its ending says (``.svg`` or ``.png``)."""
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), "utf-8", newline="\n")
        else:
            path.write_bytes(self.png())
        return path

    def _repr_png_(self) -> bytes:
        return self.png()


class Canvas:
    """An empty sheet of ``height`` points with title and subtitle set."""

    def __init__(self, title: str, subtitle: str, height: float, theme: Theme = "light") -> None:
        self.theme: Theme = theme
        self.look = THEMES[theme]
        self.title = title
        self.boxes: list[Box] = []
        self.height = height
        with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
            self.figure = Figure(figsize=(WIDTH / 72, height / 72), facecolor=self.look.background)
            self.axes = self.figure.add_axes((0.0, 0.0, 1.0, 1.0))
            self.axes.set(xlim=(0, WIDTH), ylim=(height, 0))
            self.axes.axis("off")
        size = 12.5
        while size > 9 and text_width(title, size, True) > WIDTH - 2 * MARGIN:
            size -= 0.5
        self.text(MARGIN, 15, title, size=size, bold=True)
        self.below_title = 24 + 12 * self.paragraph(MARGIN, 31, subtitle, WIDTH - 2 * MARGIN)
        """Where a figure's own drawing may begin."""

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 9,
        bold: bool = False,
        color: str | None = None,
        align: str = "left",
        ground: str | None = None,
    ) -> None:
        """Set ``text`` with its middle at height ``y``; ``ground`` is a box behind the letters."""
        if not text:
            return
        wide = text_width(text, size, bold)
        left = {"left": x, "right": x - wide, "center": x - wide / 2}[align]
        self.boxes.append(Box(left, y - size / 2, left + wide, y + size / 2, text))
        with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
            self.axes.text(
                x,
                y,
                text,
                size=size,
                weight="bold" if bold else "normal",
                color=color or self.look.ink,
                ha=align,
                va="center_baseline",
                parse_math=False,
                bbox=None if ground is None else {"facecolor": ground, "lw": 0, "pad": 0.6},
                zorder=6,
            )

    def paragraph(self, x: float, y: float, text: str, width: float, **style: Any) -> int:
        """Set ``text`` in lines of at most ``width`` points, muted; the number of lines."""
        size = style.pop("size", 9)
        lines = self.fold(text, width, size)
        style.setdefault("color", self.look.muted)
        for at, line in enumerate(lines):
            self.text(x, y + at * size * 1.35, line, size=size, **style)
        return len(lines)

    @staticmethod
    def fold(text: str, width: float, size: float = 9, bold: bool = False) -> list[str]:
        """``text`` in lines of at most ``width`` points, broken at spaces."""
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and text_width(longer, size, bold) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def line(self, xs: Iterable[float], ys: Iterable[float], **style: Any) -> None:
        """A line through the points; ink, 1 pt, unless said otherwise."""
        style.setdefault("color", self.look.ink)
        style.setdefault("linewidth", 1.0)
        style.setdefault("solid_capstyle", "butt")
        self.axes.add_line(Line2D(list(xs), list(ys), **style))

    def dots(self, xs: Iterable[float], ys: Iterable[float], size: float, **style: Any) -> None:
        """Marks of ``size`` square points at the places given."""
        style.setdefault("zorder", 5)
        self.axes.scatter(list(xs), list(ys), s=size, **style)

    def box(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        """A rectangle with the given face, edge and hatch; no edge unless said otherwise."""
        style.setdefault("linewidth", 0)
        self.axes.add_patch(Rectangle((x, y), width, height, **style))

    def block(self, name: str, x: float, y: float, width: float, height: float) -> None:
        """A rectangle in the look of a class or lane flag."""
        if name == "unneeded":
            style = {"facecolor": "none", "edgecolor": self.look.outline, "linestyle": (0, (2, 2))}
            self.box(x, y, width, height, linewidth=0.7, **style)
            return
        look = (CLASSES | FLAGS)[name]
        if name == "fresh":
            face, edge = self.look.fresh, self.look.outline
            self.box(x, y, width, height, facecolor=face, edgecolor=edge, linewidth=0.6)
            return
        hatch = {"hatch": _DENSE[look.hatch]} if look.hatch else {}
        edge = "#15191E90" if dark_ink(look.colour) else "#FFFFFF90"
        self.box(x, y, width, height, facecolor=look.colour, edgecolor=edge, **hatch)

    def ink_on(self, name: str) -> str:
        """Letters that can be read on a class's colour."""
        colour = fill(name, self.theme) if name in CLASSES else FLAGS[name].colour
        return "#15191E" if dark_ink(colour) else "#FFFFFF"

    def legend(self, names: Sequence[str], y: float, note: str = "") -> float:
        """Samples with words from height ``y`` on, ``note`` at the right; the height used."""
        x, top = MARGIN, y
        right = WIDTH - MARGIN
        limit = right - (text_width(note, 8) + 12 if note else 0)
        for name in names:
            wide = 16 + text_width(name, 8.5, True) + 14
            if x + wide > (limit if y == top else right) and x > MARGIN:
                x, y = MARGIN, y + 15
            self.block(name, x, y - 4, 11, 8)
            self.text(x + 15, y, name, size=8.5, bold=True)
            x += wide
        if note:
            below = y == top and x > limit  # even the first line has no room for the note
            y = y + 15 if below else y
            muted = self.look.muted
            self.text(right, y if below else top, note, size=8, color=muted, align="right")
        return y - top + 15

    def axis(
        self,
        ticks: Sequence[tuple[float, str]],
        y: float,
        name: str = "",
        span: tuple[float, float] | None = None,
    ) -> None:
        """A horizontal axis at ``y`` with ticks (place, text); crowded texts are left out."""
        left, right = span or (ticks[0][0], ticks[-1][0])
        self.line((left, right), (y, y), color=self.look.outline, linewidth=0.8)
        taken = -1e9
        for at, (x, text) in enumerate(ticks):
            self.line((x, x), (y, y + 3), color=self.look.outline, linewidth=0.8)
            half = text_width(text, 8) / 2
            last = at == len(ticks) - 1
            room = ticks[-1][0] - text_width(ticks[-1][1], 8) / 2
            if x - half > taken + 4 and (last or x + half < room - 4):
                self.text(x, y + 10, text, size=8, color=self.look.muted, align="center")
                taken = x + half
        self.text((left + right) / 2, y + 22, name, size=8.5, color=self.look.muted, align="center")

    def upright(
        self,
        frame: Frame,
        ticks: Iterable[tuple[float, str]],
        name: str = "",
        *,
        grid: bool = False,
    ) -> None:
        """The vertical axis at the left of ``frame`` with ticks (value, text)."""
        look = self.look
        sides = (frame.left, frame.left)
        self.line(sides, (frame.top, frame.bottom), color=look.outline, linewidth=0.8)
        wide = 0.0
        for value, text in ticks:
            y = frame.y(value)
            self.line((frame.left - 3, frame.left), (y, y), color=look.outline, linewidth=0.8)
            if grid:
                across = (frame.left, frame.right)
                self.line(across, (y, y), color=look.grid, linewidth=0.6, zorder=0)
            self.text(frame.left - 6, y, text, size=8, color=look.muted, align="right")
            wide = max(wide, text_width(text, 8))
        if name:
            x, y = frame.left - wide - 16, frame.top + frame.height / 2
            style: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "center"}
            self.axes.text(x, y, name, size=8.5, color=look.muted, **style)

    def trim(self, height: float) -> None:
        """Cut the sheet at ``height``: nothing stands below."""
        self.height = height
        self.figure.set_size_inches(WIDTH / 72, height / 72)
        self.axes.set_ylim(height, 0)

    def picture(self, alt: str) -> Picture:
        """The finished picture."""
        return Picture(self.figure, self.title, alt, self.boxes)


class Frame(NamedTuple):
    """A plotting area: left, top, width and height in points, and the values at its sides."""

    left: float
    top: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log_x: bool = False

    def x(self, value: float) -> float:
        """Where ``value`` stands across the sheet."""
        low, high = self.x_range
        if self.log_x:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.left + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        """Where ``value`` stands down the sheet."""
        low, high = self.y_range
        return self.top + self.height * (1 - (value - low) / (high - low))

    @property
    def right(self) -> float:
        """The right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The lower side."""
        return self.top + self.height


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places in their order, moved just as far as needed to stand ``gap`` apart."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    out = list(places)
    for before, at in itertools.pairwise(order):
        out[at] = max(out[at], out[before] + gap)
    shift = sum(out) / len(out) - sum(places) / len(places) if places else 0.0
    return [place - shift for place in out]


def nice_ticks(start: float, stop: float, most: int = 6) -> list[float]:
    """At most ``most`` round numbers in ``[start, stop]`` (steps of 1, 2, 2.5 or 5 times a power
    of ten; of two in short prompts that are whole blocks)."""
    width = stop - start
    if width <= 0:
        return [start]
    steps = [factor * 10.0**power for power in range(-6, 16) for factor in (1, 2, 2.5, 5)]
    if start % 8 == 0 and stop <= 16384 and stop % (8 if stop <= 120 else 128) == 0:
        steps = [8.0 * 2**power for power in range(40)]
    step = next(each for each in steps if width / each <= most - 1 + 1e-9)
    first = -(-start // step) * step + 0.0  # no minus zero
    out = []
    while first <= stop + 1e-9 * width:
        out.append(round(first, 9))
        first += step
    return out
