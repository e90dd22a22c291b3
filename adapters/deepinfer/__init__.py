"""DeepInfer: an engine without a prefix cache that takes hits as a number.

Pinned: DeepInfer 0.1.0 (PyPI sdist). Evidence: upstream's C++ engine part ran and was recorded.
Rules from csrc/engine/{scheduler,sequence,block_manager,mtp_varlen,flops_estimator}.hpp,
csrc/engine/zos.cpp, csrc/engine/input_metadata/*.cpp; read only: deepinfer/engine/llm_engine.py,
worker/{worker,cache_engine}.py. Left out: see ``LEFT_OUT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from handoff import adapter

from .options import Options

if TYPE_CHECKING:
    from handoff.conformance.recording import Recordings
    from handoff.types import Handoff

    from .engine import DeepInferEngine

__all__ = ["ADAPTER", "DeepInfer", "LEFT_OUT"]

LEFT_OUT = {
    "COMPLETION engine and P/D transfer": "decode-only engines get their prompts from another one",
    "data parallelism": "ranks vote on the step type; one rank is modelled",
    "structured output": "grammar states and their preemption rule",
    "prompt log-probabilities": "they switch truncation off and forbid forks",
    "tie order beyond 16 decoding sequences": "upstream sorts with an unstable sort",
    "GPU correction of asynchronous variable-length rows": "a GPU kernel restates them",
    "compressed slots in the executor": "ratios are counted in tables and FLOPs, not executed",
}


class DeepInfer:
    """The adapter object."""

    name = "deepinfer"
    title = "DeepInfer"
    upstream = "0.1.0"
    evidence: adapter.Evidence = "ran"
    left_out: Mapping[str, str] = LEFT_OUT
    rules: Mapping[str, str] = {
        "alignment": "9.3",
        "not_stored": "9.6",
        "evicted": "9.6",
        "isolation": "1",
        "disabled": "1",
    }
    """Rules behind losses that no handoff deducts."""
    options: type[adapter.Options] = Options

    def engine(self, options: adapter.Options) -> DeepInferEngine:
        """A fresh engine with an empty pool and an empty outside store."""
        from .engine import DeepInferEngine

        assert isinstance(options, Options)
        options.check_served()
        return DeepInferEngine(options)

    def budget(self, pool_tokens: int, options: adapter.Options) -> Mapping[str, Any]:
        """Blocks on the device and the same number of tokens in the outside store."""
        assert isinstance(options, Options)
        blocks = pool_tokens // options.block_size
        return {"num_blocks": max(2, blocks), "outside_tokens": pool_tokens}

    def describe(self, options: adapter.Options) -> str:
        """What shapes a hit."""
        assert isinstance(options, Options)
        parts = [f"block {options.block_size}", f"outside {options.outside_policy}"]
        if options.outside_policy != "none":
            parts.append(f"grain {options.outside_grain}")
        if options.truncates:
            parts.append(f"{options.yoco_prefill_truncation_mode} keep {options.keep}")
        if options.drafts:
            parts.append(f"MTP {options.drafts}")
        return ", ".join(parts)

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """What this admission adds to the framework's own counters."""
        from .counters import counters

        return counters(handoff)

    def recordings(self) -> Recordings:
        """How the recordings are replayed."""
        from .driver import recordings

        return recordings()


ADAPTER = DeepInfer()
