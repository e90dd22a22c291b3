"""All figures by name; each takes a DataFrame and returns a ``Picture`` to save or show.

>>> from handoff.report import figures
>>> sorted(name for name in figures.__all__ if name[0].islower())[:3]
['block_map', 'hit_vs_saved', 'pool_curve']
"""

from __future__ import annotations

from .canvas import Picture
from .figure_blocks import block_map
from .figure_curves import pool_curve, pool_points, staircase
from .figure_ratio import hit_vs_saved
from .figure_ratio import waterfall_figure as waterfall
from .figure_steps import timeline
from .figure_strip import strip_figure as strip

__all__ = [
    "Picture",
    "block_map",
    "hit_vs_saved",
    "pool_curve",
    "pool_points",
    "staircase",
    "strip",
    "timeline",
    "waterfall",
]
