"""What a report says, before it is written as a page or as Markdown.

Both forms show the same sections in the same order with the same sentences and numbers; they
differ in markup only. A ``Grid`` is a table whose cells may carry the number behind their text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from . import findings, grids, trust
from .grids import Grid
from .info import Expectation, RunInfo, ScenarioInfo
from .palette import LOSSES
from .strip import Strip, median_request, strip
from .totals import (
    Fall,
    Total,
    common,
    counted,
    option_words,
    parse,
    scenario_names,
    totals,
    waterfall,
)
from .words import count, plural

__all__ = [
    "MAX_REQUESTS",
    "Content",
    "Part",
    "RequestRow",
    "answers_of",
    "build",
]

MAX_REQUESTS = 500
"""Rows of the page's table of requests; the ledger file has all."""


@dataclass(frozen=True, slots=True)
class Part:
    """The answer for one scenario, or for the whole run (``name`` empty)."""

    name: str
    facts: ScenarioInfo
    sentence: str
    gap: str
    window: str
    notes: tuple[str, ...]
    approximate: str
    rows: tuple[Total, ...]
    strip: Strip | None

    @property
    def failed(self) -> list[Expectation]:
        """Expectations that the run did not meet."""
        return [each for each in self.facts.expectations if not each.ok]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One line of the requests' table, with the six answers behind it."""

    scenario: str
    request: str
    label: str
    prompt: int
    shared: int
    hit: int
    saved: float | None
    lost: int
    loss: str
    answers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Content:
    """Everything a report shows, in its order."""

    info: RunInfo
    title: str
    whole: Part
    parts: tuple[Part, ...]
    not_summed: str
    six: Grid | None
    falls: tuple[tuple[Total, tuple[Fall, ...]], ...]
    fall_title: str
    rules: Grid
    unsound: Grid | None
    requests: tuple[RequestRow, ...]
    num_requests: int
    ratio: Grid
    ratio_title: str
    counters: Grid | None
    pool: Grid
    scheduler: Grid
    trust: Grid
    trust_words: tuple[str, ...]
    left_out: tuple[tuple[str, tuple[str, ...]], ...]
    provenance: tuple[tuple[str, str], ...]


def build(frame: pd.DataFrame, info: RunInfo) -> Content:
    """The content of the report of a run; every number comes from ``frame`` or ``info``."""
    names = scenario_names(frame)
    several = len(names) > 1
    shared = common(frame)
    every = totals(frame)
    summed = scenario_names(shared)
    title = findings.summed(names, summed, totals(shared)) if several else names[0]
    whole = _part(shared, info, None if several else names[0], title)
    parts = [_part(frame[frame["scenario"] == name], info, name) for name in names]
    falls = tuple((row, tuple(waterfall(row))) for row in whole.rows)
    requests, number = _requests(frame)
    ratio, below, above = grids.ratio(whole.rows, shared)
    return Content(
        info=info,
        title=info.title or (plural(len(names), "scenario") if several else names[0]),
        whole=whole,
        parts=tuple(parts) if several else (),
        not_summed=findings.not_summed(names, summed),
        six=_six(frame, whole.strip, info) if whole.strip else None,
        falls=tuple((row, steps) for row, steps in falls if steps),
        fall_title=findings.waterfall_title(whole.rows),
        rules=grids.rules(frame),
        unsound=grids.unsound(frame),
        requests=requests,
        num_requests=number,
        ratio=ratio,
        ratio_title=findings.ratio_title(whole.rows, below, above),
        counters=grids.counters(frame),
        pool=grids.pool(every, info),
        scheduler=grids.scheduler(frame, every),
        trust=grids.trust(every, info),
        trust_words=_trust_words(info, every),
        left_out=_left_out(every, info),
        provenance=_provenance(frame, every, info),
    )


def _part(frame: pd.DataFrame, info: RunInfo, name: str | None, title: str = "") -> Part:
    rows = totals(frame)
    facts = info.scenario(name) if name is not None else ScenarioInfo(name="")
    chosen = median_request(frame)
    return Part(
        name=name or "",
        facts=facts,
        sentence=findings.answer(rows, title),
        gap=findings.gap(rows),
        window=findings.window(rows, info, facts),
        notes=tuple(note for note in (findings.refusals(rows),) if note),
        approximate=trust.approximations(rows, info),
        rows=tuple(rows),
        strip=strip(frame, *chosen) if chosen else None,
    )


