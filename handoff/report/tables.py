"""The terminal form: the answer in a sentence, the rows, the strip, where the numbers come from.

Columns are laid out here, not by rich: names and numbers are never cut. What does not fit is
dropped in the order TTFT, hit tokens, second reason; below 80 columns, or where even that is too
wide, each row becomes a block.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from . import findings, trust
from .info import RunInfo
from .palette import ASCII, CLASSES, FLAGS, dark_ink
from .strip import Run, Strip, cells, median_request, strip
from .totals import Total, common, named, scenario_names, totals
from .words import count, percent, plural, points, seconds

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ROW_HEAD",
    "ROW_NUMERIC",
    "five_rows",
    "legend",
    "losses",
    "render_run",
    "render_strip",
    "row_cells",
    "row_facts",
    "strip_lines",
]

ROW_HEAD = (
    *("", "hit %", "saved %", "gap", "hit tokens"),
    *("lost, % of prompt tokens", "TTFT p50", "evidence"),
)
"""The columns of the table of rows where its width is no concern."""
ROW_NUMERIC = frozenset({1, 2, 3, 4, 6})
"""Those that are set to the right."""

_NARROW = 80
_SEPARATOR = "  "


@dataclass(frozen=True, slots=True)
class _Column:
    """One column: its head, the cells of all rows, and the side they are set to."""

    head: str
    cells: tuple[str, ...]
    right: bool = True

    @property
    def width(self) -> int:
        return max(len(self.head), *(len(cell) for cell in self.cells))

    def set(self, text: str) -> str:
        return text.rjust(self.width) if self.right else text.ljust(self.width)


def render_run(
    console: Console,
    frame: pd.DataFrame,
    info: RunInfo,
    *,
    ascii_only: bool = False,
    strips: bool | None = None,
) -> None:
    """Print a run: the sentence over all scenarios, then each scenario's rows, then the facts.

    ``strips``: also a strip per scenario; by default for at most three scenarios. Colour follows
    the console (``NO_COLOR``, pipes); every class has its character as well.
    """
    names = scenario_names(frame)
    out = _Printer(console, ascii_only)
    if strips is None:
        strips = len(names) <= 3
    whole = totals(common(frame))
    summed = scenario_names(common(frame))
    if len(names) > 1:
        out.say(findings.answer(whole, findings.summed(names, summed, whole)), style="bold")
        out.say()
    for name in names:
        part = frame[frame["scenario"] == name]
        rows = totals(part)
        out.say(findings.answer(rows, name), style="bold")
        out.say(findings.window(rows, info, info.scenario(name)), style="dim")
        five_rows(console, rows, ascii_only=ascii_only)
        _notes(out, rows, info)
        chosen = median_request(part) if strips else None
        if chosen is not None:
            out.say()
            render_strip(console, strip(part, *chosen), ascii_only=ascii_only)
        for kept in info.scenario(name).expectations:
            if not kept.ok:
                out.say(f"Expected, but not so: {kept.words}", style="bold")
        out.say()
    if len(names) > 1:
        which = f"{count(len(summed))} of {count(len(names))}" if summed != names else "All"
        out.say(f"{which} scenarios together", style="bold")
        out.say(findings.window(whole, info), style="dim")
        five_rows(console, whole, ascii_only=ascii_only)
        _notes(out, whole, info)
        out.say()
    every = totals(frame)
    for line in row_facts(whole, info):
        out.say(line, style="dim", indent="  ")
    if len(every) > len(whole):
        more = plural(len(every) - len(whole), "more row")
        out.say(f"{more} with options of their own: see the report.", style="dim")
    closing = (
        trust.truth(info, every),
        trust.tags(info, every),
        findings.not_summed(names, summed),
    )
    for word in closing:
        if word:
            out.say(word)


def _notes(out: _Printer, rows: Sequence[Total], info: RunInfo) -> None:
    """What the marks ``*`` and ``†`` of a table mean."""
    for note in (findings.refusals(rows), trust.approximations(rows, info)):
        if note:
            out.say(note)


def row_facts(rows: Sequence[Total], info: RunInfo) -> list[str]:
    """Per row: upstream version, what shapes a hit, its pool, options that are not the default."""
    lines = []
    for row in rows:
        facts = info.row(row.run)
        parts = [row.describe, facts.pool]
        if row.options:
            parts.append(f"not upstream's default: {row.options}")
        if facts.derived:
            parts.append(
                "set by the engine: " + ", ".join(f"{k}={v}" for k, v in facts.derived.items())
            )
        lines.append(f"{row.label} {row.upstream}: " + " · ".join(part for part in parts if part))
    return lines


def five_rows(console: Console, rows: Sequence[Total], *, ascii_only: bool = False) -> None:
    """Print the table of a scenario or run, as wide as the console allows."""
    out = _Printer(console, ascii_only)
    columns, kept_hits = _fit(rows, console.width)
    if console.width < _NARROW or _total(columns) > console.width:
        names = named(rows)
        for row in rows:
            _block(out, row, names[row.run])
        return
    head = _SEPARATOR.join(column.set(column.head) for column in columns)
    out.line(Text(head.rstrip(), style="dim"))
    out.line(Text("─" * _total(columns), style="dim"))
    for at in range(len(rows)):
        texts = [column.set(column.cells[at]) for column in columns]
        line = Text(_SEPARATOR.join(texts).rstrip())
        line.stylize("bold", 0, columns[0].width)
        out.line(line)
    if not kept_hits:  # a rate keeps its numerator, if not in a column then in a line
        out.say("Hit tokens: " + " · ".join(f"{row.label} {count(row.hit)}" for row in rows))


def _fit(rows: Sequence[Total], width: int) -> tuple[list[_Column], bool]:
    """The columns that fit, and whether the hit tokens are among them.

    Dropped in this order: TTFT, hit tokens, then all reasons but the largest that fit.
    """
    for ttft, hits in ((True, True), (False, True)):
        columns = _columns(rows, ttft=ttft, hits=hits, room=0)
        lost = _lost(columns)
        room = width - _total(columns) + lost.width
        enough = max((len(losses(row, most=2)) for row in rows), default=0)
        if room >= max(enough, len(lost.head)):
            return _columns(rows, ttft=ttft, hits=hits, room=room), hits
    columns = _columns(rows, ttft=False, hits=False, room=0)
    room = max(0, width - _total(columns) + _lost(columns).width)
    return _columns(rows, ttft=False, hits=False, room=room), False


def _lost(columns: Sequence[_Column]) -> _Column:
    return next(column for column in columns if column.head.startswith("lost"))


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_SEPARATOR) * (len(columns) - 1)


def _columns(rows: Sequence[Total], *, ttft: bool, hits: bool, room: int) -> list[_Column]:
    columns = [
        _Column("", tuple(named(rows).values()), right=False),
        _Column("hit %", tuple(percent(row.hit_ratio) for row in rows)),
        _Column("saved %", tuple(percent(row.saved_ratio) for row in rows)),
        _Column("gap", tuple(points(row.gap) for row in rows)),
    ]
    if hits:
        columns.append(_Column("hit tokens", tuple(count(row.hit) for row in rows)))
    head = "lost, % of prompt tokens"
    if ttft:
        head += ", largest first"
    elif not hits and room < len(head):
        head = "lost, %"
    columns.append(_Column(head, tuple(_losses_in(row, room) for row in rows), right=False))
    if ttft:
        columns.append(_Column("TTFT p50", tuple(seconds(row.ttft_s) for row in rows)))
    columns.append(_Column("evidence", tuple(row.evidence for row in rows), right=False))
    return columns


def _losses_in(row: Total, room: int) -> str:
    """As many reasons as ``room`` characters hold, one at least; the rest is counted."""
    texts = [losses(row, most) for most in range(1, max(2, len(row.losses()) + 1))]
    return next((text for text in reversed(texts) if len(text) <= room), texts[0])


def row_cells(row: Total, name: str) -> tuple[str, ...]:
    """One line under ``ROW_HEAD``; ``name`` is what the row is called."""
    return (
        name,
        percent(row.hit_ratio),
        percent(row.saved_ratio),
        points(row.gap),
        count(row.hit),
        losses(row),
        seconds(row.ttft_s),
        row.evidence,
    )


def losses(row: Total, most: int | None = None) -> str:
    """``evicted 9.8, draft 0.5``: the reasons in percent of prompt tokens, the largest first."""
    found = [f"{reason} {percent(row.part(tokens))}" for reason, tokens in row.losses()]
    if not found:
        return "none" if row.prompt else "–"
    if most is None or len(found) <= most:
        return ", ".join(found)
    return f"{', '.join(found[:most])} +{len(found) - most} more"


def _block(out: _Printer, row: Total, name: str) -> None:
    out.say(name, style="bold")
    out.say(
        f"  hit {percent(row.hit_ratio)} % ({count(row.hit)} of {count(row.prompt)}),"
        f" saved {percent(row.saved_ratio)} %, gap {points(row.gap)}",
        indent="  ",
    )
    out.say(f"  lost: {losses(row)}; {row.evidence}", indent="  ")


def render_strip(console: Console, one: Strip, *, ascii_only: bool = False) -> None:
    """Print a request's strip: one line a row, a legend of the classes that occur."""
    out = _Printer(console, ascii_only)
    out.say(f"{one.request}: {findings.strip_title(one)}")
    for text, runs in strip_lines(one, console.width):
        line = Text()
        for piece, name in runs:
            line.append(piece, style=style_of(name))
        assert line.plain == text
        out.line(line)
    out.say(legend(one))
    for row in one.rows:
        if note := findings.lanes_note(row):
            out.say(note)
    if note := findings.evidence_note(one.rows):
        out.say(note)


