"""vLLM's options under upstream's names and with upstream's defaults (RULES 15)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from handoff.adapter import Options

__all__ = ["EAGLE_FAMILY", "HASH_ALGORITHMS", "CacheGroup", "VllmOptions"]

GroupType = Literal["full", "swa", "local", "mamba", "rswa", "swa_mla_replay"]
Method = Literal["eagle", "eagle3", "mtp", "dflash", "dspark", "ngram", "draft_model"]
HASH_ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
EAGLE_FAMILY = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods that read the target model's hidden states, hence lose a block of a hit (RULES 9)."""


class CacheGroup(BaseModel):
    """One KV-cache group of the model: layers of one kind that share a block table.

    ``type``: full attention (also MLA), sliding window, chunked local, Mamba in align mode, R-SWA,
    or the replayed window of DeepSeek-V4.1. ``window`` and ``chunk`` are in tokens; ``extra`` is
    ``extra_retained_tokens``; ``spec_blocks``, ``ckpt_blocks`` and ``ckpt_align`` are the
    speculative and checkpoint blocks of a Mamba group.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: GroupType = "full"
    block_size: int = Field(default=16, ge=1)
    window: int | None = Field(default=None, ge=1)
    chunk: int | None = Field(default=None, ge=1)
    eagle: bool = False
    extra: int = Field(default=0, ge=0)
    spec_blocks: int = Field(default=0, ge=0)
    ckpt_blocks: int = Field(default=0, ge=0, le=1)
    ckpt_align: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> CacheGroup:
        if self.type in ("swa", "rswa", "swa_mla_replay") and self.window is None:
            raise ValueError(f"a {self.type} group needs a window")
        if self.type == "local" and self.chunk is None:
            raise ValueError("a local group needs a chunk")
        return self


class VllmOptions(Options):
    """Options of the engine, the pool size and what describes the model.

    ``groups`` empty means one full-attention group of ``block_size``. ``num_gpu_blocks`` includes
    the null block. ``async_scheduling`` ``None`` is upstream's default: on where possible.
    ``speculative_method``, ``num_speculative_tokens`` and ``num_mtp_modules`` describe the drafter;
    ``kv_connector`` tells whether a connector loads external hits inside the step or beside it.
    """

    block_size: int = Field(default=16, ge=1)
    groups: tuple[CacheGroup, ...] = ()
    num_gpu_blocks: int = Field(default=8192, ge=2)
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] = "sha256"
    prefix_cache_retention_interval: int | None = Field(default=0, ge=0)
    prefix_match_unit: int | None = Field(default=None, ge=1)
    swa_bounded_replay: bool = True
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    max_num_seqs: int = Field(default=128, ge=1)
    max_model_len: int = Field(default=131072, ge=1)
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool | None = None
    scheduler_reserve_full_isl: bool = True
    watermark: float = Field(default=0.0, ge=0.0, lt=1.0)
    max_loras: int | None = Field(default=None, ge=1)
    mamba_cache_mode: Literal["align", "all", "none"] = "align"
    enable_mamba_shared_prefix_checkpoint: bool = False
    decode_context_parallel_size: int = Field(default=1, ge=1)
    speculative_method: Method | None = None
    num_speculative_tokens: int = Field(default=0, ge=0)
    num_mtp_modules: int = Field(default=1, ge=1)
    disable_eagle_block_drop: bool = False
    kv_connector: Literal["sync", "async"] | None = None

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The model's groups; one full-attention group where none is given."""
        return self.groups or (CacheGroup(block_size=self.block_size),)

    @property
    def is_async(self) -> bool:
        """Whether a step is scheduled before the previous one's output is known.

        By default wherever upstream can: not with drafts proposed on the host (n-gram).
        """
        if self.async_scheduling is None:
            return self.speculative_method != "ngram"
        return self.async_scheduling

    @model_validator(mode="after")
    def _consistent(self) -> VllmOptions:
        if (self.speculative_method is None) != (self.num_speculative_tokens == 0):
            raise ValueError("speculative_method and num_speculative_tokens belong together")
        for group in self.groups:
            if group.type == "mamba" and group.spec_blocks < self.num_speculative_tokens:
                raise ValueError("a mamba group needs spec_blocks for each speculative token")
        return self
