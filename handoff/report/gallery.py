"""Which figures a report shows: those that its data allow, drawn when asked for, once a theme."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pandas as pd

from . import findings
from .canvas import Picture
from .content import Content
from .figure_blocks import block_map, tables_of
from .figure_curves import pool_curve, staircase
from .figure_ratio import hit_vs_saved, waterfall_figure
from .figure_steps import timeline
from .figure_strip import draw_strip
from .palette import Theme
from .totals import label

__all__ = ["gallery"]

Draw = Callable[[Theme], Picture]


def gallery(
    frame: pd.DataFrame,
    content: Content,
    *,
    steps: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    stairs: pd.DataFrame | None = None,
) -> dict[str, Draw]:
    """Name -> how to draw it, in the order of the report; a figure without data is left out."""
    found: dict[str, Draw] = {}
    info = content.info
    if content.whole.strip is not None:
        found["strip"] = partial(draw_strip, content.whole.strip)
    if content.falls:
        words = findings.window(content.whole.rows, info, content.whole.facts)
        found["waterfall"] = partial(waterfall_figure, frame, window=words)
        found["hit_vs_saved"] = partial(hit_vs_saved, frame)
    if pools is not None:
        curve = partial(pool_curve, pools, pool_tokens=_pool(content))
        found["pool_curve"] = partial(curve, bytes_per_token=info.kv_bytes_per_token)
    if stairs is not None:
        found["staircase"] = partial(staircase, stairs)
    if steps is not None and len(steps):
        found["timeline"] = partial(_timeline, frame, steps)
    place = _block_place(frame, content)
    if place is not None:
        found["block_map"] = partial(block_map, frame, *place)
    return {name: cache(draw) for name, draw in found.items()}


def _pool(content: Content) -> int | None:
    """The one pool of all rows, if it is one."""
    sizes = {content.info.row(row.run).pool_tokens for row in content.whole.rows}
    return sizes.pop() if len(sizes) == 1 else None


def _timeline(frame: pd.DataFrame, steps: pd.DataFrame, theme: Theme) -> Picture:
    """The timeline of the first preemption, else of the first row and scenario logged."""
    lost = steps[steps["preempted"] != ""]
    first = (lost if len(lost) else steps).iloc[0]
    mine = steps[(steps["run"] == first["run"]) & (steps["scenario"] == first["scenario"])]
    row = frame[frame["run"] == first["run"]].iloc[0]
    name = label(str(first["run"]), str(row["adapter"]), str(row["title"]))
    return timeline(mine, theme, title=f"{name}, {first['scenario']}")


def _block_place(frame: pd.DataFrame, content: Content) -> tuple[str, str, str] | None:
    """(scenario, row, request) of the block map: the strip's request, preferably with a copy."""
    one = content.whole.strip
    if one is None:
        return None
    best: tuple[int, tuple[str, str, str]] | None = None
    for row in one.rows:
        for table in tables_of(frame, one.scenario, row.run):
            if table.request == one.request and table.ids:
                score = 2 * bool(table.copied) + bool(table.fresh)
                if best is None or score > best[0]:
                    best = (score, (one.scenario, row.run, one.request))
    return best[1] if best else None