def strip_lines(one: Strip, width: int) -> list[tuple[str, list[tuple[str, str]]]]:
    """The strip as lines of at most ``width`` characters, each with its (text, class) pieces.

    The first line is the scale. Class of a piece that is no strip: the empty string.
    """
    names = max(len(row.name) for row in one.rows)
    lanes = [name for row in one.rows for name in row.lanes]
    names = max([names, *(len(name) + 2 for name in lanes)])
    hits = max(3, *(len(count(row.hit)) for row in one.rows))
    tail = hits + 2 + len("100.0 %") + 2 + len("computed")
    room = max(10, width - names - 1 - 1 - tail)
    wide = min(room, one.prompt)
    scale = "0" + count(one.prompt).rjust(wide - 1)
    head = f"{'':{names}} {scale:{wide}} {'hit':>{hits}}  {'saved':>7}  computed"
    lines = [(head, [(head, "")])]
    for row in one.rows:
        numbers = (
            f" {count(row.hit):>{hits}}  {percent(row.saved) + ' %':>7}  {count(row.computed):>8}"
        )
        lines.append(_strip_line(f"{row.name:{names}} ", row.runs, wide, numbers))
        for name, lane in row.lanes.items():
            lines.append(_strip_line(f"{'  ' + name:{names}} ", lane, wide, ""))
    return lines


