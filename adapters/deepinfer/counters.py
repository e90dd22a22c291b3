"""DeepInfer's own caching rate: cached / (batched + cached) over prefill steps (RULES 12)."""

from __future__ import annotations

from collections.abc import Mapping

from handoff.types import Handoff

__all__ = ["counters"]


def counters(handoff: Handoff) -> Mapping[str, float]:
    """The numerator is always 0: an injected hit is no cached token to the scheduler."""
    return {"batched": handoff.known_tokens - handoff.start, "cached": 0}
