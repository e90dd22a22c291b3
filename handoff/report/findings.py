"""Sentences made from numbers: every title and answer of a report is a finding, and tested.

One function per sentence. They take ``Total`` or ``Strip`` records, say what was counted, and
never a rate without its denominator in the same line or the line that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .info import RunInfo, ScenarioInfo
from .strip import Strip, StripRow
from .totals import Total, compared, sent
from .words import all_of, count, join, number_word, percent, plural, span_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "RULES",
    "answer",
    "block_title",
    "evidence_note",
    "gap",
    "lanes_note",
    "not_summed",
    "pool_title",
    "pools",
    "ratio_title",
    "refusals",
    "staircase_title",
    "strip_title",
    "summed",
    "timeline_title",
    "waterfall_title",
    "window",
]


_SMALL_GAP = 0.005
"""Half a point: a gap below it has no story."""
RULES = "Rule numbers: docs/rules/<adapter>.md."
"""Where the numbers behind a rule lead."""


def answer(rows: Sequence[Total], name: str = "") -> str:
    """The first sentence of every output: what had been computed before, what was saved.

    Where rows share differently (the answer of one is a token longer), the most is named.
    """
    head = f"{name}: " if name else ""
    whole = compared(rows)
    if not whole:
        return _sentence(f"{head}no request finished, so there is nothing to compare.")
    tokens = count(whole[0].prompt)
    if not any(row.shared for row in whole):
        return _sentence(
            f"{head}none of {tokens} prompt tokens had been computed before; nothing to save."
        )
    before = "had been computed before"
    beyond = [row.label for row in whole if row.beyond]
    saving = _saving(whole, fewer=len(whole) < len(rows))
    if beyond:
        before = "repeat a prefix that was computed before"
        who = join(beyond) if len(whole) > 1 else "it"
        saving += f"; {who} also {_verb(beyond, 'reuse')} text that is no prefix"
    return _sentence(f"{head}{_shared(whole)} % of {tokens} prompt tokens {before}; {saving}.")


def _shared(rows: Sequence[Total]) -> str:
    """The share computed before; the most of it where rows differ."""
    texts = {percent(row.shared_ratio): row.shared_ratio or 0.0 for row in rows}
    most = max(texts, key=lambda text: texts[text])
    return most if len(texts) == 1 else f"up to {most}"


def _verb(names: Sequence[str], verb: str) -> str:
    return f"{verb}s" if len(names) == 1 else verb


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if ": " not in text else text


def _saving(rows: Sequence[Total], *, fewer: bool) -> str:
    saved = _range([row.saved_ratio for row in rows])
    if not any(row.saved_flops for row in rows):
        return "no prefill compute is saved"
    if len(rows) == 1:
        who = rows[0].label + (", which alone served every request, saves" if fewer else " saves")
    else:
        distinct = len({row.adapter for row in rows}) == len(rows)
        who = f"the {number_word(len(rows))} {'frameworks' if distinct else 'rows'}"
        who += " that served every request save" if fewer else " save"
    return f"{who} {saved} % of the prefill compute"


def _range(ratios: Sequence[float | None]) -> str:
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if not known:
        return "–"
    texts = [percent(ratio) for ratio in known]
    return span_of(texts, texts[0], texts[-1])


def _counts(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def gap(rows: Sequence[Total]) -> str:
    """The row whose hit and saved ratio differ most, and why."""
    known = [row for row in compared(rows) if row.gap is not None and row.hit]
    if not known:
        return "No row has a hit."
    row = max(known, key=lambda each: abs(each.gap or 0.0))
    largest = abs(row.gap or 0.0)
    if largest < _SMALL_GAP:
        words = percent(largest)
        most = f"less than {words[1:]}" if words.startswith("<") else f"at most {words}"
        return f"Hit ratio and saved ratio differ by {most} points in every row."
    return (
        f"Biggest gap: {row.label} reports {percent(row.hit_ratio)} % hits and saves"
        f" {percent(row.saved_ratio)} %, since {_cause(row)}."
    )


def _cause(row: Total) -> str:
    assert row.gap is not None
    replay = row.part(row.lost["replay"]) or 0.0
    if row.gap > 0:
        if row.moved:
            return "chunks from the middle of a prompt cost more than an average token"
        return "the hits lie in the longer prompts, whose tokens cost more"
    if replay >= -row.gap / 2:
        return f"replay computes {percent(replay)} % again"
    if row.split:
        return "some layer groups compute the same positions with and without a hit"
    return "the reused tokens come early in the prompt, where attention costs less"


def window(rows: Sequence[Total], info: RunInfo, scenario: ScenarioInfo | None = None) -> str:
    """What the rates of a table count: requests, prompt tokens, pool, model, seed."""
    most = max(sent(row) for row in rows)
    fewer = [row for row in rows if row.requests < most]
    head = plural(most, "request")
    if info.window != "all requests":
        head = f"{info.window[:1].upper()}{info.window[1:]}: {head}"
    elif most > 1 and len(fewer) < len(rows):
        head = f"All {head}"
    tokens = f"{count(max(row.prompt for row in rows))} prompt tokens"
    if fewer:
        names = [f"{row.label} {count(row.requests)}" for row in fewer]
        names[0] = f"{fewer[0].label} served {plural(fewer[0].requests, 'request')}"
        tokens += f" ({', '.join(names)})"
    parts = [head, tokens, pools(rows, info, scenario)]
    if info.model:
        parts.append(f"FLOPs of {info.model}")
    if info.seed is not None:
        parts.append(f"seed {info.seed}")
    return ", ".join(part for part in parts if part)


def pools(rows: Sequence[Total], info: RunInfo, scenario: ScenarioInfo | None = None) -> str:
    """The pool in tokens where all rows have the same, else each row's in its own units."""
    if scenario is not None and scenario.pool_tokens is not None:
        return f"pool {count(scenario.pool_tokens)} tokens"
    own = scenario.pools if scenario is not None else {}
    if not own:
        tokens = {info.row(row.run).pool_tokens for row in rows}
        if len(tokens) == 1 and None not in tokens:
            return f"pool {plural(int(tokens.pop() or 0), 'token')}"
    words = [(row.label, own.get(row.run, info.row(row.run).pool)) for row in rows]
    if not any(pool for _, pool in words) and len(info.scenarios) > 1:
        return "pools as stated for each scenario"
    if len({pool for _, pool in words}) == 1:
        return f"pool {words[0][1]}" if words[0][1] else ""
    return "pools: " + "; ".join(f"{name} {pool}" for name, pool in words if pool)


