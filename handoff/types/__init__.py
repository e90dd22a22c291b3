"""The records that flow from stage to stage; the specification is docs/records.md.

Data flows in one direction: ``Request`` -> engine -> ``Step`` -> executor, and ``Handoff`` and
``Event`` -> ledger. Nothing here knows a framework.
"""

from .answers import REASONS, Deduction, GroupAnswer, GroupMatch, Handoff, Match
from .layout import NULL, Group, Layer, Layout, Pool
from .ops import Bind, Close, Copy, Cut, Load, Op, Open, Shift, Zero
from .request import Image, Request
from .step import (
    EVENT_KINDS,
    FOLLOW,
    Event,
    Row,
    RowResult,
    Spans,
    StateUse,
    Step,
    StepResult,
)

__all__ = [
    "EVENT_KINDS",
    "FOLLOW",
    "NULL",
    "REASONS",
    "Bind",
    "Close",
    "Copy",
    "Cut",
    "Deduction",
    "Event",
    "Group",
    "GroupAnswer",
    "GroupMatch",
    "Handoff",
    "Image",
    "Layer",
    "Layout",
    "Load",
    "Match",
    "Op",
    "Open",
    "Pool",
    "Request",
    "Row",
    "RowResult",
    "Shift",
    "Spans",
    "StateUse",
    "Step",
    "StepResult",
    "Zero",
]
