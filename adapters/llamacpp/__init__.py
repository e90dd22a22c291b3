"""llama.cpp: llama-server, build b11434.

Rules from ``tools/server/server-context.cpp`` (slots, matching, checkpoints, batches),
``server-task.cpp`` (RAM prompt cache), ``server-common.cpp`` (token lists),
``src/llama-kv-cache*``, ``src/llama-memory-*`` (cells, states) and ``common/common.{h,cpp}``
(defaults). Evidence: the server ran; its answers, slots and log were recorded. Left out: see
``left_out``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from handoff.adapter import Engine, Evidence
from handoff.adapter import Options as BaseOptions
from handoff.errors import BadInput
from handoff.types import Handoff

from .options import Options

if TYPE_CHECKING:
    from handoff.conformance.recording import Recordings

__all__ = ["ADAPTER", "LlamaCpp", "Options"]


class LlamaCpp:
    """The adapter of llama-server."""

    name = "llamacpp"
    title = "llama.cpp"
    upstream = "b11434"
    evidence: Evidence = "ran"
    left_out: Mapping[str, str] = {
        "multimodal prompts": "chunks compare by id and size; no recording",
        "activated LoRA": "the cap at the invocation token was only read, never recorded",
        "EAGLE / MTP / n-gram drafts": "they change no hit; only a plain draft model was recorded",
        "embedding, rerank and infill tasks": "they reuse nothing",
        "chunked and symmetric windows": "only a standard window was recorded",
        "window + recurrent hybrids": "no recording",
        "M-RoPE": "such a memory cannot shift; no recording",
        "RAM cache allocation failure": "depends on the host's memory",
        "swap of a slot whose prompt is being computed": "recorded only while it generates (11.4)",
    }
    options: type[BaseOptions] = Options
    rules: Mapping[str, str] = {
        "slot_choice": "2",
        "isolation": "10",
        "evicted": "12",
        "not_stored": "2",
        "disabled": "3.1",
        "last_token": "3.9",
        "group": "5.3",
    }

    isolation_keys = ("lora",)  # no salt: tenants share slots and RAM entries (RULES 2, 10)

    def engine(self, options: BaseOptions) -> Engine:
        from .engine import LlamaCppEngine

        return LlamaCppEngine(_own(options))

    def budget(self, pool_tokens: int, options: BaseOptions) -> Mapping[str, Any]:
        """``-c`` is the budget: cells of all slots together, in steps of 256 as upstream rounds."""
        del options
        return {"ctx_size": -(-pool_tokens // 256) * 256}

    def describe(self, options: BaseOptions) -> str:
        own = _own(options)
        words = [
            f"{own.num_slots} slot{'s' * (own.num_slots > 1)}",
            "unified KV" if own.unified else "split KV",
        ]
        words.append(f"RAM cache {own.cache_ram} MiB" if own.cache_ram else "no RAM cache")
        if own.cache_reuse:
            words.append(f"chunk reuse {own.cache_reuse}")
        if own.memory == "window":
            words.append(f"window {own.n_swa}" + (" with --swa-full" if own.swa_full else ""))
        if own.memory in ("recurrent", "hybrid"):
            words.append(f"{own.memory} memory")
        if own.num_drafts:
            words.append(f"{own.num_drafts} drafts")
        return ", ".join(words)

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """``timings.cache_n`` and ``timings.prompt_n`` of the answer.

        A child of ``n_cmpl`` repeats its parent's (RULES 9), which are counted there.
        """
        if handoff.known_tokens > handoff.prompt_tokens:
            return {}
        return {
            "cache_n": handoff.hit_tokens,
            "prompt_n": handoff.prompt_tokens - handoff.hit_tokens,
        }

    def recordings(self) -> Recordings | None:
        from .driver import RECORDINGS

        return RECORDINGS


def _own(options: BaseOptions) -> Options:
    if not isinstance(options, Options):
        raise BadInput(f"llama.cpp needs its own options, not {type(options).__name__}")
    return options


ADAPTER = LlamaCpp()
