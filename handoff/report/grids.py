"""Tables of the report's sections; a cell keeps the number behind its text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from .info import RunInfo
from .totals import (
    Total,
    approximate,
    counted,
    label,
    marked,
    own_counters,
    parse,
    run_order,
)
from .words import count, percent, seconds

__all__ = [
    "BAND_SLACK",
    "Cell",
    "Grid",
    "band",
    "cell",
    "counters",
    "labels",
    "pool",
    "ratio",
    "rules",
    "scheduler",
    "trust",
    "unsound",
]

MAX_RULES = 60
"""Lines of the table of rules; the ledger file has every deduction."""


class Cell(NamedTuple):
    """A cell: what is printed, and the number to sort by where it is one."""

    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: ``head`` over ``rows``; ``numeric`` columns are set to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: frozenset[int] = frozenset()

    @classmethod
    def of(cls, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Grid:
        """A grid from plain values; a column with numbers only is numeric."""
        cells = tuple(tuple(cell(value) for value in row) for row in rows)
        numeric = frozenset(
            column
            for column in range(len(head))
            if cells
            and all(row[column].value is not None or row[column].text == "–" for row in cells)
        )
        return cls(tuple(head), cells, numeric)

    def filled(self) -> Grid:
        """Without the columns that are empty in every row."""
        kept = [at for at in range(len(self.head)) if any(row[at].text != "–" for row in self.rows)]
        return Grid(
            tuple(self.head[at] for at in kept),
            tuple(tuple(row[at] for at in kept) for row in self.rows),
            frozenset(new for new, at in enumerate(kept) if at in self.numeric),
        )


def cell(value: object) -> Cell:
    """A cell from a plain value: integers with separators, ``None`` as a dash."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(count(value), value)
    return Cell("–" if value is None else str(value))


def _percent(ratio: float | None) -> Cell:
    return Cell(percent(ratio), ratio)


def _seconds(value: float | None) -> Cell:
    return Cell(seconds(value), value)


def labels(frame: pd.DataFrame) -> dict[str, str]:
    """What each row is called, with weak evidence, in the order of all tables."""
    first = frame.drop_duplicates("run").set_index("run")
    inexact = set(frame.loc[approximate(frame), "run"])
    return {
        run: marked(
            label(run, str(first.at[run, "adapter"]), str(first.at[run, "title"])),
            str(first.at[run, "evidence"]),
            approximate=run in inexact,
        )
        for run in run_order(frame)
    }


def rules(frame: pd.DataFrame) -> Grid:
    """The rules that took tokens away: how often, how many, for which layer group."""
    found: dict[tuple[str, str, str, str], list[int | str]] = {}
    entries = counted(frame)
    names = labels(frame)
    for run, deductions in zip(entries["run"], entries["deductions"], strict=True):
        for reason, start, stop, rule, group, note in parse(deductions) or []:
            kept = found.setdefault((str(run), reason, str(rule), group or ""), [0, 0, note])
            kept[0] += 1  # type: ignore[operator]
            kept[1] += stop - start
    rank = {run: at for at, run in enumerate(names)}
    order = sorted(found.items(), key=lambda item: (rank[item[0][0]], -int(item[1][1])))
    head = ("framework", "reason", "rule", "layer group", "times", "tokens", "what it says")
    every = "all" if any(group for _, _, _, group in found) else None
    rows = [
        (names[run], reason, rule or None, group or every, times, tokens, note or None)
        for (run, reason, rule, group), (times, tokens, note) in order[:MAX_RULES]
    ]
    return Grid.of(head, rows).filled()


def unsound(frame: pd.DataFrame) -> Grid | None:
    """Rules by which upstream hands out KV that a cold run would not hold, if any fired."""
    names = labels(frame)
    found: dict[tuple[str, str], int] = {}
    for run, rules in zip(frame["run"], frame["unsound"], strict=True):
        for rule in parse(rules) or []:
            found[str(run), rule] = found.get((str(run), rule), 0) + 1
    if not found:
        return None
    rows = [(names[run], rule, times) for (run, rule), times in found.items()]
    return Grid.of(("framework", "rule", "admissions"), rows)


