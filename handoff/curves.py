"""Hit ratios over pool sizes and prompt lengths: the points of pool curve and staircase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapter import load, make_options
from .errors import BadInput
from .experiment import RowSpec
from .session import Result, RunPlan, execute
from .types import Request

if TYPE_CHECKING:
    import pandas as pd

    from .adapter import Options
    from .explain.formula import Twice

__all__ = ["requests_of", "stair_points", "sweep_points"]

LENGTHS = 128
"""Prompt lengths of a staircase where none are given."""

JUMPS = 24
"""Stairs of a row whose edges are found exactly; finer staircases show only the first one's."""


def requests_of(source: str, limit: int | None = None) -> list[Request]:
    """The requests of a scenario or a Mooncake-format trace in the order of their arrival."""
    from .workload.mooncake import read_mooncake
    from .workload.scenario import load_scenario

    if source == "-" or Path(source).name.endswith((".jsonl", ".jsonl.gz", ".json", ".gz")):
        return list(read_mooncake(Path(source), limit))
    arrivals = load_scenario(source).arrivals()
    return [arrival.request for arrival in arrivals if arrival.request is not None]


def sweep_points(plan: RunPlan, pools: Sequence[int]) -> tuple[pd.DataFrame, list[Result]]:
    """The points of ``pool_points`` for each pool, and the run behind each; nothing is executed.

    A row that refuses a request at some size has no point there: its ratio would be one of other
    requests. Raises ``BadInput`` for less than two sizes.
    """
    from dataclasses import replace

    from .report.figures import pool_points

    sizes = sorted(set(pools))
    if len(sizes) < 2:
        raise BadInput("a sweep needs at least two pool sizes")
    found = {}
    runs = []
    for size in sizes:
        result = execute(replace(plan, pool_tokens=size, execute=False))
        runs.append(result)
        frame = result.ledger.to_pandas()
        refusing = frame.loc[frame["status"].str.startswith("refused"), "run"].unique()
        frame = frame[~frame["run"].isin(refusing)]
        if len(frame):
            found[size] = frame
    return pool_points(found), runs


def stair_points(rows: Sequence[RowSpec], lengths: Sequence[int]) -> pd.DataFrame:
    """What a prompt of each length hits when it is sent twice to an empty pool.

    Beside ``lengths`` each row has the lengths where its hit jumps: all of them if they are few,
    else the first, which is the smallest prompt that can hit. Columns run, adapter, label,
    prompt_tokens, hit_tokens; a length that the engine refuses has no line.
    """
    import pandas as pd

    from .explain.formula import Twice
    from .report.totals import label

    points = []
    for row in rows:
        adapter = load(row.adapter)
        title = label(row.label, adapter.name, adapter.title)
        twice = Twice(adapter, _options(row))
        for length, hit in _with_jumps(twice, lengths):
            points.append((row.label, adapter.name, title, length, hit))
    columns = ["run", "adapter", "label", "prompt_tokens", "hit_tokens"]
    return pd.DataFrame(points, columns=columns)


def _with_jumps(twice: Twice, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(length, hit) of the lengths and of those where the hit jumps, ascending."""
    found = {n: hit for n in sorted({1, *lengths}) if (hit := twice.hit(n)) is not None}
    jumps = [(a, b) for a, b in pairwise(found) if found[a] != found[b]]
    for low, high in jumps if len(jumps) <= JUMPS else jumps[:1]:
        while high - low > 1:  # the hit at ``low`` is that of the lower stair, at ``high`` not
            middle = (low + high) // 2
            hit = twice.hit(middle)
            if hit is not None:
                found[middle] = hit
            low, high = (middle, high) if hit in (None, found[low]) else (low, middle)
    return sorted(found.items())


def _options(row: RowSpec) -> Any:
    adapter = load(row.adapter)

    def options(tokens: int) -> Options:
        values: Mapping[str, Any] = row.values
        budget = adapter.budget(tokens, make_options(adapter, values))
        return make_options(adapter, {**budget, **values})

    return options


def lengths_to(longest: int) -> list[int]:
    """At most ``LENGTHS`` prompt lengths, evenly spread, up to ``longest``."""
    step = max(1, -(-longest // LENGTHS))
    return list(range(step, longest + 1, step))
