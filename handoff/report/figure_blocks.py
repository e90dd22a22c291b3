"""The block map: which physical blocks a request shares, copies and writes anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from . import findings
from .canvas import MARGIN, WIDTH, Canvas, Picture, text_width
from .palette import CLASSES, Theme
from .totals import counted, label, marked, parse
from .words import count

__all__ = ["block_map", "tables_of"]

_ROWS, _COLUMNS = 6, 12
_PITCH, _CELL = 52.0, 26.0
HOLE = -1


@dataclass(frozen=True, slots=True)
class Table:
    """One request's block table of one group, as it was at admission.

    ``ids`` are physical blocks by column (``HOLE`` for none; the tail may be unknown), columns
    below ``fresh`` hold hit content, ``write`` is the first position written.
    """

    request: str
    ids: tuple[int, ...]
    columns: int
    fresh: int
    write: int
    block_size: int | None
    copied: tuple[tuple[int, int, int], ...]
    hit: int
    computed: int
    references: str


def tables_of(
    frame: pd.DataFrame, scenario: str, run: str, group: str | None = None
) -> list[Table]:
    """The tables of a row's first admissions in their order, by default of its first group."""
    entries = counted(frame)
    entries = entries[(entries["scenario"] == scenario) & (entries["run"] == run)]
    out = []
    for entry in entries.to_dict("records"):
        said = parse(entry["answers"]) or {}
        groups = [each for each in said.get("groups", []) if group in (None, each["group"])]
        if not groups:
            continue
        out.append(_table(entry, said, groups[0]))
    return out


def _table(entry: Mapping[Any, Any], said: Mapping[str, Any], group: Mapping[str, Any]) -> Table:
    ids: list[int] = []
    for first, number in group["table"]:
        ids += [HOLE] * number if first < 0 else list(range(first, first + number))
    return Table(
        request=str(entry["request"]),
        ids=tuple(ids),
        columns=int(group["columns"]),
        fresh=int(group["fresh"]),
        write=int(group["write"]),
        block_size=group.get("block_size"),
        copied=tuple((a, b, tokens) for a, b, tokens in group.get("copied", ())),
        hit=int(entry["hit_tokens"]),
        computed=int(entry["computed_tokens"]),
        references=said.get("references") or "",
    )


def block_map(
    frame: pd.DataFrame,
    scenario: str,
    run: str,
    request: str,
    theme: Theme = "light",
    group: str | None = None,
) -> Picture:
    """The tables of ``request`` and of the requests before it that hold one of its blocks.

    At most six rows and twelve columns; the blocks before and behind are folded into one cell.
    Raises ``ValueError`` if the ledger keeps no table for the request.
    """
    tables = tables_of(frame, scenario, run, group)
    names = [table.request for table in tables]
    if request not in names:
        raise ValueError(f"the ledger keeps no block table of {request} in {run}")
    mine = tables[names.index(request)]
    sources = {source for source, _, _ in mine.copied}
    held = (set(mine.ids) | sources) - {HOLE}
    before = [t for t in tables[: names.index(request)] if held & set(t.ids)]
    rows = [*before[-(_ROWS - 1) :], mine]
    first = frame[frame["run"] == run].iloc[0]
    title = marked(label(run, str(first["adapter"]), str(first["title"])), first["evidence"])
    size = mine.block_size
    grain = f", {count(size)} tokens a block" if size else ""
    subtitle = f"{title}{grain}; tables as they were at admission. Number = physical block."
    earlier = [table.request for table in before]
    heading = findings.block_title(request, earlier, _shared(mine, before), mine.write, mine.copied)
    canvas = Canvas(heading, subtitle, 90 + _PITCH * len(rows) + 40, theme)
    sheet = _Map(canvas, rows)
    sheet.draw()
    bottom = sheet.top + _PITCH * len(rows) + 8
    x = MARGIN
    for face, words in (
        ("read", "holds hit content, read-only"),
        ("own", "written by this request"),
    ):
        sheet.cell(face, x, bottom - 5, 14, 10)
        canvas.text(x + 20, bottom, words, size=8.5)
        x += 40 + text_width(words, 8.5)
    canvas.trim(bottom + 16)
    said = " ".join(
        f"{t.request}: {t.columns} blocks, {t.fresh} with hit content, written from {t.write:,}."
        for t in rows
    )
    return canvas.picture(f"{heading}. {said}")


