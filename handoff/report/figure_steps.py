"""The timeline: what each request got in each step, the tokens of a step and the blocks in use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pandas as pd

from . import findings
from .canvas import MARGIN, WIDTH, Canvas, Picture, text_width
from .palette import CLASSES, Theme
from .words import count

__all__ = ["timeline"]

STEPS, REQUESTS = 40, 12
_ROW, _BAR = 36.0, 20.0


def timeline(
    steps: pd.DataFrame,
    theme: Theme = "light",
    *,
    first: int | None = None,
    budget: int | None = None,
    pool_blocks: int | None = None,
    title: str = "",
) -> Picture:
    """Up to 40 columns from step ``first`` on, and at most 12 requests, of one row of a run.

    A column is a step, or several in a row in which nothing happened but decoding. ``steps`` is
    the table of a ``StepLog``, ``budget`` the tokens a step may have, ``pool_blocks`` the blocks
    there are, ``title`` what was run. Raises ``ValueError`` if there is no step.
    """
    if steps.empty:
        raise ValueError("no step was recorded")
    every = steps if first is None else steps[steps["step"] >= first]
    columns = _columns(every)[:STEPS]
    shown = every[every["step"] <= columns[-1][1]]
    names = [str(name) for name in shown["request"].drop_duplicates() if name]
    left_out = max(0, len(names) - REQUESTS)
    names = names[:REQUESTS]
    subtitle = f"{title}{'. ' if title else ''}A bar: prompt tokens of this request in this step."
    if any(a < b for a, b in columns):
        subtitle += " A column with two numbers: steps in which nothing happened but decoding."
    last = int(steps["step"].max())
    if columns[0][0] > int(steps["step"].min()) or columns[-1][1] < last or left_out:
        subtitle += f" Steps {columns[0][0]} to {columns[-1][1]} of {count(last + 1)}"
        subtitle += f", {left_out} requests not shown." if left_out else "."
        subtitle += " The Perfetto export has all."
    heading = findings.timeline_title(shown)
    canvas = Canvas(heading, subtitle, 130 + _ROW * len(names) + 150, theme)
    sheet = _Steps(canvas, shown, names, columns)
    sheet.grid()
    for at, name in enumerate(names):
        sheet.request(at, name)
    bottom = sheet.top + _ROW * len(names) + 6
    bottom = sheet.tokens(bottom, budget)
    bottom = sheet.blocks(bottom, pool_blocks)
    sheet.scale(bottom)
    note = "grey: computed for the first time; orange: computed again; line: decode; ✖ preempted"
    canvas.text(WIDTH - MARGIN, bottom + 30, note, size=8, color=canvas.look.muted, align="right")
    canvas.trim(bottom + 44)
    said = "; ".join(
        f"{name}: {count(int(shown.loc[shown['request'] == name, 'tokens'].sum()))} tokens"
        for name in names
    )
    return canvas.picture(f"{heading}. {said}.")


def _columns(steps: pd.DataFrame) -> list[tuple[int, int]]:
    """First and last step of each column: one step, or a stretch of nothing but decoding."""
    event = ~steps["decode"] | (steps["preempted"] != "") | steps["hit"].notna()
    eventful = event.groupby(steps["step"]).any()
    columns: list[tuple[int, int]] = []
    quiet = False
    for step, happens in eventful.items():
        number = int(step)  # type: ignore[call-overload]
        if quiet and not happens:
            columns[-1] = (columns[-1][0], number)
        else:
            columns.append((number, number))
        quiet = not happens
    return columns


class _Steps:
    """Columns are steps, rows are requests."""

    def __init__(
        self,
        canvas: Canvas,
        shown: pd.DataFrame,
        names: Sequence[str],
        columns: Sequence[tuple[int, int]],
    ) -> None:
        self.canvas = canvas
        self.columns = columns
        self.starts = [first for first, _ in columns]
        self.shown = shown.assign(column=[self.column(int(step)) for step in shown["step"]])
        self.top = canvas.below_title + 30
        wide = max([text_width(name, 9) for name in names] + [text_width("tokens a step", 8.5)])
        self.left = MARGIN + min(wide, 140) + 30
        self.right = WIDTH - MARGIN - 62
        self.pitch = (self.right - self.left) / max(len(columns), 8)
        self.rows = len(names)

    def column(self, step: int) -> int:
        """The column that holds a step."""
        return bisect_right(self.starts, step) - 1

    def x(self, column: int) -> float:
        """Left edge of a column."""
        return self.left + self.pitch * column

    def grid(self) -> None:
        bottom = self.top + _ROW * self.rows
        for column in range(len(self.columns) + 1):
            x = self.x(column)
            look = {"color": self.canvas.look.grid, "linewidth": 0.6, "zorder": 0}
            self.canvas.line((x, x), (self.top - 14, bottom), **look)

    def request(self, at: int, name: str) -> None:
        """Admissions with their hit, chunks with their size, decode as a line, preemptions."""
        canvas, y = self.canvas, self.top + _ROW * at
        mine = self.shown[self.shown["request"] == name]
        text = name
        while text_width(text, 9) > self.left - MARGIN - 12 and len(text) > 4:
            text = text[:-2] + "…"
        canvas.text(self.left - 10, y + _BAR / 2, text, align="right")
        taken = -1e9
        for line in mine.drop_duplicates("column").to_dict("records"):
            x = self.x(int(line["column"]))
            if not pd.isna(line["hit"]):
                canvas.line((x, x), (y - 4, y + _BAR + 4), linewidth=2.0)
                words = f"hit {count(int(line['hit']))}"
                color = canvas.look.gain if line["hit"] else canvas.look.muted
                if x > taken:
                    canvas.text(x + 2, y - 9, words, size=8, bold=True, color=color)
                    taken = x + text_width(words, 8, True) + 6
            if line["decode"]:
                middle = y + _BAR / 2
                canvas.line((x, x + self.pitch), (middle, middle), linewidth=2.4)
                tick = x + self.pitch / 2
                canvas.line((tick, tick), (middle - 3, middle + 3), linewidth=1.0)
            else:
                self.chunk(x, y, int(line["tokens"]), int(line["again"]))
        for column in self.shown.loc[self.lost(name), "column"].drop_duplicates():
            self.preempted(name, int(column), y)

    def lost(self, name: str) -> pd.Series:
        """Lines of the steps in which ``name`` was preempted."""
        found = self.shown["preempted"].map(lambda names: name in str(names).split(" "))
        return found.astype(bool)

    def chunk(self, x: float, y: float, tokens: int, again: int) -> None:
        """A bar of a chunk: what is computed for the first time grey, the rest orange."""
        wide = self.pitch - 3
        style = {"edgecolor": self.canvas.look.outline, "linewidth": 0.6}
        self.canvas.box(x + 1.5, y, wide, _BAR, facecolor=self.canvas.look.fresh, **style)
        if again:
            part = wide * again / tokens
            self.canvas.box(x + 1.5, y, part, _BAR, facecolor=CLASSES["evicted"].colour)
        size = 8.0
        while size >= 6.6 and text_width(count(tokens), size, True) > wide:
            size -= 0.4
        if size >= 6.6:
            ink = "#15191E" if again * 2 > tokens else self.canvas.look.ink
            place = (x + 1.5 + wide / 2, y + _BAR / 2)
            self.canvas.text(*place, count(tokens), size=size, bold=True, color=ink, align="center")

    def preempted(self, name: str, column: int, y: float) -> None:
        """A cross, and a dashed line to where the request is admitted again."""
        back = self.shown[(self.shown["request"] == name) & (self.shown["column"] > column)]
        end = self.x(int(back["column"].min())) if len(back) else self.right
        orange = CLASSES["evicted"].colour
        x, middle = self.x(column) + 3, y + _BAR / 2
        self.canvas.line((x, end), (middle, middle), color=orange, linestyle=(0, (2, 2)))
        self.canvas.dots([x], [middle], 34, marker="X", color=orange, linewidths=0)

    def tokens(self, top: float, budget: int | None) -> float:
        """Tokens of each step as bars (the largest of a column), with the budget; lower edge."""
        canvas, height = self.canvas, 44.0
        sums = self.shown.groupby(["column", "step"])[["tokens", "again"]].sum()
        largest = sums.groupby("column").max()
        high = max(int(largest["tokens"].max()), budget or 0, 1)
        bottom = top + 12 + height
        self.side(top + 12, bottom, "tokens a step", high)
        for column, tokens, again in largest.itertuples():
            x = self.x(int(column)) + 1.5
            for part, face in ((tokens, canvas.look.fresh), (again, CLASSES["evicted"].colour)):
                if part:
                    style = {"edgecolor": canvas.look.outline, "linewidth": 0.5}
                    tall = max(height * part / high, 1.5)
                    canvas.box(x, bottom - tall, self.pitch - 3, tall, facecolor=face, **style)
        if budget is not None:
            self.limit(top + 12 + height * (1 - budget / high), f"budget {count(budget)}")
        return bottom

    def blocks(self, top: float, pool: int | None) -> float:
        """Blocks held by open tables as a stepped line, with the pool's size; lower edge."""
        canvas, height = self.canvas, 40.0
        held = self.shown.groupby("column")["blocks"].max()
        high = max(int(held.max()), pool or 0, 1)
        bottom = top + 14 + height
        self.side(top + 14, bottom, "blocks in use", high)
        xs: list[float] = []
        ys: list[float] = []
        for column in range(len(self.columns)):
            xs += [self.x(column), self.x(column + 1)]
            ys += [bottom - height * int(held.loc[column]) / high] * 2
        canvas.axes.fill_between(xs, ys, [bottom] * len(xs), color=canvas.look.card, linewidth=0)
        canvas.line(xs, ys, linewidth=1.4)
        if pool is not None:
            self.limit(top + 14 + height * (1 - pool / high), f"pool {count(pool)}")
        return bottom

    def side(self, top: float, bottom: float, name: str, high: int) -> None:
        canvas = self.canvas
        muted = canvas.look.muted
        look = {"color": canvas.look.outline, "linewidth": 0.8}
        canvas.line((self.left, self.right), (bottom, bottom), **look)
        canvas.text(self.left - 6, top, count(high), size=8, color=muted, align="right")
        canvas.text(self.left - 6, bottom, "0", size=8, color=muted, align="right")
        canvas.text(self.left - 6, (top + bottom) / 2, name, size=8, align="right")

    def limit(self, y: float, text: str) -> None:
        self.canvas.line((self.left, self.right), (y, y), linestyle=(0, (2, 2)))
        self.canvas.text(self.right + 4, y, text, size=8)

    def scale(self, bottom: float) -> None:
        """Step numbers below the lowest panel, as many as stand apart."""
        taken, muted = -1e9, self.canvas.look.muted
        for column, (first, last) in enumerate(self.columns):
            x = self.x(column) + self.pitch / 2
            text = str(first) if first == last else f"{first}–{last}"
            half = text_width(text, 7.5) / 2
            if x - half > taken + 4:
                self.canvas.text(x, bottom + 10, text, size=7.5, color=muted, align="center")
                taken = x + half
        self.canvas.text(self.left, bottom + 30, "step", size=8, color=muted)
