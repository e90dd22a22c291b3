"""Options of an SGLang server: upstream's names and defaults, plus what describes model and pool.

Sources: ``server_args.py`` for the names and defaults, rule book section 12 for the selection.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from handoff.adapter import Options as Base

__all__ = ["Options", "RequestOptions"]


class RequestOptions(BaseModel):
    """What a request may ask of the cache (rules 2.1, 5, 6); other options are ignored."""

    model_config = ConfigDict(strict=True)

    extra_key: str | int | list[Any] | None = None
    stop_token_ids: list[int] | tuple[int, ...] | set[int] = ()
    return_logprob: bool = False
    logprob_start_len: int = -1


class Options(Base):
    """Guarantees a combination that the rule book covers.

    Lengths are in tokens. ``attention`` and ``sliding_window_size`` describe the model:

    * ``full``: every layer keeps all KV; ``swa``: full and sliding-window layers (two pools);
    * ``swa_ring``: the same, but window KV lives in a ring per request and is never stored
      (DeepSeek V4), so a hit needs one of the two bounded replays;
    * ``pure_swa``: all layers slide, and the model is prefill-aware (unlimited_ocr is the only
      one): frees and inserts stop at the prefill's end; ``mamba``: full and recurrent layers.
    """

    attention: Literal["full", "swa", "swa_ring", "pure_swa", "mamba"] = Field(
        "full", description="the model's layers: full, swa, swa_ring, pure_swa or mamba"
    )
    sliding_window_size: int | None = Field(None, ge=1, description="the model's window in tokens")
    page_size: int = Field(1, ge=1, description="tokens of a page, the grain of a hit")
    max_total_tokens: int = Field(
        16384, ge=1, description="slots of the full pool (upstream: what GPU memory leaves)"
    )
    swa_full_tokens_ratio: float = Field(0.8, gt=0, description="window pool over full pool")
    swa_max_total_tokens: int | None = Field(
        None, ge=1, description="slots of the window pool; None = the ratio"
    )
    max_mamba_cache_size: int = Field(
        64, ge=3, description="recurrent states, held by requests or by the tree"
    )

    chunked_prefill_size: int = Field(
        8192, ge=-1, description="tokens of one prefill batch; -1 = whole prompts"
    )
    max_prefill_tokens: int = Field(
        16384, ge=1, description="tokens of one prefill batch without chunking"
    )
    max_running_requests: int = Field(64, ge=1, description="requests of one batch")
    enable_mixed_chunk: bool = Field(False, description="decode along with a prefill chunk")
    disable_overlap_schedule: bool = Field(
        False, description="plan a batch only when the last one's tokens are known"
    )
    schedule_policy: Literal[
        "fcfs", "lpm", "dfs-weight", "hrrn", "lof", "shortest-prefill-first"
    ] = Field(
        "fcfs",
        description="order of the queue: fcfs, lpm, dfs-weight, hrrn, lof, shortest-prefill-first",
    )
    enable_priority_scheduling: bool = Field(False, description="priorities order the queue")
    disable_priority_preemption: bool = Field(False, description="never preempt for a priority")
    priority_scheduling_preemption_threshold: int = Field(
        10, description="priorities apart before one preempts"
    )
    schedule_low_priority_values_first: bool = Field(False, description="small values go first")
    schedule_conservativeness: float = Field(
        1.0, gt=0, description="factor on init_new_token_ratio"
    )
    init_new_token_ratio: float = Field(
        0.7, gt=0, description="share of their outputs that running requests will need, at first"
    )
    min_new_token_ratio_factor: float = Field(
        0.14, gt=0, description="the least that share becomes, as a factor"
    )
    new_token_ratio_decay_steps: int = Field(
        600, ge=1, description="decode steps until it is least"
    )
    clip_max_new_tokens_estimation: int = Field(
        4096, ge=0, description="outputs reserved for a request at most"
    )
    retract_decode_steps: int = Field(
        20, ge=0, description="decode steps assumed left after a retraction"
    )

    disable_radix_cache: bool = Field(False, description="no prefix cache")
    radix_force_miss: bool = Field(
        False, description="SGLANG_RADIX_FORCE_MISS: every hit is 0, inserts go on"
    )
    radix_eviction_policy: Literal[
        "lru", "lfu", "slru", "priority", "tlru", "fifo", "filo", "mru"
    ] = Field(
        "lru", description="which leaf goes: lru, lfu, slru, priority, tlru, fifo, filo or mru"
    )
    slru_protected_threshold: int = Field(
        2, description="slru: hits from which on a node goes last"
    )
    tlru_threshold: int = Field(
        0, description="tlru: tokens at the end of a path that may go first"
    )
    tlru_next_prompt_estimate: int = Field(0, description="tlru: tokens the next prompt adds")

    swa_eviction_interval: int = Field(
        128, ge=1, description="tokens between frees of window KV while decoding"
    )
    enable_decoder_swa_bounded_replay: bool = Field(
        False, description="hits need no window KV; it is computed again"
    )
    enable_encoder_swa_bounded_replay: bool = Field(
        False, description="the last 128 hit tokens run again, without storing (swa_ring)"
    )
    swa_ring_capacity: int | None = Field(
        None, ge=1, description="rows of a request's ring; None = two windows"
    )

    speculative_algorithm: Literal["EAGLE", "EAGLE3"] | None = Field(
        None, description="EAGLE or EAGLE3: the tree's keys are pairs of tokens"
    )
    speculative_num_steps: int | None = Field(
        None, ge=1, description="draft steps; None = such keys, but one token at a time"
    )
    speculative_eagle_topk: int = Field(1, ge=1, description="branches of a draft; only 1")
    speculative_num_draft_tokens: int = Field(4, ge=2, description="tokens of a verify row")

    enable_hierarchical_cache: bool = Field(False, description="a host tier (HiCache)")
    hicache_ratio: float = Field(2.0, gt=0, description="host slots over device slots")
    hicache_max_total_tokens: int | None = Field(
        None, ge=1, description="host slots asked for; None = the ratio"
    )
    hicache_write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        "write_through",
        description="when KV is copied out: write_through, write_through_selective, write_back",
    )
    load_back_threshold: int = Field(10, ge=0, description="host tokens worth loading")

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
        least = (self.sliding_window_size or 0) + self._rejected
        if self.ring_rows and self.ring_rows < least:
            raise ValueError(f"swa_ring_capacity must hold the window and drafts: {least} rows")
        if self.max_total_tokens < self.page_size:
            raise ValueError("max_total_tokens holds no page")
        if self.enable_hierarchical_cache and self.disable_radix_cache:
            raise ValueError("enable_hierarchical_cache and disable_radix_cache exclude each other")
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
    def _rejected(self) -> int:
        """Rows of a ring that drafts may overwrite although the next row still sees them."""
        verifies = self.speculative_num_steps is not None
        return self.speculative_num_draft_tokens - 2 if verifies else 0

    @property
    def verify_reserve(self) -> int:
        """Slots that a verify step takes beyond what is committed (rule 9); 0 without drafts."""
        if self.speculative_num_steps is None:
            return 0
        tree = self.speculative_num_steps * self.speculative_eagle_topk
        return 2 * max(tree, self.speculative_num_draft_tokens)

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
