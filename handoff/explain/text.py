"""The terminal form of ``explain``: the answer, the strip, reasons or all six answers, what-ifs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.text import Text

from handoff.adapter import ORDER
from handoff.ledger.entries import Entry, Run
from handoff.report.findings import evidence_note, lanes_note
from handoff.report.strip import Run as StripRun
from handoff.report.strip import Strip, StripRow
from handoff.report.tables import legend, strip_lines, style_of
from handoff.report.totals import label
from handoff.report.words import all_of, count, number_word, percent, seconds, span_of

from .chain import chain, losses, story
from .compare import Answer, Comparison, Outcome

__all__ = ["render", "render_plain", "sentence", "strip_of"]

WIDE, NARROW = 110, 80
_SIGNS = str.maketrans("█▓·─−–", "#%.---")


def render(
    console: Console,
    comparison: Comparison,
    *,
    six: bool | None = None,
    steps: bool = False,
    ascii_only: bool = False,
) -> None:
    """Print a comparison as wide as the console allows.

    ``six``: all six answers side by side (default from 110 columns on); ``steps``: the whole
    account of every row, rule by rule.
    """
    out = _Page(console, ascii_only)
    for line in sentence(comparison):
        out.say(line, style="bold")
    for run, why in comparison.refused.items():
        out.say(f"{run}: {why}")
    if not comparison.answers:
        return
    out.say()
    one = strip_of(comparison, short=True)
    for _, pieces in strip_lines(one, console.width):
        text = Text()
        for piece, name in pieces:
            text.append(piece, style=style_of(name))
        out.line(text)
    out.say(legend(one))
    for note in (*map(lanes_note, one.rows), evidence_note(one.rows)):
        if note:
            out.say(note)
    out.say()
    if steps:
        for answer in comparison.answers:
            out.items([*story(answer.entry), *losses(answer.entries)])
            out.say()
    elif console.width >= WIDE if six is None else six:
        _six(out, comparison.answers, console.width)
    else:
        _reasons(out, comparison.answers)
    for line in _formulas(comparison.answers):
        out.say(line, indent="  ")
    out.say(_books(comparison.answers), indent="  ")
    if comparison.hardware:
        out.say(_times(comparison), indent="  ")
    if comparison.what_ifs:
        out.say("What if  " + " · ".join(map(_what_if, comparison.what_ifs)), indent="         ")
    out.say("Next: --steps (every rule in order) · --only NAME · --what-if OPTION=VALUE")


def render_plain(comparison: Comparison, width: int = NARROW) -> str:
    """The same as text without colour."""
    stream = StringIO()
    console = Console(file=stream, width=width, color_system=None, force_terminal=False)
    render(console, comparison)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def sentence(comparison: Comparison) -> list[str]:
    """What was shared, hit and saved, then where the prompts differ; every number in words."""
    entries = [answer.entry for answer in comparison.answers]
    lines = []
    found = comparison.difference
    shared = found.position if found else comparison.shared_tokens
    beside = f" with {found.other}" if found else " with what was computed before"
    text = (
        f"{comparison.name} shares {count(shared)} of its {count(comparison.prompt_tokens)}"
        f" tokens{beside}"
    )
    if entries:
        hits = [entry.hit_tokens for entry in entries]
        saved = [_saved(entry) for entry in entries]
        text += f"; {_range('hit', hits, [count(hit) for hit in hits])}"
        text += f", {_range('saved compute', saved, [f'{percent(part)} %' for part in saved])}"
    lines.append(text + ".")
    if found:
        lines.append(found.words(comparison.prompt_tokens))
    return lines


def _range(noun: str, values: Sequence[float], texts: Sequence[str]) -> str:
    low, high = texts[values.index(min(values))], texts[values.index(max(values))]
    if noun != "hit":
        where = f"between {low} and {high}" if low != high else low
        return f"the {noun} {where}" if low != high else f"the {noun} is {where}"
    if len(texts) == 1:
        return f"the hit is {low}"
    if low == high:
        return f"{all_of(len(texts))} hits are {low}"
    between = span_of(texts, low, high).replace(" to ", " and ")
    return f"the {number_word(len(texts))} hits lie between {between}"


def _name(entry: Entry) -> str:
    return label(entry.run, entry.adapter, entry.title)


def _saved(entry: Entry) -> float:
    return entry.saved_flops / entry.cold_flops if entry.cold_flops else 0.0


# -- strip -------------------------------------------------------------------------------------


def strip_of(comparison: Comparison, *, short: bool = False) -> Strip:
    """The comparison's rows in the form that strips and figures are drawn from.

    Lanes that say the same are one, under all of their names (``short``: the first, and how many).
    """
    rows = tuple(_strip_row(answer.entry, short) for answer in comparison.answers)
    return Strip("explain", comparison.name, comparison.prompt_tokens, rows, None)


def _strip_row(entry: Entry, short: bool) -> StripRow:
    return StripRow(
        run=entry.run,
        label=_name(entry),
        describe=entry.describe,
        evidence=entry.evidence,
        hit=entry.hit_tokens,
        start=entry.start,
        shared=entry.shared_tokens,
        unit=entry.unit,
        computed=entry.computed_tokens,
        saved=_saved(entry),
        runs=tuple(StripRun(*run) for run in entry.runs),
        lanes={
            _joined(names, short): tuple(StripRun(*run) for run in lane)
            for lane, names in _equal(entry.lanes).items()
        },
    )


def _joined(names: Sequence[str], short: bool) -> str:
    return f"{names[0]} +{len(names) - 1}" if short and len(names) > 1 else " + ".join(names)


def _equal(lanes: Mapping[str, tuple[Run, ...]]) -> dict[tuple[Run, ...], list[str]]:
    """Lanes that say the same, with the names of all of them."""
    found: dict[tuple[Run, ...], list[str]] = {}
    for name, lane in lanes.items():
        found.setdefault(lane, []).append(name)
    return found


# -- tables ------------------------------------------------------------------------------------


def _reasons(out: _Page, answers: Sequence[Answer]) -> None:
    """One row a framework: lost by reason with its rule, computed tokens, smallest prompt."""
    names = [_name(answer.entry) for answer in answers]
    ends = [["computed", *(count(answer.entry.computed_tokens) for answer in answers)]]
    if any(answer.probed for answer in answers):
        ends.append(["smallest prompt", *(_smallest(answer) for answer in answers)])
    first = max(map(len, names)) + 2
    wide = [2 + max(map(len, column)) for column in ends]
    room = max(20, out.width - first - sum(wide))

    def row(name: str, lost: str, at: int | None, style: str = "") -> None:
        cells = [
            ("" if at is None else column[at], -width)
            for column, width in zip(ends, wide, strict=True)
        ]
        out.row([(name, first), (lost, room), *cells], style)

    row("", "lost, by reason (rule)", 0, "dim")
    out.row([("", first), ("tokens", room), *(("tokens", -width) for width in wide)], "dim")
    out.say("─" * (first + room + sum(wide)), style="dim")
    for at, answer in enumerate(answers, 1):
        lost = textwrap.wrap(_lost(answer.entry), room) or ["none"]
        row(names[at - 1], lost[0], at)
        for part in lost[1:]:
            row("", part, None)


def _lost(entry: Entry) -> str:
    parts = [f"{link.reason} {count(link.tokens)}{link.cited}" for link in chain(entry)]
    if entry.estimate_tokens is not None and entry.estimate_tokens != entry.hit_tokens:
        parts.append(f"estimate was {count(entry.estimate_tokens)}")
    return ", ".join(parts) or "none"


def _smallest(answer: Answer) -> str:
    if not answer.probed:
        return "–"
    return count(answer.smallest) if answer.smallest is not None else "never"


@dataclass(frozen=True, slots=True)
class _Question:
    head: str
    cells: tuple[str, ...]


def _six(out: _Page, answers: Sequence[Answer], width: int) -> None:
    """The six answers, a column a framework; columns that do not fit go into a second block."""
    first = 18
    fitting = max(1, (width - first) // 18)
    for at in range(0, len(answers), fitting):
        part = answers[at : at + fitting]
        wide = (width - first) // len(part)
        wide = min(wide, 40)
        names = [_name(answer.entry) for answer in part]
        out.row([("", first), *((name, wide) for name in names)], style="bold")
        out.say("─" * (first + wide * len(part)), style="dim")
        for question in _questions(part):
            out.cells([question.head, *question.cells], [first, *[wide] * len(part)])
        out.say()


def _questions(answers: Sequence[Answer]) -> Iterator[_Question]:
    entries = [answer.entry for answer in answers]

    def ask(head: str, cells: Sequence[str]) -> _Question:
        return _Question(head, tuple(cells))

    yield ask("options", [entry.describe for entry in entries])
    yield ask("1 who matches", [_brief(entry.answers.get("matcher", "")) for entry in entries])
    yield ask("2 hit tokens", [count(entry.hit_tokens) for entry in entries])
    yield ask("  lost", [_lost(entry) for entry in entries])
    yield ask("3 references", [_brief(entry.answers.get("references", "")) for entry in entries])
    yield ask("4 positions from", [count(entry.start) for entry in entries])
    yield ask("5 read-only", [_read_only(entry) for entry in entries])
    yield ask("6 still computed", [count(entry.computed_tokens) for entry in entries])
    yield ask("smallest prompt", [_smallest(answer) for answer in answers])


def _brief(text: str) -> str:
    """The text without what stands in brackets; ``--steps`` shows all of it."""
    return re.sub(r" \([^)]*\)", "", text)


def _read_only(entry: Entry) -> str:
    """The part of each group's table that the request may not write: blocks and positions."""
    parts = []
    groups = entry.answers.get("groups", [])
    for group in groups:
        name = f"{group['group']}: " if len(groups) > 1 else ""
        if not group["write"]:
            parts.append(f"{name}none")
            continue
        blocks = _shared_blocks(group["table"], group["fresh"])
        text = f"{name}positions below {count(group['write'])}"
        parts.append(f"{text}, blocks {blocks}" if blocks else text)
    return "; ".join(parts) or "none"


