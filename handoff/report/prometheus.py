"""A run's counters as Prometheus text, under the names the servers themselves export.

Only what a server really exports under that name and what the ledger holds exactly is written;
everything is also there as ``handoff_*`` for every row, so that rows can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pandas as pd

from .palette import LOSSES
from .totals import Total, totals

__all__ = ["prometheus"]


class _Metric(NamedTuple):
    """A metric of one framework: name, type, help, and how to read it from a row's sums."""

    name: str
    kind: str
    words: str
    read: Callable[[Total], float | None]


_UPSTREAM: dict[str, tuple[_Metric, ...]] = {
    "vllm": (
        _Metric(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prefix cache queries, in tokens.",
            lambda row: row.prompt,
        ),
        _Metric(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in tokens.",
            lambda row: row.hit,
        ),
        _Metric(
            "vllm:prompt_tokens_cached_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row: row.hit,
        ),
    ),
    "sglang": (
        _Metric(
            "sglang:cached_tokens_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row: row.hit,
        ),
        _Metric(
            "sglang:cache_hit_rate",
            "gauge",
            "Cached tokens by prompt tokens, over all requests.",
            lambda row: row.hit_ratio,
        ),
    ),
    "tensorrt_llm": (
        _Metric(
            "trtllm_prompt_cached_tokens_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row: row.hit,
        ),
    ),
}

_OURS = (
    _Metric("handoff_prompt_tokens_total", "counter", "Prompt tokens.", lambda row: row.prompt),
    _Metric(
        "handoff_shared_tokens_total",
        "counter",
        "Prompt tokens that had been computed before.",
        lambda row: row.shared,
    ),
    _Metric(
        "handoff_hit_tokens_total",
        "counter",
        "Hit tokens as the framework reports them.",
        lambda row: row.hit,
    ),
    _Metric(
        "handoff_computed_tokens_total",
        "counter",
        "Prompt tokens computed for the first time.",
        lambda row: row.computed,
    ),
    _Metric(
        "handoff_recomputed_tokens_total",
        "counter",
        "Tokens computed again after a preemption.",
        lambda row: row.recomputed,
    ),
    _Metric(
        "handoff_cold_flops_total",
        "counter",
        "FLOPs of cold prefills.",
        lambda row: row.cold_flops,
    ),
    _Metric(
        "handoff_saved_flops_total",
        "counter",
        "FLOPs that hits made unnecessary.",
        lambda row: row.saved_flops,
    ),
    _Metric("handoff_requests_total", "counter", "Requests served.", lambda row: row.requests),
    _Metric("handoff_refused_total", "counter", "Requests refused.", lambda row: row.refused),
    _Metric(
        "handoff_preemptions_total",
        "counter",
        "Re-admissions after a preemption.",
        lambda row: row.again,
    ),
)


def prometheus(frame: pd.DataFrame) -> str:
    """The text exposition of a ledger; samples carry the labels ``run`` and ``scenario``."""
    rows = [
        (str(scenario), row)
        for scenario in frame["scenario"].drop_duplicates()
        for row in totals(frame, str(scenario))
    ]
    lines: list[str] = []
    for adapter, metrics in _UPSTREAM.items():
        mine = [(scenario, row) for scenario, row in rows if row.adapter == adapter]
        for metric in metrics:
            lines += _metric(metric, mine)
    for metric in _OURS:
        lines += _metric(metric, rows)
    lines += _losses(rows)
    return "\n".join(lines) + "\n"


def _metric(metric: _Metric, rows: Iterable[tuple[str, Total]]) -> list[str]:
    samples = [
        f"{metric.name}{_label_set(run=row.run, scenario=scenario)} {_number(value)}"
        for scenario, row in rows
        if (value := metric.read(row)) is not None
    ]
    if not samples:
        return []
    return [*_head(metric.name, metric.kind, metric.words), *samples]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _losses(rows: Iterable[tuple[str, Total]]) -> list[str]:
    name = "handoff_lost_tokens_total"
    lines = _head(name, "counter", "Shared prompt tokens that were not reused, by reason.")
    for scenario, row in rows:
        for reason in LOSSES:
            at = _label_set(run=row.run, scenario=scenario, reason=reason)
            lines.append(f"{name}{at} {row.lost[reason]}")
    return lines


def _label_set(**values: str) -> str:
    parts = []
    for name, value in values.items():
        text = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        parts.append(f'{name}="{text}"')
    return "{" + ",".join(parts) + "}"
