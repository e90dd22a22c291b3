"""The strip of a request: what became of every prompt position, per framework, from runs alone.

A row is 2 to 10 runs ``(class, start, stop)`` whatever the length, so 100,000 tokens cost no more
than 40. The same record feeds the terminal, the page's SVG and the figures.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from .palette import CLASSES, FLAGS
from .totals import counted, label, parse, run_order

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CELLS",
    "MAX_RUNS",
    "Run",
    "Strip",
    "StripRow",
    "at_most",
    "cells",
    "clip",
    "lens",
    "median_request",
    "scale",
    "strip",
]

CELLS = 120
"""Up to this many tokens a strip draws one cell a position."""
MAX_RUNS = 300
"""Longer rows are binned to columns in which any loss wins."""
LEAST = 0.6
"""Least width of a run in percent of a strip (3 px of 500)."""
_LENS_GOOD, _LENS_LIMIT = 0.35, 0.6
"""An enlargement of more than this part of the prompt shows nothing new and is left out;
one of less than the first part is good enough to keep the coarsest blocks."""
_LENS_LEAST = 16


class Run(NamedTuple):
    """Prompt positions ``[start, stop)`` of one class (or lane flag)."""

    name: str
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Number of positions."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class StripRow:
    """One framework's row: runs cover ``[0, prompt)``; ``lanes`` only where groups differ."""

    run: str
    label: str
    describe: str
    evidence: str
    hit: int
    start: int
    shared: int
    unit: int
    computed: int
    saved: float | None
    runs: tuple[Run, ...]
    lanes: Mapping[str, tuple[Run, ...]]
    approximate: bool = False

    @property
    def name(self) -> str:
        """The label, with ``†`` if the hit is no KV that a cold run would hold."""
        return f"{self.label} †" if self.approximate else self.label

    def words(self) -> str:
        """The row for a screen reader: ``1,840 reused; 16 draft; 181 fresh``."""
        tokens: dict[str, int] = {}
        for each in self.runs:
            tokens[each.name] = tokens.get(each.name, 0) + each.tokens
        return "; ".join(f"{number:,} {name}" for name, number in tokens.items())


@dataclass(frozen=True, slots=True)
class Strip:
    """All rows of one request and the positions that need enlarging."""

    scenario: str
    request: str
    prompt: int
    rows: tuple[StripRow, ...]
    lens: tuple[int, int] | None

    @property
    def differences(self) -> tuple[int, ...]:
        """Where the shared prefix ends, without repeats, ascending."""
        return tuple(sorted({row.shared for row in self.rows}))

    def classes(self) -> list[str]:
        """What occurs in any row or lane, in the order of legends; the lane flags last."""
        found = {each.name for row in self.rows for each in row.runs}
        for row in self.rows:
            found |= {each.name for lane in row.lanes.values() for each in lane}
        return [name for name in (*CLASSES, *FLAGS) if name in found]


def strip(frame: pd.DataFrame, scenario: str, request: str) -> Strip:
    """The strip of ``request``: its first admission in every row that served it."""
    entries = counted(frame)
    entries = entries[(entries["scenario"] == scenario) & (entries["request"] == request)]
    by_run = {str(entry["run"]): entry for _, entry in entries.iterrows()}
    rows = tuple(_row(by_run[run]) for run in run_order(entries))
    assert rows, f"no row served request {request} of {scenario}"
    prompt = max(row.runs[-1].stop for row in rows)
    return Strip(scenario, request, prompt, rows, lens(rows, prompt))


def _row(entry: pd.Series) -> StripRow:
    cold = int(entry["cold_flops"])
    lanes = parse(entry["lanes"]) or {}
    return StripRow(
        run=str(entry["run"]),
        label=label(str(entry["run"]), str(entry["adapter"]), str(entry["title"])),
        describe=str(entry["describe"]),
        evidence=str(entry["evidence"]),
        hit=int(entry["hit_tokens"]),
        start=int(entry["start"]),
        shared=int(entry["shared_tokens"]),
        unit=max(1, int(entry["unit"])),
        computed=int(entry["computed_tokens"]),
        saved=int(entry["saved_flops"]) / cold if cold else None,
        runs=tuple(Run(*each) for each in parse(entry["runs"])),
        lanes={name: tuple(Run(*each) for each in lane) for name, lane in lanes.items()},
        approximate=bool(entry["moved"] or entry["tainted_tokens"] or parse(entry["unsound"])),
    )


