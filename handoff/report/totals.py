"""The sums behind every table: one ``Total`` per row of a run, from the ledger alone.

Counted are first admissions of requests that finished (``attempt == 0``, ``status == "done"``);
refusals, aborts and re-admissions are counted beside them, never inside a ratio. A ratio keeps its
numerator and denominator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from handoff.adapter import ORDER
from handoff.errors import BadInput

from .palette import LOSSES, WATERFALL
from .words import count, plural

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Fall",
    "Total",
    "approximate",
    "common",
    "compared",
    "counted",
    "label",
    "marked",
    "named",
    "option_words",
    "own_counters",
    "parse",
    "run_order",
    "scenario_names",
    "sent",
    "served",
    "totals",
    "waterfall",
]


@dataclass(frozen=True)
class Total:
    """Sums over the counted requests of one row (a framework with one set of options).

    Token fields count prompt positions; ``lost`` has an item for every reason. ``again`` are
    re-admissions after preemption, ``recomputed`` the tokens they computed again. ``split`` counts
    requests in which a layer group computed positions that others reused, or none at all.
    ``beyond`` are hit tokens beyond the shared prefix, ``tainted`` reused ones that descend from an
    approximation, ``unsound`` the rules by which upstream handed out KV of another context.
    ``describe`` and ``options`` (those that differ from upstream's defaults) are in words; where
    scenarios differ they say so.
    """

    run: str
    adapter: str
    title: str
    upstream: str
    evidence: str
    describe: str
    options: str
    requests: int
    refused: int
    aborted: int
    again: int
    prompt: int
    shared: int
    hit: int
    reused: int
    moved: int
    beyond: int
    tainted: int
    unsound: tuple[str, ...]
    approximate: bool
    fresh: int
    lost: Mapping[str, int]
    computed: int
    recomputed: int
    overhead: int
    cold_flops: int
    spent_flops: int
    saved_flops: int
    ttft_s: float | None
    cold_ttft_s: float | None
    split: int
    why: str
    """Why the first refused request was refused."""

    @property
    def label(self) -> str:
        """What the row is called: the framework's title and the options that tell rows apart."""
        return label(self.run, self.adapter, self.title)

    @property
    def marked(self) -> str:
        """The label and what weakens it: ``†`` (see ``approximate``), ``(transcribed)``."""
        return marked(self.label, self.evidence, approximate=self.approximate)

    @cached_property
    def shared_ratio(self) -> float | None:
        """Shared tokens / prompt tokens; ``None`` without prompts."""
        return _ratio(self.shared, self.prompt)

    @cached_property
    def hit_ratio(self) -> float | None:
        """Hit tokens as the framework reports them / prompt tokens."""
        return _ratio(self.hit, self.prompt)

    @cached_property
    def saved_ratio(self) -> float | None:
        """Saved FLOPs / FLOPs of cold prefills."""
        return _ratio(self.saved_flops, self.cold_flops)

    @cached_property
    def gap(self) -> float | None:
        """Saved ratio minus hit ratio: negative if the hits save less than they promise."""
        if self.hit_ratio is None or self.saved_ratio is None:
            return None
        return self.saved_ratio - self.hit_ratio

    def losses(self) -> list[tuple[str, int]]:
        """Reasons that occur with their tokens, the largest first (ties in table order)."""
        found = [(reason, self.lost[reason]) for reason in LOSSES if self.lost[reason]]
        return sorted(found, key=lambda item: -item[1])

    def part(self, tokens: int) -> float | None:
        """``tokens`` as a share of this row's prompt tokens."""
        return _ratio(tokens, self.prompt)


class Fall(NamedTuple):
    """One step of the waterfall from the shared prefix to the saved compute.

    ``kind`` is ``total`` (a level, drawn from 0) or ``step`` (a signed change that starts at
    ``before``); values are shares: of prompt tokens above ``token weights``, of cold FLOPs from
    there on. ``tokens`` is the exact number where the step has one.
    """

    name: str
    kind: str
    before: float
    value: float
    tokens: int | None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def label(run: str, adapter: str, title: str) -> str:
    """What a row is called: its title in place of the adapter's name, then what tells it apart.

    >>> [label(run, "vllm", "vLLM") for run in ("vllm", "vllm:block_size=32", "vllm + EAGLE")]
    ['vLLM', 'vLLM block_size=32', 'vLLM + EAGLE']
    """
    if run.startswith(title):
        return run
    if not run.startswith(adapter):
        return f"{title} {run}"
    own = run.removeprefix(adapter)
    return f"{title} {own[1:]}" if own.startswith(":") else f"{title}{own}"


def run_order(frame: pd.DataFrame) -> list[str]:
    """Row labels in the order of all tables: by framework, then as they appear."""
    seen = frame[["run", "adapter"]].drop_duplicates("run")
    rank = {name: at for at, name in enumerate(ORDER)}
    rows = list(zip(seen["run"], seen["adapter"], strict=True))
    rows.sort(key=lambda row: (rank.get(row[1], len(rank)), "" if row[1] in rank else row[1]))
    return [run for run, _ in rows]


def marked(label_: str, evidence: str, *, approximate: bool = False) -> str:
    """A row's label, with ``†`` if its hits are approximate, its evidence if not the best."""
    name = f"{label_} †" if approximate else label_
    return name if evidence == "ran" else f"{name} ({evidence})"


def approximate(entries: pd.DataFrame) -> pd.Series:
    """Per entry: was KV reused that a cold run would not hold (moved, tainted or unsound)?"""
    unsound = entries["unsound"].map(lambda rules: bool(parse(rules)))
    return (entries["moved"] > 0) | (entries["tainted_tokens"] > 0) | unsound


def scenario_names(frame: pd.DataFrame) -> list[str]:
    """The scenarios of a ledger in the order in which they appear."""
    return [str(name) for name in frame["scenario"].drop_duplicates()]


def counted(frame: pd.DataFrame) -> pd.DataFrame:
    """The entries that enter ratios: first admissions of requests that finished."""
    return frame[(frame["attempt"] == 0) & (frame["status"] == "done")]


def parse(text: object) -> Any:
    """The value of one of the ledger's JSON columns; an empty or missing one is ``None``."""
    return json.loads(text) if isinstance(text, str) and text else None


def option_words(options: object) -> str:
    """The ledger's options column in words: ``block_size=32, eagle=True``."""
    values = parse(options) or {}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _one_of(texts: pd.Series) -> str:
    found = list(texts.drop_duplicates())
    return str(found[0]) if len(found) == 1 else "differs by scenario"


def common(frame: pd.DataFrame) -> pd.DataFrame:
    """What can be summed over scenarios and still be compared: the same rows over the same input.

    Of all sets of rows that some scenario has, the one that covers most (rows times scenarios).
    Raises ``BadInput`` if there is no entry at all.
    """
    if frame.empty:
        raise BadInput("the ledger has no entry: there is nothing to report")
    groups = frame.groupby("scenario", sort=False)["run"]
    rows = {scenario: frozenset(runs.unique()) for scenario, runs in groups}

    def having(wanted: frozenset[str]) -> list[object]:
        return [scenario for scenario, found in rows.items() if wanted <= found]

    best = max(dict.fromkeys(rows.values()), key=lambda wanted: len(wanted) * len(having(wanted)))
    return frame[frame["run"].isin(best) & frame["scenario"].isin(having(best))]


def totals(frame: pd.DataFrame, scenario: str | None = None) -> list[Total]:
    """One ``Total`` per row of the run, over one scenario or (``None``) over all of them."""
    if scenario is not None:
        frame = frame[frame["scenario"] == scenario]
    groups = dict(iter(frame.groupby("run", sort=False)))
    return [_total(groups[run]) for run in run_order(frame)]


def _total(entries: pd.DataFrame) -> Total:
    first = entries.iloc[0]
    done = counted(entries)
    status = entries["status"]
    unsound = [rule for rules in entries["unsound"] for rule in parse(rules) or []]

    def total(column: str) -> int:
        return int(done[column].sum())

    def exact(column: str) -> int:
        return sum(int(value) for value in done[column])  # FLOPs of a long run exceed 2**63

    def median(column: str) -> float | None:
        values = done[column].dropna()
        return float(values.median()) if len(values) else None

    return Total(
        run=str(first["run"]),
        adapter=str(first["adapter"]),
        title=str(first["title"]),
        upstream=str(first["upstream"]),
        evidence=str(first["evidence"]),
        describe=_one_of(entries["describe"]),
        options=_one_of(entries["options"].map(option_words)),
        requests=len(done),
        refused=int(status.str.startswith("refused").sum()),
        aborted=int((status == "aborted").sum()),
        again=int((entries["attempt"] > 0).sum()),
        prompt=total("prompt_tokens"),
        shared=total("shared_tokens"),
        hit=total("hit_tokens"),
        reused=total("reused"),
        moved=total("moved"),
        beyond=int((done["hit_tokens"] - done["shared_tokens"]).clip(lower=0).sum()),
        tainted=int(entries["tainted_tokens"].sum()),
        unsound=tuple(dict.fromkeys(unsound)),
        approximate=bool(approximate(entries).any()),
        fresh=total("fresh"),
        lost={reason: total(reason) for reason in LOSSES},
        computed=total("computed_tokens"),
        recomputed=int(entries["recomputed_tokens"].sum()),
        overhead=int(entries["overhead_tokens"].sum()),
        cold_flops=exact("cold_flops"),
        spent_flops=exact("spent_flops"),
        saved_flops=exact("saved_flops"),
        ttft_s=median("ttft_s"),
        cold_ttft_s=median("cold_ttft_s"),
        split=int(done["lanes"].str.contains("unneeded|recomputed").sum()),
        why=next((each.partition(": ")[2] for each in status if each.startswith("refused")), ""),
    )


def own_counters(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(row, counter's own name) -> its sum over all admissions, as the framework counts it."""
    sums: dict[tuple[str, str], float] = {}
    for run, counters in zip(frame["run"], frame["counters"], strict=True):
        for name, value in (parse(counters) or {}).items():
            sums[str(run), name] = sums.get((str(run), name), 0) + value
    return sums


def compared(rows: Sequence[Total]) -> list[Total]:
    """The rows that served every request: only their ratios have the same denominator."""
    most = max((row.prompt for row in rows), default=0)
    return [row for row in rows if row.prompt == most and most]


def named(rows: Sequence[Total]) -> dict[str, str]:
    """What each row is called in a table, with its marks.

    ``*``: it served fewer requests than others. ``†``: its hits are approximate.
    """
    whole = {row.run for row in compared(rows)}
    names = {}
    for row in rows:
        marks = ("" if row.run in whole else "*") + ("†" if row.approximate else "")
        names[row.run] = f"{row.label} {marks}".rstrip()
    return names


def served(rows: Sequence[Total]) -> dict[str, str]:
    """``42 of 100 requests`` for each row that served fewer requests than others."""
    whole = {row.run for row in compared(rows)}
    return {
        row.run: f"{count(row.requests)} of {plural(sent(row), 'request')}"
        for row in rows
        if row.run not in whole
    }


def sent(row: Total) -> int:
    """Requests that were sent to a row, whatever became of them."""
    return row.requests + row.refused + row.aborted


def waterfall(total: Total) -> list[Fall]:
    """The steps from shared prefix to saved compute; each level is the sum of what is above it.

    Order: shared prefix, every reason in table order, moved, hit tokens, replay, token weights,
    saved compute. ``moved`` is the gain beyond the shared prefix only: chunks moved inside it are
    part of the level. ``token weights`` closes exactly: the saved ratio minus the share of prompt
    tokens that hit and were not computed again. Empty if nothing was asked.
    """
    if total.prompt == 0 or total.saved_ratio is None:
        return []
    steps = [Fall("shared prefix", "total", 0.0, total.shared / total.prompt, total.shared)]
    level = total.shared

    def step(name: str, tokens: int) -> None:
        nonlocal level
        steps.append(
            Fall(name, "step", level / total.prompt, tokens / total.prompt, tokens),
        )
        level += tokens

    for reason in WATERFALL:
        step(reason, -total.lost[reason])
    step("moved", total.hit - level)
    steps.append(Fall("hit tokens", "total", 0.0, level / total.prompt, level))
    step("replay", -total.lost["replay"])
    share = level / total.prompt
    steps.append(Fall("token weights", "step", share, total.saved_ratio - share, None))
    steps.append(Fall("saved compute", "total", 0.0, total.saved_ratio, None))
    return steps
