"""TensorRT-LLM: the V1 block manager and the PyTorch path's schedulers.

Pinned: ``kvCacheManager.cpp/.h`` of athena-nv/TensorRT-LLM @ 64b4773ab01e (a fork following main,
mid 2026; tests @ c9310fec2186); ``templatedTrie.h``, ``blockKey``, ``evictionPolicy.cpp``,
``llmRequest.h``, ``kvCacheRetentionConfig``, ``scheduler.py`` and ``resource_manager.py`` of
NVIDIA/TensorRT-LLM at the commits named in the rule book. V2 facts from its unit tests.

Evidence: transcribed. The recordings come from a transcription of the upstream functions that ran,
and from upstream's own unit tests; no upstream binary ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from handoff.adapter import Engine, Evidence
from handoff.adapter import Options as BaseOptions

from .options import Options, describe

if TYPE_CHECKING:
    from handoff.conformance.recording import Recordings
    from handoff.types import Handoff

__all__ = ["ADAPTER"]


class _Adapter:
    """The plugin object; engine and driver are imported when they are asked for."""

    name = "tensorrt_llm"
    title = "TensorRT-LLM"
    upstream = "64b4773"
    evidence: Evidence = "transcribed"
    left_out: Mapping[str, str] = MappingProxyType(
        {
            "use_kv_cache_manager_v2": "V2 is modelled as look-up facts of its unit tests only",
            "MAX_UTILIZATION": "pausing requests is not in the recordings; only its need is",
            "STATIC_BATCH": "not in the recordings",
            "drafts beside uneven windows": "rewinding would drop blocks in use (rule 11b)",
            "beam search": "beams reorder; their blocks are modelled, a run refuses them",
            "C++ runtime": "it also stores each filled decode block; the PyTorch path does not",
            "KV connector, disaggregated serving": "remote blocks are not in the recordings",
            "linear attention and Mamba hybrids": "their snapshots are not in the recordings",
            "overlap scheduler": "its extra step is not in the recordings",
        }
    )
    rules: Mapping[str, str] = MappingProxyType(
        {
            "alignment": "4",
            "not_stored": "11b",
            "evicted": "6",
            "isolation": "2",
            "disabled": "1",
        }
    )
    """Sections of the rule book for losses that the ledger finds itself."""
    options: type[BaseOptions] = Options

    def engine(self, options: BaseOptions) -> Engine:
        """A fresh engine with empty caches."""
        from .engine import Engine as TensorRTEngine

        assert isinstance(options, Options)
        return TensorRTEngine(options)

    def budget(self, pool_tokens: int, options: BaseOptions) -> Mapping[str, Any]:
        """The primary pool of every window gets ``pool_tokens // tokens_per_block`` blocks."""
        assert isinstance(options, Options)
        return {"blocks_in_primary_pool": pool_tokens // options.tokens_per_block}

    def describe(self, options: BaseOptions) -> str:
        """The options that shape a hit, in a few words."""
        assert isinstance(options, Options)
        return describe(options)

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """What this admission adds to the framework's own counters."""
        from .counters import counters

        return counters(handoff)

    def recordings(self) -> Recordings:
        """How the conformance recordings are replayed."""
        from .driver import RECORDINGS

        return RECORDINGS


ADAPTER = _Adapter()
