"""SGLang 0.5.23: a radix tree over token ids, and the scheduler in front of it.

Pinned: PyPI wheel ``sglang`` 0.5.23. Rules from its Python sources and from its own classes, run
with the model replaced by given tokens (evidence: ran upstream): ``managers/scheduler.py``,
``managers/schedule_policy.py``, ``managers/schedule_batch.py``,
``mem_cache/unified_radix_cache.py``, ``mem_cache/unified_cache/``, ``mem_cache/allocator/``,
``mem_cache/evict_policy.py``, ``mem_cache/radix_cache.py`` (``PureSWARadixCache``). The rule book
is docs/rules/sglang.md; "rule 2.5" in this package is point 5 of its section 2. What is left out
is listed in ``LEFT_OUT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from handoff.adapter import Options as AnyOptions
    from handoff.conformance.recording import Recordings
    from handoff.types import Handoff

    from .engine import Engine
    from .options import Options

__all__ = ["ADAPTER"]

LEFT_OUT = {
    "speculative top-k above 1": "draft trees need a tree mask",
    "overlap with drafts": "not recorded: set disable_overlap_schedule for speculative_num_steps",
    "drafts with states": "states of rejected drafts need the extra buffer",
    "a last request that outgrows the pool": "not recorded: refused when it is submitted",
    "mamba extra buffer": "states at grid positions were read, not run",
    "DeepSeek V4 pools": "compressed KV; the request window is a plain ring (attention swa_ring)",
    "HiCache storage tier": "L3, buffer_only, linkers, LMCache, FlexKV",
    "HiCache copy times": "a copy is acknowledged at the next scheduling step, as recorded",
    "HiCache with states": "nor with rings; only full and hybrid-window trees are in the rule book",
    "session radix cache": "falls back to another tree core",
    "data, tensor, pipeline, context parallelism": "one rank",
    "PD disaggregation": "another process owns the prefill",
    "routing-key and random queue order": "needs a router, or a random source",
    "multimodal pad values": "content ids of the request stand for them",
}


class Adapter:
    """The plugin object; imports its parts when they are needed."""

    name = "sglang"
    title = "SGLang"
    upstream = "0.5.23"
    evidence: Literal["ran"] = "ran"
    left_out: Mapping[str, str] = LEFT_OUT
    rules: Mapping[str, str] = {
        "alignment": "2.2",
        "not_stored": "3",
        "evicted": "6",
        "isolation": "6",
        "disabled": "11",
    }
    """Sections behind losses that no handoff deducts."""

    @property
    def options(self) -> type[Options]:
        """The option model."""
        from .options import Options

        return Options

    def engine(self, options: AnyOptions) -> Engine:
        """A fresh engine with empty caches."""
        from .engine import Engine
        from .options import Options

        return Engine(cast(Options, options))

    def budget(self, pool_tokens: int, options: AnyOptions) -> Mapping[str, Any]:
        """``pool_tokens`` slots, in whole pages."""
        from .options import Options

        page = cast(Options, options).page_size
        return {"max_total_tokens": pool_tokens // page * page}

    def describe(self, options: AnyOptions) -> str:
        """The options that shape a hit."""
        from .options import Options

        chosen = cast(Options, options)
        parts = [f"page {chosen.page_size}"]
        if chosen.attention != "full":
            window = chosen.sliding_window_size
            parts.append(chosen.attention + (f" {window}" if window else ""))
        if chosen.speculative_algorithm:
            parts.append(chosen.speculative_algorithm)
        if chosen.enable_hierarchical_cache:
            parts.append(f"HiCache {chosen.hicache_write_policy}")
        if chosen.disable_radix_cache:
            parts.append("radix cache off")
        return ", ".join(parts)

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """Upstream's log line counts every admission, the usage report only the first (rule 4)."""
        hit = handoff.hit_tokens
        return {
            "log_hit_tokens": hit,
            "log_input_tokens": handoff.known_tokens - hit,
            "cached_tokens": hit if handoff.attempt == 0 else 0,
        }

    def recordings(self) -> Recordings:
        """How its conformance recordings are replayed."""
        from .driver import RECORDINGS

        return RECORDINGS


ADAPTER = Adapter()