def median_request(frame: pd.DataFrame) -> tuple[str, str] | None:
    """(scenario, request) with the median loss among the requests that share a prefix.

    Loss: shared tokens that were not reused, summed over the rows. Requests on which the rows'
    hits differ go first, then those whose computed tokens differ, then those that most rows served.
    ``None`` if no request shares anything.
    """
    entries = counted(frame)
    if not (entries["shared_tokens"] > 0).any():
        return None
    lost = (entries["shared_tokens"] - entries["reused"]).astype("int64")
    keyed = entries.assign(_lost=lost).groupby(["scenario", "request"], sort=False)
    table = keyed.agg(
        lost=("_lost", "sum"),
        shared=("shared_tokens", "max"),
        hits=("hit_tokens", "nunique"),
        computed=("computed_tokens", "nunique"),
        rows=("run", "size"),
    )
    table = table[table["shared"] > 0]
    for differ in (table["hits"] > 1, table["computed"] > 1):
        if differ.any():
            table = table[differ]
            break
    table = table[table["rows"] == table["rows"].max()].sort_values("lost", kind="stable")
    scenario, request = table.index[len(table) // 2]
    return str(scenario), str(request)


def lens(rows: Sequence[StripRow], prompt: int) -> tuple[int, int] | None:
    """Positions ``[a, b)`` around hits and first difference, or ``None`` if the whole shows them.

    From four blocks before the smallest hit to one block after the last difference, rounded
    outwards to the block: the coarsest one that still leaves an enlargement, else the finest.
    """
    if prompt <= CELLS:
        return None
    low = min(min(row.hit, row.start) for row in rows)
    high = max(max(row.shared, row.hit) for row in rows)
    window = (0, prompt)
    for unit in sorted({row.unit for row in rows}, reverse=True):
        window = max(0, (low // unit - 4) * unit), min(prompt, (-(-high // unit) + 1) * unit)
        if window[1] - window[0] <= _LENS_GOOD * prompt:
            break
    start, stop = window
    if stop - start < _LENS_LEAST:  # page size 1: still a visible neighbourhood
        start, stop = max(0, start - _LENS_LEAST // 2), min(prompt, stop + _LENS_LEAST // 2)
    return (start, stop) if 0 < stop - start <= _LENS_LIMIT * prompt else None


def clip(runs: Iterable[Run], start: int, stop: int) -> list[Run]:
    """The parts of ``runs`` inside ``[start, stop)``."""
    return [Run(name, max(a, start), min(b, stop)) for name, a, b in runs if a < stop and b > start]


def _rank(name: str) -> int:
    """Who wins a shared column: losses, then moved, then reused, then fresh."""
    return {"fresh": 0, "unneeded": 0, "reused": 1, "moved": 2}.get(name, 3)


def at_most(runs: Sequence[Run], limit: int = MAX_RUNS) -> list[Run]:
    """``runs`` unchanged, or binned to ``limit`` equal columns in which any loss wins.

    A class that loses all its columns takes one back from a class that has several.
    """
    if len(runs) <= limit:
        return list(runs)
    first, last = runs[0].start, runs[-1].stop
    limit = min(limit, last - first)
    edges = [first + (last - first) * column // limit for column in range(limit + 1)]
    inside = [{each.name for each in clip(runs, a, b)} for a, b in pairwise(edges)]
    names = [max(sorted(found), key=_rank) for found in inside]
    for name in CLASSES:
        if name in names:
            continue
        places = [at for at, found in enumerate(inside) if name in found]
        spare = [at for at in places if names.count(names[at]) > 1]
        if spare:
            names[spare[0]] = name
    merged: list[Run] = []
    for name, (a, b) in zip(names, pairwise(edges), strict=True):
        start = merged.pop().start if merged and merged[-1].name == name else a
        merged.append(Run(name, start, b))
    return merged


def scale(runs: Sequence[Run], least: float = LEAST) -> Callable[[int], float]:
    """Position -> percent of the width; no run is narrower than ``least``, the longest pays."""
    tokens = runs[-1].stop - runs[0].start
    least = min(least, 50 / len(runs))
    wide = [max(least, 100 * each.tokens / tokens) for each in runs]
    longest = max(range(len(wide)), key=wide.__getitem__)
    wide[longest] -= sum(wide) - 100
    edges = [0.0]
    for width in wide:
        edges.append(edges[-1] + width)
    starts = [each.start for each in runs]

    def place(position: int) -> float:
        at = max(0, min(bisect_right(starts, position) - 1, len(runs) - 1))
        part = (position - runs[at].start) / runs[at].tokens
        return edges[at] + wide[at] * min(max(part, 0.0), 1.0)

    return place


def cells(runs: Sequence[Run], width: int) -> list[str]:
    """Class names of ``width`` character cells; every class that occurs gets one at least.

    Up to ``width`` tokens each position is one cell (fewer cells are returned). Otherwise cells
    follow the positions, runs too short for a cell are given one, and the longest runs pay.
    """
    tokens = runs[-1].stop - runs[0].start
    if tokens <= width:
        return [each.name for each in runs for _ in range(each.tokens)]
    runs = at_most(runs, width // 2)
    edges = [(each.start - runs[0].start) * width // tokens for each in runs] + [width]
    wide = [max(1, b - a) for a, b in pairwise(edges)]
    for _ in range(sum(wide) - width):
        wide[wide.index(max(wide))] -= 1
    return [each.name for each, number in zip(runs, wide, strict=True) for _ in range(number)]