def refusals(rows: Sequence[Total]) -> str:
    """Requests outside the ratios, by row; empty if there are none."""
    parts = []
    for row in rows:
        verbs = (("refused", row.refused), ("aborted", row.aborted))
        out = [f"{verb} {count(number)}" for verb, number in verbs if number]
        if out:
            why = f", the first: {row.why}" if row.why else ""
            parts.append(
                f"{row.label} {join(out)}{why} (its rates count the other {row.requests:,})"
            )
    text = f"* Not every request is counted: {'; '.join(parts)}. " if parts else ""
    again = [
        f"{row.label} {plural(row.again, 'time')} ({row.recomputed:,} tokens computed again)"
        for row in rows
        if row.again
    ]
    return (text + (f"Re-admitted after preemption: {join(again)}." if again else "")).strip()


def summed(every: Sequence[str], part: Sequence[str], rows: Sequence[Total]) -> str:
    """The name of a sum over scenarios: ``12 of 23 scenarios have the same five rows``."""
    if len(part) == len(every):
        return plural(len(every), "scenario")
    which = "the same" if len(part) > 1 else "these" if len(rows) > 1 else "this"
    number = f"{number_word(len(rows))} rows" if len(rows) > 1 else "row"
    have = "has" if len(part) == 1 else "have"
    return f"{count(len(part))} of {plural(len(every), 'scenario')} {have} {which} {number}"


def not_summed(every: Sequence[str], part: Sequence[str]) -> str:
    """Scenarios that the sums leave out, since not all of their rows are the same."""
    out = [name for name in every if name not in set(part)]
    whose = "its" if len(out) == 1 else "their"
    return f"Not summed, since {whose} rows differ: {join(out)}." if out else ""


def strip_title(one: Strip) -> str:
    """``2,048 tokens, 1,867 shared: five hits, from 1,715 to 1,867``."""
    hits = sorted(row.hit for row in one.rows)
    head = f"{plural(one.prompt, 'token')}, {_counts(one.differences)} shared"
    if hits[-1] == 0:
        return f"{head}: no hit"
    if hits[0] == hits[-1]:
        if len(hits) == 1:
            return f"{head}: a hit of {count(hits[0])}"
        return f"{head}: {all_of(len(hits))} hit {count(hits[0])}"
    if one.prompt <= 120:
        return f"{head}: hits of {join(count(row.hit) for row in one.rows)}"
    return f"{head}: {number_word(len(hits))} hits, from {count(hits[0])} to {count(hits[-1])}"


