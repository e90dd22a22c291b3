"""``handoff sweep``: the same requests with several pools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handoff import api
from handoff.experiment import RowSpec
from handoff.report.words import count, percent, plural

from .progress import say

__all__ = ["sweep_command"]


def sweep_command(
    source: str,
    pools: Sequence[int],
    *,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    extra: Sequence[RowSpec],
    limit: int | None,
    model: str,
    out: Path,
    as_json: bool,
) -> None:
    """Print hit ratios by pool with the best possible eviction and the ceiling; keep the figure."""
    found = api.sweep(
        source, pools, adapters=adapters, options=sets, rows=extra, limit=limit, model=model
    )
    points = found.to_pandas()
    if as_json:
        print(json.dumps(_facts(found), indent=2, sort_keys=True))
    else:
        _show(found, source)
    refused = {(run, size) for run in points["run"].unique() for size in found.best}
    refused -= set(zip(points["run"], points["pool_tokens"]))
    if refused:
        say(f"{plural(len(refused), 'point')} left out: some request was refused there")
    say(f"Wrote {', '.join(str(path) for path in found.write(out))}")


def _facts(found: api.Sweep) -> dict[str, Any]:
    return {
        "points": found.to_pandas().to_dict("records"),
        "best": {str(size): each._asdict() for size, each in found.best.items()},
        "ceiling": found.ceiling._asdict(),
    }


def _show(found: api.Sweep, source: str) -> None:
    """One line a pool, one column a row of the run."""
    points, ceiling = found.to_pandas(), found.ceiling
    print(
        f"{Path(source).name}: hit tokens in % of {count(ceiling.prompt_tokens)} prompt tokens;"
        f" an unlimited pool hits {percent(ceiling.hit_ratio)} %."
    )
    labels = list(dict.fromkeys(points["label"]))
    heads = ["pool, tokens", *labels, "best eviction"]
    print("  ".join(head.rjust(max(12, len(head))) for head in heads))
    for size, best in found.best.items():
        mine = points[points["pool_tokens"] == size].set_index("label")["hit_ratio"]
        ratios = [percent(float(mine[label])) if label in mine else "refused" for label in labels]
        cells = [count(size), *ratios, percent(best.hit_ratio)]
        print("  ".join(cell.rjust(max(12, len(head))) for cell, head in zip(cells, heads)))
    print("best eviction: knows the future; see handoff/optimum.py for what it assumes")
