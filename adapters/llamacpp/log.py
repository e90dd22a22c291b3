"""The server's own log, from which recordings were read, and the events its lines stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["EVENTS", "Line", "f3"]


class Line(NamedTuple):
    """One line of the log: what happened, to which slot and request, with which numbers."""

    what: str
    slot: int | None
    numbers: tuple[Any, ...] = ()
    request: str | None = None


EVENTS: Mapping[str, tuple[str, str]] = {
    "pc_load": ("onboard", "8.2"),
    "pc_obs": ("evict", "8.1"),
    "pc_room": ("evict", "8.1"),
    "pc_size": ("evict", "8.3"),
    "pc_tok": ("evict", "8.3"),
    "clear": ("evict", "10"),
    "lora": ("evict", "10"),
    "ck+": ("checkpoint", "5.2"),
    "ck<": ("checkpoint", "5.3"),
    "ck-inv": ("checkpoint", "3.8"),
    "ck-old": ("checkpoint", "5.2"),
    "ck-near": ("checkpoint", "5.2"),
    "ck-dup": ("checkpoint", "5.2"),
    "reset": ("warn", "3.7"),
    "ctxshift": ("warn", "10"),
    "error": ("refuse", "10"),
}
"""Log lines that are events of the ledger, with the rule they follow."""


def f3(value: float) -> float:
    """A number as the log prints it: three decimals."""
    return float(f"{value:.3f}")