def answers_of(entry: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    """The six answers of one entry: (question, answer) in words, from the ledger alone."""
    said = parse(entry["answers"]) or {}
    groups = said.get("groups", [])
    lost = [f"{reason} {count(int(entry[reason]))}" for reason in LOSSES if entry[reason]]
    hit = f"{count(int(entry['hit_tokens']))} of {count(int(entry['shared_tokens']))} shared"
    external = [f"{count(n)} from {tier}" for tier, n in said.get("external", {}).items()]
    copies = sum(len(group.get("copied", ())) for group in groups)
    held = [said.get("references") or "none"]
    if copies:
        held.append(f"{plural(copies, 'block')} copied")
    return (
        ("Who matches", said.get("matcher") or "–"),
        ("Hit length", "; ".join([hit, *external, "lost: " + (", ".join(lost) or "none")])),
        ("References", ", ".join(held)),
        ("Positions start at", count(int(entry["start"]))),
        ("Read-only", _bounds(groups)),
        ("Still computed", plural(int(entry["computed_tokens"]), "token")),
    )


def _bounds(groups: Sequence[Mapping[str, Any]]) -> str:
    writes = {group["group"]: int(group["write"]) for group in groups}
    if not writes:
        return "–"
    if len(set(writes.values())) == 1:
        return f"[0, {count(next(iter(writes.values())))})"
    return ", ".join(f"{name} [0, {count(write)})" for name, write in writes.items())


def _six(frame: pd.DataFrame, one: Strip, info: RunInfo) -> Grid:
    """The six questions as rows and the frameworks as columns, for the request of the strip."""
    entries = counted(frame)
    entries = entries[(entries["scenario"] == one.scenario) & (entries["request"] == one.request)]
    by_run = {str(entry["run"]): entry for entry in entries.to_dict("records")}
    found = [answers_of(by_run[row.run]) for row in one.rows]
    rules = [_rule_list(by_run[row.run]) for row in one.rows]
    head = ["question", *(row.name for row in one.rows)]
    lines: list[list[object]] = [["options", *(row.describe for row in one.rows)]]
    for at, (question, _) in enumerate(found[0]):
        lines.append([f"{at + 1} {question[0].lower()}{question[1:]}", *(a[at][1] for a in found)])
        if question == "Hit length":
            lines.append(["rules", *rules])
    smallest = [info.row(row.run).smallest_prompt for row in one.rows]
    if any(number is not None for number in smallest):
        lines.append(["smallest prompt that can hit", *smallest])
    return Grid(tuple(head), tuple(tuple(grids.cell(value) for value in line) for line in lines))


def _rule_list(entry: Mapping[Any, Any]) -> str:
    rules = [str(rule) for _, _, _, rule, *_ in parse(entry["deductions"]) or [] if rule]
    return ", ".join(dict.fromkeys(rules)) or "–"


def _requests(frame: pd.DataFrame) -> tuple[tuple[RequestRow, ...], int]:
    """The requests that lose most (at most ``MAX_REQUESTS``), and how many lose anything."""
    entries = counted(frame)
    lost = entries["prompt_tokens"] - entries["fresh"] - entries["reused"] - entries["moved"]
    lost = lost[lost > 0]
    order = lost.sort_values(ascending=False, kind="stable").index[:MAX_REQUESTS]
    names = grids.labels(frame)
    rows = []
    for at, entry in zip(order, entries.loc[order].to_dict("records"), strict=True):
        reasons = sorted(((int(entry[r]), r) for r in LOSSES if entry[r]), key=lambda x: -x[0])
        cold = int(entry["cold_flops"])
        rows.append(
            RequestRow(
                scenario=entry["scenario"],
                request=entry["request"],
                label=names[entry["run"]],
                prompt=int(entry["prompt_tokens"]),
                shared=int(entry["shared_tokens"]),
                hit=int(entry["hit_tokens"]),
                saved=int(entry["saved_flops"]) / cold if cold else None,
                lost=int(lost.loc[at]),
                loss=f"{reasons[0][1]} {count(reasons[0][0])}" if reasons else "none",
                answers=answers_of(entry),
            )
        )
    return tuple(rows), len(lost)


def _trust_words(info: RunInfo, rows: Sequence[Total]) -> tuple[str, ...]:
    words = (trust.truth(info, rows), trust.tags(info, rows), trust.planted(info))
    return tuple(word for word in words if word)


def _left_out(rows: Sequence[Total], info: RunInfo) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What each adapter leaves out, once for all of its rows."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        found.setdefault(row.title, {}).update(info.row(row.run).left_out)
    return tuple((title, tuple(parts)) for title, parts in found.items() if parts)


def _provenance(
    frame: pd.DataFrame, rows: Sequence[Total], info: RunInfo
) -> tuple[tuple[str, str], ...]:
    versions = dict(info.versions) | {row.title: row.upstream for row in rows}
    out = [("command", info.command), ("date", info.date)]
    out.append(("versions", " · ".join(f"{name} {version}" for name, version in versions.items())))
    if info.seed is not None:
        out.append(("seed", str(info.seed)))
    if info.model:
        roofline = f", roofline of {info.hardware}" if info.hardware else ""
        out.append(("costs", f"FLOPs and bytes of {info.model}{roofline}"))
    for facts in info.scenarios:
        if facts.source:
            out.append((f"input of {facts.name}", facts.source))
    out += [(name, f"sha256 {digest}") for name, digest in info.files.items()]
    out.append(("options that differ from upstream's defaults", _changed(frame) or "none"))
    derived = [
        f"{row.label} {name}={value}"
        for row in rows
        for name, value in info.row(row.run).derived.items()
    ]
    if derived:
        out.append(("set by the engine", "; ".join(derived)))
    out.append(("evidence", "; ".join(f"{row.label} {row.evidence}" for row in rows)))
    return tuple(out)


def _changed(frame: pd.DataFrame) -> str:
    """Non-default options per row, naming the scenarios where they are not those of all."""
    names = grids.labels(frame)
    parts = []
    every = frame["scenario"].nunique()
    for run, title in names.items():
        mine = frame[frame["run"] == run]
        for options, group in mine.groupby("options", sort=False):
            words = option_words(options)
            if words:
                where = list(group["scenario"].drop_duplicates())
                note = f" (in {', '.join(where)})" if len(where) < every else ""
                parts.append(f"{title} {words}{note}")
    return "; ".join(parts)