def ratio(rows: Sequence[Total], frame: pd.DataFrame) -> tuple[Grid, int, int]:
    """Numerators and denominators of both ratios, and the requests outside the band."""
    entries = counted(frame)
    outside = band(entries)
    lines = []
    for row in rows:
        mine = outside[entries["run"] == row.run]
        lines.append(
            (
                row.marked,
                row.hit,
                row.prompt,
                _percent(row.hit_ratio),
                row.saved_flops,
                row.cold_flops,
                _percent(row.saved_ratio),
                int((mine < 0).sum()),
                int((mine > 0).sum()),
            )
        )
    head = (
        "framework",
        "hit tokens",
        "prompt tokens",
        "hit %",
        "saved FLOPs",
        "cold FLOPs",
        "saved %",
        "requests below hit²",
        "requests above hit",
    )
    return Grid.of(head, lines), int((outside < 0).sum()), int((outside > 0).sum())


BAND_SLACK = 0.005
"""How far a mark may lie outside ``hit² <= saved <= hit`` and still count as inside (the logits of
the last position are part of both costs)."""


def band(entries: pd.DataFrame) -> pd.Series:
    """Per entry -1 (below the band), 0 (inside) or 1 (above it)."""
    hit = entries["hit_tokens"] / entries["prompt_tokens"].clip(lower=1)
    saved = entries["saved_flops"] / entries["cold_flops"].clip(lower=1)
    below, above = saved < hit**2 - BAND_SLACK, saved > hit + BAND_SLACK
    return above.astype(int) - below.astype(int)


def counters(frame: pd.DataFrame) -> Grid | None:
    """The frameworks' own counters under their own names, summed; ``None`` if none were kept."""
    sums = own_counters(frame)
    if not sums:
        return None
    names = labels(frame)
    rank = {run: at for at, run in enumerate(names)}
    rows = [
        (
            names[run],
            name,
            int(value) if float(value).is_integer() else Cell(f"{value:,.4g}", value),
        )
        for (run, name), value in sorted(sums.items(), key=lambda item: rank[item[0][0]])
    ]
    return Grid.of(("framework", "its own counter", "sum over admissions"), rows)


def pool(rows: Sequence[Total], info: RunInfo) -> Grid:
    """What each row's pool was, what eviction took, and the smallest prompt that can hit."""
    head = ["framework", "pool", "evicted tokens", "% of prompt tokens"]
    smallest = any(info.row(row.run).smallest_prompt is not None for row in rows)
    lines = []
    for row in rows:
        evicted = row.lost["evicted"]
        line = [row.marked, info.row(row.run).pool or None, evicted, _percent(row.part(evicted))]
        lines.append([*line, info.row(row.run).smallest_prompt] if smallest else line)
    return Grid.of([*head, "smallest prompt that can hit"] if smallest else head, lines)


def scheduler(frame: pd.DataFrame, rows: Sequence[Total]) -> Grid:
    """Times, repeated work and KV traffic per row."""
    lines = []
    for row in rows:
        mine = frame[frame["run"] == row.run]
        done = counted(mine)
        queue = done["queue_s"].dropna()
        sizes = [
            int(mine[f"kv_{what}_bytes"].sum()) for what in ("read", "written", "copied", "loaded")
        ]
        lines.append(
            (
                row.marked,
                _seconds(row.ttft_s),
                _seconds(row.cold_ttft_s),
                _seconds(float(queue.median()) if len(queue) else None),
                row.computed,
                row.again,
                row.recomputed,
                row.overhead,
                *(_gib(size) for size in sizes),
            )
        )
    head = (
        "framework",
        "TTFT p50",
        "cold TTFT p50",
        "queue p50",
        "computed tokens",
        "re-admissions",
        "recomputed tokens",
        "overhead tokens",
        "KV read",
        "KV written",
        "KV copied",
        "KV loaded",
    )
    return Grid.of(head, lines)


def _gib(size: int) -> Cell:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return Cell(f"{size / scale:,.1f} {unit}", size)
    return Cell(f"{size} B", size)


def trust(rows: Sequence[Total], info: RunInfo) -> Grid:
    """Per row: evidence, recordings compared, executed truth, tags; known columns only."""
    lines = []
    for row in rows:
        facts = info.row(row.run)
        conform, truth, tags = facts.conformance, facts.truth, facts.tags
        error = Cell(f"{truth.max_error:.1e}", truth.max_error) if truth else None
        lines.append(
            (
                marked(row.label, "ran", approximate=row.approximate),
                row.upstream,
                row.evidence,
                conform.cases if conform else None,
                conform.differ if conform else None,
                error,
                tags.faults if tags else None,
                tags.tainted if tags else None,
            )
        )
    head = (
        "framework",
        "upstream",
        "evidence",
        "recordings compared",
        "different",
        "largest logit error",
        "tag faults",
        "tainted tokens",
    )
    return Grid.of(head, lines).filled()