def _strip_line(
    head: str, runs: Sequence[Run], width: int, tail: str
) -> tuple[str, list[tuple[str, str]]]:
    pieces = [(head, "")]
    pieces += [((CLASSES | FLAGS)[name].char, name) for name in cells(runs, width)]
    pieces.append((tail, ""))
    return "".join(piece for piece, _ in pieces), pieces


def style_of(name: str) -> str:
    """Rich style of a class: solid characters in its colour, letters on its colour."""
    if name in ("", "fresh", "unneeded"):
        return ""
    look = (CLASSES | FLAGS)[name]
    if not look.char.isalpha():
        return look.colour
    return f"{'black' if dark_ink(look.colour) else 'white'} on {look.colour}"


def legend(one: Strip) -> str:
    """``█ reused  · fresh  a alignment`` for what occurs."""
    looks = [(CLASSES | FLAGS)[name] for name in one.classes()]
    return "  ".join(
        f"{look.char} {look.words if look.name in FLAGS else look.name}" for look in looks
    )


class _Printer:
    """Prints lines as they are: no markup, no highlighting, wrapped only where said."""

    def __init__(self, console: Console, ascii_only: bool) -> None:
        self.console = console
        self.ascii_only = ascii_only

    def line(self, text: Text) -> None:
        if self.ascii_only:
            text = _ascii(text)
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def say(self, text: str = "", *, style: str = "", indent: str = "") -> None:
        wide = max(20, self.console.width)
        folded = textwrap.wrap(
            text, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for line in folded or [""]:
            self.line(Text(line, style=style))


_PLAIN = {**ASCII, "─": "-", "−": "-", "–": "-", "µ": "u", "†": "^"}


def _ascii(text: Text) -> Text:
    table = str.maketrans(_PLAIN)
    plain = text.plain.translate(table).encode("ascii", "replace").decode()
    return Text(plain, style=text.style, spans=text.spans)
