"""A run's counters as Prometheus text, under the names the servers themselves export.

Only what a server really exports under that name and what the ledger holds exactly is written;
everything is also there as ``handoff_*`` for every row, so that rows can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pandas as pd

from .palette import LOSSES
from .totals import Total, own_counters, scenario_names, totals

__all__ = ["prometheus"]


Own = Mapping[str, float]
"""A row's sums of the framework's own counters, by their names in the ledger."""


class _Metric(NamedTuple):
    """A metric: name, type, help, and how to read it from a row; ``None`` leaves it out.

    What a framework counts in its own way (vLLM: neither external hits nor reads that a request
    skips) comes from its own counters.
    """

    name: str
    kind: str
    words: str
    read: Callable[[Total, Own], float | None]


_UPSTREAM: dict[str, tuple[_Metric, ...]] = {
    "vllm": (
        _Metric(
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prefix cache queries, in tokens.",
            lambda row, own: own.get("prefix_cache_queries"),
        ),
        _Metric(
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in tokens.",
            lambda row, own: own.get("prefix_cache_hits"),
        ),
        _Metric(
            "vllm:prompt_tokens_cached_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row, own: row.hit,
        ),
    ),
    "sglang": (
        _Metric(
            "sglang:cached_tokens_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row, own: row.hit,
        ),
        _Metric(
            "sglang:cache_hit_rate",
            "gauge",
            "Cached tokens by prompt tokens, over all requests.",
            lambda row, own: row.hit_ratio,
        ),
    ),
    "tensorrt_llm": (
        _Metric(
            "trtllm_prompt_cached_tokens_total",
            "counter",
            "Prompt tokens served from cache.",
            lambda row, own: row.hit,
        ),
    ),
}

_OURS = (
    _Metric(
        "handoff_prompt_tokens_total", "counter", "Prompt tokens.", lambda row, own: row.prompt
    ),
    _Metric(
        "handoff_shared_tokens_total",
        "counter",
        "Prompt tokens that had been computed before.",
        lambda row, own: row.shared,
    ),
    _Metric(
        "handoff_hit_tokens_total",
        "counter",
        "Hit tokens as the framework reports them.",
        lambda row, own: row.hit,
    ),
    _Metric(
        "handoff_computed_tokens_total",
        "counter",
        "Prompt tokens computed for the first time.",
        lambda row, own: row.computed,
    ),
    _Metric(
        "handoff_recomputed_tokens_total",
        "counter",
        "Tokens computed again after a preemption.",
        lambda row, own: row.recomputed,
    ),
    _Metric(
        "handoff_cold_flops_total",
        "counter",
        "FLOPs of cold prefills.",
        lambda row, own: row.cold_flops,
    ),
    _Metric(
        "handoff_saved_flops_total",
        "counter",
        "FLOPs that hits made unnecessary.",
        lambda row, own: row.saved_flops,
    ),
    _Metric("handoff_requests_total", "counter", "Requests served.", lambda row, own: row.requests),
    _Metric("handoff_refused_total", "counter", "Requests refused.", lambda row, own: row.refused),
    _Metric(
        "handoff_preemptions_total",
        "counter",
        "Re-admissions after a preemption.",
        lambda row, own: row.again,
    ),
)


_Sample = tuple[str, Total, Own]
"""Scenario, row, and the row's own counters in it."""


def prometheus(frame: pd.DataFrame) -> str:
    """The text exposition of a ledger; samples carry the labels ``run`` and ``scenario``."""
    rows: list[_Sample] = []
    for name in scenario_names(frame):
        counters = own_counters(frame[frame["scenario"] == name])
        for row in totals(frame, name):
            own = {key: value for (run, key), value in counters.items() if run == row.run}
            rows.append((name, row, own))
    lines: list[str] = []
    for adapter, metrics in _UPSTREAM.items():
        mine = [sample for sample in rows if sample[1].adapter == adapter]
        for metric in metrics:
            lines += _metric(metric, mine)
    for metric in _OURS:
        lines += _metric(metric, rows)
    lines += _losses(rows)
    return "\n".join(lines) + "\n"


def _metric(metric: _Metric, rows: Iterable[_Sample]) -> list[str]:
    samples = [
        f"{metric.name}{_label_set(run=row.run, scenario=scenario)} {_number(value)}"
        for scenario, row, own in rows
        if (value := metric.read(row, own)) is not None
    ]
    if not samples:
        return []
    return [*_head(metric.name, metric.kind, metric.words), *samples]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]


def _losses(rows: Iterable[_Sample]) -> list[str]:
    name = "handoff_lost_tokens_total"
    lines = _head(name, "counter", "Shared prompt tokens that were not reused, by reason.")
    for scenario, row, _ in rows:
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
