"""vLLM's options under upstream's names and with upstream's defaults (RULES 15)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from handoff.adapter import Options

__all__ = ["EAGLE_FAMILY", "CacheGroup", "VllmOptions"]

GroupType = Literal["full", "swa", "local", "mamba", "rswa", "swa_mla_replay"]
Method = Literal["eagle", "eagle3", "mtp", "dflash", "dspark", "ngram", "draft_model"]
HashAlgorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
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
    block_size: int = Field(16, ge=1)
    window: int | None = Field(None, ge=1)
    chunk: int | None = Field(None, ge=1)
    eagle: bool = False
    extra: int = Field(0, ge=0)
    spec_blocks: int = Field(0, ge=0)
    ckpt_blocks: int = Field(0, ge=0, le=1)
    ckpt_align: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> CacheGroup:
        if self.type in ("swa", "rswa", "swa_mla_replay") and self.window is None:
            raise ValueError(f"a {self.type} group needs a window")
        if self.type == "local" and self.chunk is None:
            raise ValueError("a local group needs a chunk")
        return self


class VllmOptions(Options):
    """Options of the engine, the pool size and what describes model and drafter."""

    block_size: int = Field(
        16, ge=1, description="tokens of a block, the grain of a hit; unused if groups are given"
    )
    groups: tuple[CacheGroup, ...] = Field(
        (),
        description="the model's cache groups, each with type (full, swa, local, mamba, rswa,"
        " swa_mla_replay), block_size, and as the type needs window, chunk, eagle, extra,"
        " spec_blocks, ckpt_blocks, ckpt_align; empty = one full group of block_size",
    )
    num_gpu_blocks: int = Field(
        8192,
        ge=2,
        description="blocks of the pool, the null block included (upstream: what fits)",
    )
    enable_prefix_caching: bool = Field(True, description="off: every hit is 0")
    prefix_caching_hash_algo: HashAlgorithm = Field(
        "sha256", description="hash of real block keys, for those who ask; changes no hit"
    )
    prefix_cache_retention_interval: int | None = Field(
        0,
        ge=0,
        description="window and Mamba groups keep a resumable place every so many tokens; 0 = only"
        " the ends of prompts and junctions, None = everywhere",
    )
    prefix_match_unit: int | None = Field(
        None, ge=1, description="tokens of a hash piece with several groups; None = their gcd"
    )
    swa_bounded_replay: bool = Field(
        True, description="a swa_mla_replay group is not cached; its window is computed again"
    )
    max_num_batched_tokens: int = Field(
        2048, ge=1, description="tokens of a step (upstream: 2048 to 16384 by device and entry)"
    )
    max_num_seqs: int = Field(128, ge=1, description="running requests at most")
    max_model_len: int = Field(131072, ge=1, description="tokens of a sequence at most")
    enable_chunked_prefill: bool = Field(
        True, description="off: a prompt that exceeds what is left of the step stops admission"
    )
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="longest chunk while others run or wait; 0 = no limit"
    )
    policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="order of waiting requests, and who is preempted"
    )
    async_scheduling: bool | None = Field(
        None, description="plan a step before the last one's output is known; None = where possible"
    )
    scheduler_reserve_full_isl: bool = Field(
        True, description="admit a request only if its whole prompt would fit"
    )
    watermark: float = Field(
        0.0, ge=0.0, lt=1.0, description="part of the pool that admission leaves free"
    )
    max_loras: int | None = Field(
        None, ge=1, description="LoRAs of one step; None = no limit (upstream with enable_lora: 1)"
    )
    mamba_cache_mode: Literal["align", "all", "none"] = Field(
        "align", description="which Mamba states are cached; only align is modelled"
    )
    enable_mamba_shared_prefix_checkpoint: bool = Field(
        False, description="end a chunk exactly at a junction that an earlier request saw"
    )
    decode_context_parallel_size: int = Field(
        1, ge=1, description="ranks a block is spread over; it holds block_size tokens on each"
    )
    speculative_method: Method | None = Field(
        None, description="the drafter; the eagle family, mtp, dflash and dspark shorten hits"
    )
    num_speculative_tokens: int = Field(0, ge=0, description="drafts after each sampled token")
    num_mtp_modules: int = Field(
        1, ge=1, description="MTP layers used; several read further ahead of a prefill chunk"
    )
    disable_eagle_block_drop: bool = Field(
        False, description="keep the unit of a hit that the drafter would compute again"
    )
    kv_connector: Literal["sync", "async"] | None = Field(
        None,
        description="a remote store loads a request's external_tokens inside or beside the steps",
    )

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
