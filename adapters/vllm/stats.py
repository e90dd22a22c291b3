"""Upstream's own counters: prefix-cache statistics and PrefillStats (RULES 13; v1/metrics/)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PrefillStats", "PrefixCacheStats", "Stats"]


@dataclass(slots=True)
class PrefixCacheStats:
    """Counted at each successful admission that looked up: ``queries`` and ``hits`` in tokens."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, known: int, hit: int, *, preempted: bool) -> None:
        """One admission; preempted requests have counters of their own."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += known
            self.preempted_hits += hit
        else:
            self.requests += 1
            self.queries += known
            self.hits += hit

    def as_list(self) -> list[int]:
        """The six counters in upstream's order."""
        return [
            self.requests,
            self.queries,
            self.hits,
            self.preempted_requests,
            self.preempted_queries,
            self.preempted_hits,
        ]


@dataclass(slots=True)
class PrefillStats:
    """A request's first admission, as its first output reports it."""

    prompt: int
    local: int
    external: int
    start: int
    """First computed position."""
    created: int = 0

    def as_list(self) -> list[int]:
        """Prompt, computed, cached, local, external and created tokens."""
        cached = self.local + self.external
        return [self.prompt, self.prompt - cached, cached, self.local, self.external, self.created]


@dataclass(slots=True)
class Stats:
    """All counters of an engine."""

    prefix_cache: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    prefill: dict[str, PrefillStats] = field(default_factory=dict)
    """By request, from the first output on."""
