"""TensorRT-LLM's own KV-cache statistics, in blocks (RULES 5)."""

from __future__ import annotations

from collections.abc import Mapping

from handoff.types import NULL, Handoff

__all__ = ["counters"]


def counters(handoff: Handoff) -> Mapping[str, float]:
    """Blocks over all windows: copied and taken-over ones count as reused, new ones as missed."""
    reused = missed = 0
    for answer in handoff.groups:
        held = len(answer.table) - list(answer.table).count(NULL)
        holes = list(answer.table[: answer.fresh]).count(NULL)
        found = answer.fresh - holes + len(answer.copied) + (answer.taken > 0)
        reused += found
        missed += held - found
    return {"reusedBlocks": reused, "missedBlocks": missed}