def _shared(mine: Table, before: Sequence[Table]) -> int:
    held = {ident for table in before for ident in table.ids} - {HOLE}
    return len(held & set(mine.ids[: mine.fresh]))


class _Map:
    """Columns are the same positions in every row; what is left out is folded into one cell."""

    def __init__(self, canvas: Canvas, rows: Sequence[Table]) -> None:
        self.canvas = canvas
        self.rows = rows
        self.top = canvas.below_title + 28
        columns = max(table.columns for table in rows)
        known = min(max(len(table.ids) for table in rows), columns)
        self.first = 0
        if columns > _COLUMNS:
            self.first = max(0, min(min(t.fresh for t in rows[-1:]) - 3, known - 1))
        self.last = min(known, self.first + _COLUMNS - (2 if self.first else 1))
        if columns <= _COLUMNS:
            self.last = columns
        self.tail = columns - self.last
        names = max(text_width(table.request, 9.5, True) for table in rows)
        words = [f"hit {count(t.hit)}, compute {count(t.computed)}" for t in rows]
        self.words = words
        self.left = MARGIN + max(min(names, 130), text_width("positions", 8)) + 12
        refs = [text_width(t.references[:40], 7.5) for t in rows]
        room = min(190.0, max(*refs, *(text_width(w, 8.5, True) for w in words)))
        self.right = WIDTH - MARGIN - room - 10
        parts = (self.last - self.first) + (1.6 if self.first else 0) + (1 if self.tail else 0)
        self.pitch = (self.right - self.left) / parts

    def x(self, column: int) -> float:
        """Left edge of a shown column."""
        return self.left + self.pitch * ((1.6 if self.first else 0) + column - self.first)

    def y(self, at: int) -> float:
        """Top of a row's cells."""
        return self.top + _PITCH * at

    def draw(self) -> None:
        """Heads, rows, the lines between equal blocks, write boundaries and copies."""
        self.heads()
        for at, table in enumerate(self.rows):
            self.row(at, table)
        for at in range(1, len(self.rows)):
            self.links(at)

    def heads(self) -> None:
        size = self.rows[-1].block_size
        muted = self.canvas.look.muted
        y = self.top - 12
        name = "positions" if size else "column"
        self.canvas.text(self.left - 12, y, name, size=8, color=muted, align="right")
        taken = -1e9
        for column in range(self.first, self.last):
            text = str(column) if not size else count(column * size)
            middle = self.x(column) + (self.pitch - 6) / 2
            half = text_width(text, 8) / 2
            if middle - half > taken + 4:
                self.canvas.text(middle, y, text, size=8, color=muted, align="center")
                taken = middle + half

    def cell(self, face: str, x: float, y: float, width: float, height: float) -> None:
        """A block: ``read`` (hit content) or ``own`` (written by the request)."""
        look = self.canvas.look
        if face == "read":
            self.canvas.box(x, y, width, height, facecolor=CLASSES["reused"].colour)
            return
        style = {"facecolor": look.background, "edgecolor": look.ink, "linewidth": 1.0}
        self.canvas.box(x, y, width, height, **style)

    def row(self, at: int, table: Table) -> None:
        canvas, y = self.canvas, self.y(at)
        name = table.request
        while text_width(name, 9.5, True) > self.left - MARGIN - 12 and len(name) > 4:
            name = name[:-2] + "…"
        canvas.text(self.left - 12, y + _CELL / 2, name, size=9.5, bold=True, align="right")
        canvas.text(self.right + 6, y + 7, self.words[at], size=8.5, bold=True)
        clause = table.references.partition(";")[0]
        lines = canvas.fold(clause, WIDTH - MARGIN - self.right - 6, 7.5)[:3]
        for number, line in enumerate(lines):
            muted = canvas.look.muted
            canvas.text(self.right + 6, y + 19 + 9 * number, line, size=7.5, color=muted)
        wide = self.pitch - 6
        if self.first and table.columns:
            self.folded(table, y)
        for column in range(self.first, min(self.last, len(table.ids))):
            self.block(table, column, y, wide)
        more = table.columns - min(self.last, len(table.ids))
        if more > 0 and self.tail:
            x = self.x(self.last)
            self.label(x + wide / 2, y, f"+{count(more)}", canvas.look.muted, wide)

    def folded(self, table: Table, y: float) -> None:
        """The columns left of the first shown one as one cell, coloured in proportion."""
        number = min(self.first, table.columns)
        read = min(table.fresh, number)
        wide = 1.6 * self.pitch - 6
        self.cell("own", self.left, y, wide, _CELL)
        if read:
            self.cell("read", self.left, y, wide * read / number, _CELL)
        if read in (0, number):
            ink = "#FFFFFF" if read else self.canvas.look.ink
            self.label(self.left + wide / 2, y, f"{count(number)} blocks", ink, wide)
            return
        edge = wide * read / number
        self.label(self.left + edge / 2, y, count(read), "#FFFFFF", edge)
        rest = count(number - read)
        self.label(self.left + (edge + wide) / 2, y, rest, self.canvas.look.ink, wide - edge)

    def label(self, middle: float, y: float, text: str, ink: str, room: float) -> None:
        """``text`` centred in a cell, as large as it fits; nothing if it does not."""
        size = 9.0
        while size >= 6.6 and text_width(text, size, True) > room - 2:
            size -= 0.4
        if size >= 6.6:
            height = y + _CELL / 2
            self.canvas.text(middle, height, text, size=size, bold=True, color=ink, align="center")

    def block(self, table: Table, column: int, y: float, wide: float) -> None:
        """One cell; a block that is read in front and written behind gets its boundary."""
        canvas, x, ident = self.canvas, self.x(column), table.ids[column]
        if ident == HOLE:
            look = {"color": canvas.look.outline, "linewidth": 0.8}
            canvas.line((x, x + wide), (y + _CELL / 2, y + _CELL / 2), **look)
            return
        size = table.block_size
        part = 0.0
        if size and column * size < table.write < (column + 1) * size:
            part = (table.write - column * size) / size
        read = column < table.fresh and not part
        self.cell("read" if read else "own", x, y, wide, _CELL)
        if part:
            self.canvas.box(x, y, wide * part, _CELL, facecolor=CLASSES["reused"].colour)
            edge = (x + wide * part, x + wide * part)
            canvas.line(edge, (y - 4, y + _CELL + 4), linewidth=2.4)
            text = f"written from {count(table.write)}"
            if self.pitch * (self.last - column) > text_width(text, 7.5) + 6:
                canvas.text(edge[0] + 3, y - 5, text, size=7.5)
        ink = "#FFFFFF" if read else canvas.look.ink
        middle = x + wide * (part + 1) / 2 if part <= 0.5 else x + wide * part / 2
        if part > 0.5:
            ink = "#FFFFFF"
        self.label(middle, y, str(ident), ink, wide * max(1 - part, part))

    def links(self, at: int) -> None:
        """Lines between equal blocks of neighbouring rows, arrows where a block was copied."""
        above, table = self.rows[at - 1], self.rows[at]
        y, end = self.y(at - 1) + _CELL, self.y(at)
        last = min(self.last, len(above.ids), len(table.ids))
        for column in range(self.first, last):
            if above.ids[column] == table.ids[column] != HOLE:
                x = self.x(column) + (self.pitch - 6) / 2
                blue = CLASSES["reused"].colour
                self.canvas.line((x, x), (y, end), color=blue, linewidth=2.2)
        for source, target, tokens in table.copied:
            if target not in table.ids[self.first : self.last]:
                continue
            column = table.ids.index(target)
            x = self.x(column) + 6
            self.canvas.line((x, x), (y + 2, end - 1), linewidth=1.1)
            self.canvas.dots([x], [end - 3], 18, marker="v", color=self.canvas.look.ink)
            text = f"copy of {source}, {count(tokens)} tokens"
            room = self.right - x - 8
            if text_width(text, 7.5) <= room:
                self.canvas.text(x + 6, y + 8, text, size=7.5)
            else:
                self.canvas.text(x - 6, y + 8, text, size=7.5, align="right")
