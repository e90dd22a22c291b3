"""What an object shows by itself in a notebook: plain HTML that survives every viewer.

Inline styles only, no style element, no script, no ids; text takes the viewer's colour and grounds
are transparent, so that viewers which strip or darken still show the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from . import findings, trust
from .info import RunInfo
from .palette import CLASSES, FLAGS
from .strip import Run, Strip, at_most
from .tables import ROW_HEAD, ROW_NUMERIC, row_cells
from .totals import Total, named
from .words import count, percent

__all__ = ["bar_html", "rows_html", "strip_html"]

_FONT = "font:13px system-ui,sans-serif"
_TABLE = "border-collapse:collapse"
_LEFT = "text-align:left;padding:2px 12px 2px 0"
_RIGHT = "text-align:right;padding:2px 12px 2px 0"
_NEUTRAL = "background:rgba(127,137,147,.28);outline:1px solid rgba(127,137,147,.7)"
_HATCHES = {
    "///": "repeating-linear-gradient(135deg,{ink} 0 1px,transparent 1px 5px)",
    "\\\\\\": "repeating-linear-gradient(45deg,{ink} 0 1px,transparent 1px 5px)",
    "|||": "repeating-linear-gradient(90deg,{ink} 0 1px,transparent 1px 4px)",
    "---": "repeating-linear-gradient(0deg,{ink} 0 1px,transparent 1px 4px)",
    "...": "radial-gradient({ink} 1px,transparent 1.3px)",
    "+++": "repeating-linear-gradient(90deg,{ink} 0 1px,transparent 1px 5px),"
    "repeating-linear-gradient(0deg,{ink} 0 1px,transparent 1px 5px)",
    "xxx": "repeating-linear-gradient(45deg,{ink} 0 1px,transparent 1px 5px),"
    "repeating-linear-gradient(135deg,{ink} 0 1px,transparent 1px 5px)",
}


def bar_html(runs: Sequence[Run], width: int = 430) -> Markup:
    """One bar of runs; each has its words as a tooltip and no run is narrower than 3 px."""
    parts = []
    for name, start, stop in at_most(runs, width // 3):
        title = f"{count(start)} to {count(stop)}: {count(stop - start)} {name}"
        style = f"flex:{stop - start} 0 3px;{_look(name)}"
        parts.append(f'<div title="{escape(title)}" style="{style}"></div>')
    words = "; ".join(f"{count(run.tokens)} {run.name}" for run in at_most(runs, 12))
    return Markup(
        f'<div role="img" aria-label="{escape(words)}"'
        f' style="display:flex;width:{width}px;height:18px">{"".join(parts)}</div>'
    )


def _look(name: str) -> str:
    if name == "unneeded":
        return "outline:1px dashed rgba(127,137,147,.7);outline-offset:-1px"
    if name == "fresh":
        return f"{_NEUTRAL};outline-offset:-1px"
    look = (CLASSES | FLAGS)[name]
    if not look.hatch:
        return f"background:{look.colour}"
    ink = "rgba(255,255,255,.5)" if look.hatch == "..." else "rgba(0,0,0,.45)"
    size = ";background-size:5px 5px" if look.hatch == "..." else ""
    return f"background:{_HATCHES[look.hatch].format(ink=ink)},{look.colour}{size}"


def strip_html(one: Strip) -> Markup:
    """A request in every framework: title, one bar a row, hit, saved and computed tokens."""
    rows = []
    for row in one.rows:
        lanes = list(row.lanes.items()) or [("", row.runs)]
        bars = Markup("").join(bar_html(lane) for _, lane in lanes)
        cells = (count(row.hit), f"{percent(row.saved)} %", count(row.computed))
        numbers = "".join(f'<td style="{_RIGHT}">{cell}</td>' for cell in cells)
        name = f"<b>{escape(row.name)}</b><br><small>{escape(row.describe)}</small>"
        rows.append(
            f'<tr><td style="{_LEFT}">{name}</td><td style="{_LEFT}">{bars}</td>{numbers}</tr>'
        )
    head = "".join(
        f'<th style="{side}">{text}</th>'
        for side, text in zip(
            (_LEFT, _LEFT, _RIGHT, _RIGHT, _RIGHT),
            ("", "", "hit", "saved", "computed"),
            strict=True,
        )
    )
    notes = [findings.lanes_note(row) for row in one.rows] + [findings.evidence_note(one.rows)]
    said = escape(" ".join(note for note in notes if note))
    title = escape(f"{one.request}: {findings.strip_title(one)}")
    table = f'<table style="{_TABLE}"><tr>{head}</tr>{"".join(rows)}</table>'
    return Markup(f'<div style="{_FONT}"><div><b>{title}</b></div>{table}<div>{said}</div></div>')


def rows_html(rows: Sequence[Total], info: RunInfo, name: str = "") -> Markup:
    """The answer of a scenario or run: the sentence, what is counted, the table of rows."""
    names = named(rows)
    lines = [row_cells(row, names[row.run]) for row in rows]
    facts = info.scenario(name) if name else None
    table = _table(ROW_HEAD, lines, ROW_NUMERIC)
    sentence = escape(findings.answer(rows, name))
    counted = escape(findings.window(rows, info, facts))
    notes = (findings.refusals(rows), trust.approximations(rows, info))
    below = "".join(f"<div>{escape(note)}</div>" for note in notes if note)
    above = f"<div><b>{sentence}</b></div><div>{counted}</div>"
    return Markup(f'<div style="{_FONT}">{above}{table}{below}</div>')


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: frozenset[int]) -> Markup:
    def line(kind: str, cells: Sequence[str]) -> str:
        return "".join(
            f'<{kind} style="{_RIGHT if at in numeric else _LEFT}">{escape(cell)}</{kind}>'
            for at, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return Markup(f'<table style="{_TABLE}"><tr>{line("th", head)}</tr>{body}</table>')
