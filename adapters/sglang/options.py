"""Options of an SGLang server: upstream's names and defaults, plus what describes model and pool.

Sources: ``server_args.py`` for the names and defaults, rule book section 12 for the selection.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from handoff.adapter import Options as Base

__all__ = ["Options"]


class Options(Base):
    """Guarantees a combination that the rule book covers.

    Lengths are in tokens. ``attention`` and ``sliding_window_size`` describe the model:

    * ``full``: every layer keeps all KV; ``swa``: full and sliding-window layers (two pools);
    * ``swa_ring``: the same, but window KV lives in a ring per request and is never stored
      (DeepSeek V4), so a hit needs one of the two bounded replays;
    * ``pure_swa``: all layers slide, and the model is prefill-aware (unlimited_ocr is the only
      one): frees and inserts stop at the prefill's end; ``mamba``: full and recurrent layers.
    """

    attention: Literal["full", "swa", "swa_ring", "pure_swa", "mamba"] = "full"
    sliding_window_size: int | None = Field(None, ge=1)
    page_size: int = Field(1, ge=1)
    max_total_tokens: int = Field(16384, ge=1)
    """Slots of the full-attention pool (upstream measures free GPU memory instead)."""
    swa_full_tokens_ratio: float = Field(0.8, gt=0)
    swa_max_total_tokens: int | None = Field(None, ge=1)
    """Slots of the sliding-window pool; ``None``: the ratio above."""
    max_mamba_cache_size: int = Field(64, ge=3)
    """Recurrent states that exist, held by requests or by the tree."""

    chunked_prefill_size: int = 8192
    """Tokens of one prefill batch, -1 = no chunking; 8,192 is upstream's value below 160 GiB."""
    max_prefill_tokens: int = Field(16384, ge=1)
    max_running_requests: int = Field(64, ge=1)
    enable_mixed_chunk: bool = False
    disable_overlap_schedule: bool = False
    schedule_policy: Literal[
        "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first"
    ] = "fcfs"
    enable_priority_scheduling: bool = False
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10
    schedule_low_priority_values_first: bool = False
    schedule_conservativeness: float = Field(1.0, gt=0)
    init_new_token_ratio: float = Field(0.7, gt=0)
    min_new_token_ratio_factor: float = Field(0.14, gt=0)
    new_token_ratio_decay_steps: int = Field(600, ge=1)
    clip_max_new_tokens_estimation: int = 4096
    retract_decode_steps: int = 20

    disable_radix_cache: bool = False
    radix_force_miss: bool = False
    """``SGLANG_RADIX_FORCE_MISS``: every hit is 0, inserts go on."""
    radix_eviction_policy: Literal[
        "lru", "lfu", "slru", "priority", "tlru", "fifo", "filo", "mru"
    ] = "lru"
    slru_protected_threshold: int = 2
    tlru_threshold: int = 0
    tlru_next_prompt_estimate: int = 0

    swa_eviction_interval: int = Field(128, ge=1)
    enable_decoder_swa_bounded_replay: bool = False
    enable_encoder_swa_bounded_replay: bool = False
    swa_ring_capacity: int | None = Field(None, ge=1)
    """Rows of a request's ring; ``None``: two windows."""

    speculative_algorithm: Literal["EAGLE", "EAGLE3"] | None = None
    speculative_num_steps: int | None = Field(None, ge=1)
    """``None``: keys are bigrams, but decoding goes token by token."""
    speculative_eagle_topk: int = 1
    speculative_num_draft_tokens: int = Field(4, ge=2)

    enable_hierarchical_cache: bool = False
    hicache_ratio: float = Field(2.0, gt=0)
    hicache_max_total_tokens: int | None = Field(None, ge=1)
    """Host slots asked for; ``None``: the ratio above."""
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = (
        "write_through"
    )
    load_back_threshold: int = 10

    @model_validator(mode="after")
    def _fits(self) -> Options:
        window = self.attention in ("swa", "swa_ring", "pure_swa")
        if window is not (self.sliding_window_size is not None):
            raise ValueError("sliding_window_size belongs to attention swa, swa_ring and pure_swa")
        replays = (self.enable_decoder_swa_bounded_replay, self.enable_encoder_swa_bounded_replay)
        if self.attention == "swa_ring" and sum(replays) != 1:
            raise ValueError("attention swa_ring needs exactly one bounded replay")
        if any(replays) and self.attention not in ("swa", "swa_ring"):
            raise ValueError("bounded replay belongs to attention swa and swa_ring")
        if replays[1] and (self.attention != "swa_ring" or self.page_size % 2):
            raise ValueError("encoder replay needs attention swa_ring and an even page_size")
        held = (self.sliding_window_size or 0) + self.swa_eviction_interval + 2 * self.page_size
        if self.attention == "swa" and self.swa_tokens < held:
            raise ValueError(f"one request may hold {held} tokens of window KV, more than the pool")
        if self.attention == "mamba" and self.page_size != 1:
            raise ValueError("attention mamba needs page_size 1 (no extra buffer)")
        if self.attention == "pure_swa" and self.page_size != 1:
            raise ValueError("attention pure_swa needs page_size 1")
        if self.chunked_prefill_size > 0 and self.chunked_prefill_size % self.page_size:
            raise ValueError("chunked_prefill_size must be a multiple of page_size")
        return self

    @property
    def bigram(self) -> bool:
        """Whether tree keys are pairs of neighbouring tokens (rule 9); not with states (rule 8)."""
        return self.speculative_algorithm is not None and self.attention != "mamba"

    @property
    def overlap(self) -> bool:
        """Whether a batch is planned before the last one's result (with states: never)."""
        return not self.disable_overlap_schedule and self.attention != "mamba"

    @property
    def ring_rows(self) -> int:
        """Rows of one request's ring, 0 where there is none."""
        if self.attention != "swa_ring" or self.sliding_window_size is None:
            return 0
        return self.swa_ring_capacity or 2 * self.sliding_window_size

    @property
    def running_limit(self) -> int:
        """Requests that may run; with states a third of them, as upstream's server decides.

        A request needs its own state, the one it holds in the tree, and one for a checkpoint.
        """
        if self.attention != "mamba":
            return self.max_running_requests
        return min(self.max_running_requests, self.max_mamba_cache_size // 3)

    @property
    def swa_tokens(self) -> int:
        """Slots of the sliding-window pool."""
        if self.swa_max_total_tokens is not None:
            return self.swa_max_total_tokens
        tokens = int(self.max_total_tokens * self.swa_full_tokens_ratio)
        return tokens // self.page_size * self.page_size

    @property
    def host_swa_tokens(self) -> int:
        """Slots of the host pool for window KV: the same share of the device pool."""
        tokens = self.swa_tokens * self.host_tokens // self.max_total_tokens
        return (tokens // self.page_size + 1) * self.page_size

    @property
    def host_tokens(self) -> int:
        """Slots of the host pool (rule 10): one page more than asked."""
        asked = self.hicache_max_total_tokens
        tokens = int(self.hicache_ratio * self.max_total_tokens) if asked is None else asked
        return (tokens // self.page_size + 1) * self.page_size