def lanes_note(row: StripRow) -> str:
    """What a row's lanes mean where a group computes less or more than the hit says."""
    parts = []
    for group, lane in row.lanes.items():
        skipped = sum(each.tokens for each in lane if each.name == "unneeded")
        again = sum(each.tokens for each in lane if each.name == "recomputed")
        if skipped:
            kept = lane[-1].stop - skipped
            parts.append(f"{group} layers compute at most {count(kept)} positions, hit or not")
        if again:
            parts.append(f"{group} layers compute {count(again)} hit positions again")
    return f"{row.label}: {'; '.join(parts)}." if parts else ""


def evidence_note(rows: Sequence[StripRow]) -> str:
    """Which of these rows rest on rules that were not run; empty if all were."""
    weak = [f"{row.label} {row.evidence}" for row in rows if row.evidence != "ran"]
    return f"Rules not run upstream: {join(weak)}." if weak else ""


def waterfall_title(rows: Sequence[Total]) -> str:
    """``From shared prefix to saved compute: 96.1 % becomes 64.0 to 81.0 %``."""
    whole = compared(rows)
    shared = _shared(whole) if whole else "–"
    saved = _range([row.saved_ratio for row in whole])
    return f"From shared prefix to saved compute: {shared} % becomes {saved} %"


def ratio_title(rows: Sequence[Total], below: int, above: int) -> str:
    """What the scatter of hit against saved shows; ``below`` and ``above`` count the outliers."""
    whole = compared(rows)
    hits, saved = _range([r.hit_ratio for r in whole]), _range([r.saved_ratio for r in whole])
    head = f"{hits} % hit, {saved} % saved"
    if below and above:
        return f"{head}; {count(below)} below and {count(above)} above the band"
    if below or above:
        return f"{head}; {plural(below or above, 'mark')} {'below' if below else 'above'} the band"
    return f"{head}; every request lies in the band"


def pool_title(points: pd.DataFrame, pool_tokens: int | None, ceiling: float | None) -> str:
    """What a larger pool brings: from this run's pool (else the smallest) to the largest."""
    sizes = sorted({int(size) for size in points["pool_tokens"]})
    here = pool_tokens if pool_tokens in sizes[:-1] else sizes[0]
    best = points.groupby("pool_tokens")["hit_ratio"].max()
    first, last = percent(float(best.loc[here])), percent(float(best.loc[sizes[-1]]))
    times = sizes[-1] / here
    factor = f"{times:,.0f}" if times >= 2 else f"{times:.1f}"
    text = f"{factor} times the pool: {first} to {last} % hits"
    return text if ceiling is None else f"{text}; the ceiling is {percent(ceiling)} %"


def staircase_title(smallest: Sequence[int | None]) -> str:
    """``The smallest prompt that can hit has 2 to 65 tokens``."""
    known = sorted(number for number in smallest if number is not None)
    if not known:
        return "No prompt of these lengths can hit"
    text = f"The smallest prompt that can hit has {_counts(known)} tokens"
    return text if len(known) == len(smallest) else f"{text}; some rows cannot hit at all"


def block_title(
    request: str,
    before: Sequence[str],
    shared: int,
    write: int,
    copied: Sequence[tuple[int, int, int]],
) -> str:
    """``r3 shares 3 blocks with r1 and r2, copies 1 and writes from position 100``."""
    if not before and not copied:
        return f"{request} shares no block and writes from position {count(write)}"
    parts = []
    if before and shared:
        others = join(before) if len(before) <= 3 else f"{number_word(len(before))} others"
        parts.append(f"shares {plural(shared, 'block')} with {others}")
    if copied:
        parts.append(f"copies {plural(len(copied), 'block')}")
    return f"{request} {join([*parts, f'writes from position {count(write)}'])}"


def timeline_title(steps: pd.DataFrame) -> str:
    """``turn-3 is preempted at step 9; getting it back costs 27 tokens``, or what was computed."""
    lost = steps[steps["preempted"] != ""]
    if len(lost):
        name, step = str(lost["preempted"].iloc[0]).split(" ")[0], int(lost["step"].iloc[0])
        mine = steps[(steps["request"] == name) & (steps["step"] > step)]
        back = int(mine["again"].sum())
        if mine.empty:
            return f"{name} is preempted at step {step} and does not come back in these steps"
        return f"{name} is preempted at step {step}; getting it back costs {plural(back, 'token')}"
    served = steps[steps["request"] != ""]
    number = int(steps["step"].nunique())
    prompts = int(served.loc[~served["decode"], "tokens"].sum())
    hits = int(served["hit"].sum())
    requests = plural(int(served["request"].nunique()), "request")
    text = f"{requests} in {plural(number, 'step')}: {plural(prompts, 'token')} of prompts computed"
    return f"{text}, {count(hits)} hit"