def _shared_blocks(table: Sequence[Sequence[int]], columns: int) -> str:
    """Ids of the first ``columns`` columns of a table of runs: ``1-114, 200``."""
    parts: list[str] = []
    for first, ids in table:
        ids = min(ids, columns)
        columns -= ids
        if ids and first >= 0:
            parts.append(f"{first}-{first + ids - 1}" if ids > 1 else f"{first}")
    return ", ".join(parts[:3]) + (" ..." if len(parts) > 3 or columns else "")


def _formulas(answers: Sequence[Answer]) -> Iterator[str]:
    """The closed formula of every row that follows one, numbers put in where it gives this hit."""
    for answer in answers:
        if answer.never:
            yield f"{_name(answer.entry)} {answer.never}."
        if answer.formula is None:
            continue
        name = _name(answer.entry)
        text = f"{name}: a repeated prompt of L tokens hits {answer.formula.general}"
        if answer.fits:
            entry = answer.entry
            sizes = entry.shared_tokens, entry.known_tokens
            given, result = answer.formula.given(*sizes), answer.formula.words(*sizes)
            text += f"; here, with {given}, {result}"
        yield text


def _books(answers: Sequence[Answer]) -> str:
    """Where the rules are that the answers cite."""
    names = [name for name in ORDER if any(answer.entry.adapter == name for answer in answers)]
    if len(names) == 1:
        return f"Rules: docs/rules/{names[0]}.md"
    return f"Rules: docs/rules/NAME.md ({', '.join(names)})" if names else ""


