"""Sentences about how far a run's numbers can be trusted: approximations, truth test, content tags.

Labels are those of the rows that are given; where none are, the ledger's names stand.
"""

from __future__ import annotations

from collections.abc import Sequence

from .info import RunInfo, Truth
from .totals import Total
from .words import count, join, plural

__all__ = ["approximations", "planted", "tags", "truth"]


def approximations(rows: Sequence[Total], info: RunInfo) -> str:
    """What ``†`` means: which hits are no KV of a cold run, why, and the measured error."""
    parts = []
    for row in rows:
        if not row.approximate:
            continue
        why = []
        if row.moved:
            why.append(f"{plural(row.moved, 'token')} moved to other positions")
        elif row.tainted:
            why.append(f"{plural(row.tainted, 'token')} of another context")
        if row.unsound:
            rules = "rule" if len(row.unsound) == 1 else "rules"
            why.append(f"{rules} {join(row.unsound)} of docs/rules/{row.adapter}.md")
        parts.append(f"{row.label} ({', '.join([*why, _error(row, info)])})")
    if not parts:
        return ""
    return f"† Reuses KV that a cold run would not hold, an approximation: {'; '.join(parts)}."


def _error(row: Total, info: RunInfo) -> str:
    tested = info.row(row.run).truth
    if tested is None:
        return "not executed"
    if not tested.approximate_rows:
        return "no logits behind it compared"
    number = plural(tested.approximate_rows, "row")
    return (
        f"{number} of logits off by up to {tested.approximate_max_error:.2g} of the largest logit"
    )


def truth(info: RunInfo, rows: Sequence[Total] = ()) -> str:
    """The word of the truth test over all rows; empty if nothing was executed.

    ``rows`` give the labels of what is named.
    """
    names = {row.run: row.label for row in rows}
    tested = [
        (names.get(row.run, row.run), row.truth) for row in info.rows if row.truth is not None
    ]
    if not tested:
        return "" if info.executed else "Planned only: no step of this run was executed."
    worst = max(each.max_error for _, each in tested)
    number = sum(each.rows for _, each in tested)
    first = tested[0][1]
    bad = [run for run, each in tested if not each.ok]
    if bad:
        return (
            f"Truth test FAILED for {'; '.join(bad)}: largest error {worst:.1e} of the largest"
            f" logit, allowed {first.tolerance:.0e}."
        )
    return (
        f"Truth test: {plural(number, 'row')} of logits equal a cold recompute ({first.dtype},"
        f" largest error {worst:.1e} of the largest logit, allowed {first.tolerance:.0e})."
        + _approximate(tested)
    )


def _approximate(tested: Sequence[tuple[str, Truth]]) -> str:
    """What rows behind an approximation cost, beside the exact ones; empty if there are none."""
    found = [(run, each) for run, each in tested if each.approximate_rows]
    if not found:
        return ""
    rows = sum(each.approximate_rows for _, each in found)
    worst = max(each.approximate_max_error for _, each in found)
    labels = "; ".join(run for run, _ in found)
    return (
        f" Apart from them {plural(rows, 'row')} behind an approximation ({labels}) are off the"
        f" untruncated model by up to {worst:.2g} of the largest logit."
    )


def tags(info: RunInfo, rows: Sequence[Total] = ()) -> str:
    """The word of the tag pass over all rows; empty if it did not run.

    ``rows`` give the labels of what is named.
    """
    names = {row.run: row.label for row in rows}
    seen = [(names.get(row.run, row.run), row.tags) for row in info.rows if row.tags is not None]
    if not seen:
        return ""
    steps = sum(each.steps for _, each in seen)
    faults = sum(each.faults for _, each in seen)
    tainted = [f"{run} {count(each.tainted)}" for run, each in seen if each.tainted]
    text = f"Content tags: {plural(steps, 'step')} checked, {plural(faults, 'fault')}"
    if tainted:
        text += f"; tokens reused that descend from an approximation: {'; '.join(tainted)}"
    return f"{text}."


def planted(info: RunInfo) -> str:
    """How many planted handoff faults were caught; empty if none were planted."""
    if info.planted is None:
        return ""
    caught, number = info.planted
    return f"{count(caught)} of {plural(number, 'planted fault')} caught."
