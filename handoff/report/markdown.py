"""The report as Markdown: the page's sections, order and sentences, strips as characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import findings
from .content import Content, Part
from .grids import Grid
from .strip import Strip
from .svg import fall_words
from .tables import ROW_HEAD, ROW_NUMERIC, legend, row_cells, strip_lines
from .totals import Total, named, served
from .words import count, percent

__all__ = ["markdown"]

_WIDTH = 100
_MAX_ROWS = 40


def markdown(content: Content, figures: Mapping[str, tuple[str, str]] | None = None) -> str:
    """The report; ``figures`` maps a figure's name to (alt text, path of its PNG).

    Equal content gives equal bytes.
    """
    pictures = dict(figures or {})
    lines = [f"# {content.whole.sentence}", ""]
    lines += _answer(content.whole, "##")
    lines += _picture(pictures, "strip")
    if content.parts:
        lines += ["## What does each scenario show?", ""]
        for part in content.parts:
            question = f": {part.facts.question}" if part.facts.question else ""
            lines += [f"### {part.name}{question}", "", f"**{part.sentence}**", ""]
            lines += _answer(part, "####")
        if content.not_summed:
            lines += [content.not_summed, ""]
    if content.six is not None and content.whole.strip is not None:
        lines += [f"## What does each framework answer for {content.whole.strip.request}?", ""]
        lines += grid(content.six)
    lines += ["## Where does the shared prefix go?", "", f"{content.fall_title}.", ""]
    lines += [*_waterfall(content), *_picture(pictures, "waterfall")]
    if content.rules.rows:
        lines += ["### Which rules took tokens?", ""]
        if "rule" in content.rules.head:
            lines += [escape(findings.RULES), ""]
        lines += grid(content.rules)
    if content.unsound is not None:
        lines += ["### Where does upstream hand out KV that a cold run would not hold?", ""]
        lines += [escape(findings.RULES), ""]
        lines += grid(content.unsound)
    lines += ["## Which requests lose most?", "", *_requests(content)]
    lines += ["## Why is saved not equal to hit?", "", f"{content.ratio_title}.", ""]
    lines += [*_picture(pictures, "hit_vs_saved"), *grid(content.ratio)]
    if content.counters is not None:
        lines += ["### What do the frameworks count themselves?", "", *grid(content.counters)]
    lines += ["## What would a larger pool bring?", ""]
    lines += ["At most the evicted tokens: they had been findable and were gone.", ""]
    lines += [*_picture(pictures, "pool_curve"), *grid(content.pool)]
    lines += _picture(pictures, "staircase")
    lines += ["## What did the scheduler do?", "", *_picture(pictures, "timeline")]
    lines += [*_picture(pictures, "block_map"), *grid(content.scheduler)]
    lines += ["## Can this be trusted?", "", *grid(content.trust)]
    for word in content.trust_words:
        lines += [word, ""]
    if content.left_out:
        lines += ["### What do the adapters leave out?", ""]
        lines += [f"* {name}: {escape('; '.join(parts))}" for name, parts in content.left_out]
        lines.append("")
    lines += ["## Made from", ""]
    lines += [f"* {term}: {_code(term, text)}" for term, text in content.provenance]
    return "\n".join(lines) + "\n"


def _code(term: str, text: str) -> str:
    return f"`{text}`" if term == "command" else escape(text)


def _answer(part: Part, level: str) -> list[str]:
    lines = [f"{escape(part.gap)} {escape(part.window)}.", ""]
    for note in (part.facts.notice and f"Notice: {part.facts.notice}", *part.notes):
        if note:
            lines += [escape(note), ""]
    lines += [f"**Expected, but not so:** {escape(each.words)}\n" for each in part.failed]
    lines += _rows(part.rows)
    if part.approximate:
        lines += [escape(part.approximate), ""]
    if part.strip is not None:
        lines += [f"{level} {part.strip.request}: {findings.strip_title(part.strip)}", ""]
        lines += strip_block(part.strip)
    return lines


def _rows(rows: Sequence[Total]) -> list[str]:
    names = named(rows)
    fewer = served(rows)
    cells = []
    for row in rows:
        name = f"**{names[row.run]}** {row.upstream}"
        cells.append(row_cells(row, f"{name}, {fewer[row.run]}" if row.run in fewer else name))
    return table(ROW_HEAD, cells, ROW_NUMERIC)


def strip_block(one: Strip) -> list[str]:
    """A strip in a code block, with its legend and what its lanes mean."""
    lines = [
        "```text",
        *(text.rstrip() for text, _ in strip_lines(one, _WIDTH)),
        legend(one),
        "```",
    ]
    for row in one.rows:
        if note := findings.lanes_note(row):
            lines += ["", note]
    if note := findings.evidence_note(one.rows):
        lines += ["", note]
    return [*lines, ""]


def _waterfall(content: Content) -> list[str]:
    if not content.falls:
        return []
    names = [step.name for step in content.falls[0][1]]
    rows = []
    for at, name in enumerate(names):
        cells = [fall_words(steps[at]) for _, steps in content.falls]
        if any(cells):
            bold = content.falls[0][1][at].kind == "total"
            rows.append([f"**{name}**" if bold else name, *cells])
    head = ["% of prompt tokens (last two rows: of cold FLOPs)"]
    names_of = named(content.whole.rows)
    head += [names_of[row.run] for row, _ in content.falls]
    return table(head, rows, frozenset(range(1, len(head))))


def _requests(content: Content) -> list[str]:
    shown = content.requests[:_MAX_ROWS]
    if not shown:
        return ["No request lost a token that had been computed before.", ""]
    lines = []
    if content.num_requests > len(shown):
        lines += [f"The {len(shown)} of {count(content.num_requests)} with the largest losses.", ""]
    rows = [
        (
            each.request,
            each.scenario,
            each.label,
            count(each.prompt),
            count(each.shared),
            count(each.hit),
            percent(each.saved),
            count(each.lost),
            each.loss,
        )
        for each in shown
    ]
    head = ("request", "scenario", "framework", "prompt", "shared", "hit", "saved %", "lost")
    return lines + table((*head, "largest loss"), rows, frozenset(range(3, 8)))


def _picture(pictures: Mapping[str, tuple[str, str]], name: str) -> list[str]:
    if name not in pictures:
        return []
    alt, path = pictures[name]
    return [f"![{escape(alt)}]({path})", ""]


def grid(each: Grid) -> list[str]:
    """A grid as a Markdown table."""
    return table(each.head, [[cell.text for cell in row] for row in each.rows], each.numeric)


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], numeric: frozenset[int] = frozenset()
) -> list[str]:
    """A Markdown table; ``numeric`` columns are set to the right."""
    sides = ["---:" if at in numeric else ":---" for at in range(len(head))]
    lines = [_line(head), f"|{'|'.join(sides)}|", *(_line(row) for row in rows)]
    return [*lines, ""]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in cells)} |"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table cell (bold marks stay)."""
    for mark in ("|", "<", "`"):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
