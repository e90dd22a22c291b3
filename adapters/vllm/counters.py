"""vLLM's own prefix-cache counters, under its own names (RULES 13; v1/metrics/stats.py)."""

from __future__ import annotations

from collections.abc import Mapping

from handoff.types import Handoff

from .answers import NOBODY

__all__ = ["counters"]


def counters(handoff: Handoff) -> Mapping[str, float]:
    """Tokens asked for and found at this admission; a request that skips the read adds nothing.

    Re-admissions after a preemption and external hits have counters of their own.
    """
    if handoff.matcher == NOBODY:
        return {}
    external = sum(handoff.external_tokens.values())
    kind = "preempted" if handoff.attempt else "prefix_cache"
    found: dict[str, float] = {
        f"{kind}_queries": handoff.known_tokens,
        f"{kind}_hits": handoff.hit_tokens - external,
    }
    if external:
        found["external_prefix_cache_hits"] = external
    return found
