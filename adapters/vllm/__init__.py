"""vLLM 0.32.0 (V1 engine) as a planner; evidence: upstream ran.

Rules come from ``v1/core/sched/scheduler.py``, ``async_scheduler.py``, ``request_queue.py``,
``v1/core/kv_cache_manager.py``, ``kv_cache_coordinator.py``, ``single_type_kv_cache_manager.py``,
``block_pool.py``, ``kv_cache_utils.py``, ``v1/kv_cache_interface.py``, ``v1/request.py``,
``config/cache.py`` and ``config/scheduler.py``; "RULES n" cites a section of the rule book that was
derived from them and checked by recordings of the pinned version. What is left out: ``LEFT_OUT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from handoff.adapter import Evidence, Options

from .options import VllmOptions

if TYPE_CHECKING:
    from handoff.conformance.recording import Recordings
    from handoff.types import Handoff

    from .engine import VllmEngine

__all__ = ["ADAPTER", "LEFT_OUT"]

LEFT_OUT = {
    "cross attention": "encoder-decoder models have no rows in the rule book",
    "encoder budget": "limits of the multimodal encoder are not modelled",
    "dynamic drafts": "the number of drafts is fixed per engine",
    "host offload tiers": "HiSparse and ring-buffer groups were not recorded",
    "Mamba with a connector": "no recording shows how states are loaded",
    "KV load failures": "a load that a connector announced always succeeds",
    "mamba_cache_mode": "only align mode caches prefixes; all and none are refused with caching on",
    "parallel scheduling": "pipeline and data parallel scheduling are not modelled",
    "pooling and structured output": "no grammar masks and no pooling models",
    "streaming sessions": "resumable requests are not modelled",
    "DCP with several groups": "decode context parallelism is modelled for one attention group",
}


class VllmAdapter:
    """The adapter's identity; engine and driver are imported when they are asked for."""

    name = "vllm"
    title = "vLLM"
    upstream = "0.32.0"
    evidence: Evidence = "ran"
    left_out: Mapping[str, str] = LEFT_OUT
    rules: Mapping[str, str] = {
        "alignment": "5",
        "not_stored": "7b",
        "evicted": "4",
        "isolation": "3",
        "disabled": "2",
    }
    """Sections behind losses that no handoff deducts."""
    options: type[Options] = VllmOptions

    def engine(self, options: Options) -> VllmEngine:
        from .engine import VllmEngine

        assert isinstance(options, VllmOptions)
        return VllmEngine(options)

    def budget(self, pool_tokens: int, options: Options) -> Mapping[str, Any]:
        """As many blocks as hold ``pool_tokens`` tokens, and the null block.

        Groups share the pool; with several the smallest block size counts.
        """
        assert isinstance(options, VllmOptions)
        size = min(group.block_size for group in options.cache_groups)
        size *= options.decode_context_parallel_size
        return {"num_gpu_blocks": max(pool_tokens // size, 1) + 1}

    def describe(self, options: Options) -> str:
        assert isinstance(options, VllmOptions)
        parts = [
            f"{group.type} {group.block_size}"
            if len(options.cache_groups) > 1
            else f"block {group.block_size}" + ("" if group.type == "full" else f" {group.type}")
            for group in options.cache_groups
        ]
        if options.speculative_method:
            parts.append(f"{options.speculative_method} {options.num_speculative_tokens}")
        if not options.enable_prefix_caching:
            parts.append("caching off")
        parts.append("async" if options.is_async else "sync")
        return ", ".join(parts)

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """What this admission adds to ``vllm:prefix_cache_queries`` and its kin."""
        from .counters import counters

        return counters(handoff)

    def recordings(self) -> Recordings:
        from .driver import RECORDINGS

        return RECORDINGS


ADAPTER = VllmAdapter()