def _times(comparison: Comparison) -> str:
    """Roofline times to the first token, hit and cold, with what they assume."""
    parts = [
        f"{_name(entry)} {seconds(entry.ttft_s)} (cold {seconds(entry.cold_ttft_s)})"
        for entry in (answer.entry for answer in comparison.answers)
    ]
    return (
        f"Time to the first token, {comparison.model}, roofline {comparison.hardware}:"
        f" {' · '.join(parts)}"
    )


def _what_if(outcome: Outcome) -> str:
    name = f"{outcome.title}, {outcome.what.words}:"
    if outcome.hit is None:
        return f"{name} {outcome.why}"
    change = "" if outcome.change is None else f" ({outcome.change:+,})".replace("-", "−")
    smallest = "" if outcome.smallest is None else f", smallest prompt {count(outcome.smallest)}"
    return f"{name} {count(outcome.hit)}{change}{smallest}"


class _Page:
    """Prints lines as they are; wraps sentences, never numbers or names."""

    def __init__(self, console: Console, ascii_only: bool) -> None:
        self._console = console
        self._ascii = ascii_only
        self.width = console.width

    def line(self, text: Text) -> None:
        if self._ascii:
            plain = text.plain.translate(_SIGNS).encode("ascii", "replace").decode()
            text = Text(plain, style=text.style, spans=text.spans)
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def say(self, text: str = "", *, style: str = "", indent: str = "") -> None:
        lines = textwrap.wrap(
            text, max(20, self.width), subsequent_indent=indent, break_on_hyphens=False
        )
        for line in lines or [""]:
            self.line(Text(line, style=style))

    def items(self, lines: Sequence[str]) -> None:
        """A sentence, then its details set in."""
        for number, line in enumerate(lines):
            lead = "" if number == 0 else "  "
            self.say(lead + line, indent=lead + "  ", style="bold" if number == 0 else "")

    def row(self, cells: Sequence[tuple[str, int]], style: str = "") -> None:
        """Cells with their widths; a negative width sets the text to the right."""
        text = "".join(
            cell.rjust(-width) if width < 0 else cell.ljust(width) for cell, width in cells
        )
        self.line(Text(text.rstrip(), style=style))

    def cells(self, texts: Sequence[str], widths: Sequence[int]) -> None:
        """One row of a table whose cells are wrapped to their widths."""
        columns = [
            textwrap.wrap(text, width - 2, break_on_hyphens=False, drop_whitespace=True) or [""]
            if not text.startswith(" ")
            else [text]
            for text, width in zip(texts, widths, strict=True)
        ]
        for at in range(max(map(len, columns))):
            parts = [column[at] if at < len(column) else "" for column in columns]
            self.row(list(zip(parts, widths, strict=True)))
