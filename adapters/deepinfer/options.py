"""Options under upstream's names and defaults.

Names: ``DEEPINFER_*`` environment variables in lower case without the prefix, engine arguments as
upstream spells them (RULES 12; deepinfer/engine/config.py, environ.py). The outside KV store is not
part of DeepInfer; its options start with ``outside_``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from handoff import adapter
from handoff.errors import BadInput, Unsupported

from .models import PRESETS, Model

__all__ = ["ForkOptions", "Options", "from_recorded"]

MOST_IDS = 1 << 24
"""Blocks, or states, of a pool: far beyond any device, still simulated in memory."""
MOST_DRAFTS = 1 << 10
MOST_RING = 1 << 16
"""Tokens that a ring may hold beyond its window."""

EngineType = Literal["NORMAL", "PROMPT"]
TruncationMode = Literal["off", "mask", "compact"]


class Options(adapter.Options):
    """DeepInfer's options (RULES 12) and those of the outside KV store that injects hits."""

    model: str | Model = Field(
        default="yoco128", description=f"a description, or one of {', '.join(PRESETS)}"
    )
    block_size: int = Field(default=128, ge=1, description="positions of a block")
    num_blocks: int = Field(
        default=1025, ge=2, le=MOST_IDS, description="block 0 is never handed out"
    )
    num_states: int = Field(
        default=514, ge=0, le=MOST_IDS, description="SWA rings; state 0 is never handed out"
    )
    engine_type: EngineType = Field(
        default="NORMAL", description="PROMPT: prefill only, the outside takes prompts out"
    )
    zos: bool | None = Field(
        default=None, description="asynchronous scheduling; None: on for NORMAL"
    )
    use_nextn_decode: int = Field(
        default=5, ge=0, le=MOST_DRAFTS, description="drafts a step (MTP)"
    )
    max_backtracking_tokens: int = Field(default=0, ge=0, le=MOST_RING, description="0: drafts + 1")
    prefill_store_extra_state: int = Field(
        default=0,
        ge=0,
        le=MOST_RING,
        description="extra ring tokens; upstream's switch gives 128, and K if it truncates",
    )
    yoco_prefill_truncation_mode: TruncationMode = Field(
        default="off", description="consumer rows of a prefill: off, mask or compact"
    )
    yoco_prefill_keep_tokens: int = Field(
        default=0, ge=0, description="K, prompt tokens at the end whose consumer rows are kept"
    )
    chunked_prefill: bool = Field(default=False, description="prompts may run in several steps")
    max_model_len: int = Field(default=4096, ge=1, description="tokens of prompt and outputs")
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        description="tokens of a prefill step; None: max(max_model_len, 4096, seqs * (1 + drafts))",
    )
    max_num_seqs: int = Field(default=256, ge=1, description="sequences that decode together")
    stop_preempted_request: bool = Field(
        default=True, description="a preempted request ends (the LLM class: False)"
    )
    prefill_interval: int = Field(default=70, ge=1, description="decode steps between prefills")
    prefill_any_interval: int = Field(default=100, ge=1, description="a second such turn")
    prefill_max_sum_seqlen_k: int = Field(
        default=1 << 30, ge=1, description="summed lengths of the prompts of a prefill step"
    )
    lookahead_tokens: int = Field(default=0, ge=0, description="least tokens of a chunk")
    cp: int = Field(default=1, ge=1, description="context-parallel ranks")
    mtp_varlen_curve: tuple[tuple[int, float], ...] = Field(
        default=(), description="(rows, ms) points of the measured decode performance"
    )
    outside_policy: Literal["load", "share", "anchor", "none"] = Field(
        default="load", description="what the outside store does: load, share, anchor or none"
    )
    outside_grain: int = Field(default=128, ge=1, description="stored lengths are multiples of it")
    outside_rollback: int = Field(default=0, ge=0, description="tokens an anchor hit gives back")
    outside_tokens: int | None = Field(
        default=None, ge=0, description="tokens the store holds; None: unlimited"
    )

    @field_validator("model")
    @classmethod
    def _known(cls, value: str | Model) -> str | Model:
        if isinstance(value, str) and value not in PRESETS:
            raise ValueError(f"no model {value!r}; there are {', '.join(PRESETS)}")
        return value

    @model_validator(mode="after")
    def _constructible(self) -> Options:
        """What upstream's constructor refuses (RULES 12)."""
        if self.token_budget < self.block_size:
            raise ValueError("max_num_batched_tokens must not be below block_size")
        if self.prefill_max_sum_seqlen_k < self.prompt_limit:
            raise ValueError("prefill_max_sum_seqlen_k must not be below the prompt limit")
        return self

    def check_served(self) -> None:
        """``BadInput`` for options with which upstream fails once it serves requests.

        Its constructor takes them, and its scheduler and tables are recorded with some of them;
        so this is asked when an engine is made, not of the options themselves.
        """
        if self.truncates and self.keep < self.least_keep:
            raise BadInput(
                f"DeepInfer option yoco_prefill_keep_tokens: {self.keep} is below window +"
                f" backtrack, {self.least_keep}; upstream builds no prefill tables (RULES 6)"
            )
        if self.engine_type == "NORMAL" and self.drafts + 1 > self.block_size:
            raise BadInput(
                f"DeepInfer option use_nextn_decode: a step adds {self.drafts + 1} tokens, but its"
                f" table grows by one block of {self.block_size} (block_size, RULES 4)"
            )

    @property
    def least_keep(self) -> int:
        """Smallest K for which upstream builds prefill tables (RULES 6)."""
        return self.shape.window_size + self.backtrack

    @property
    def shape(self) -> Model:
        """The description of the model."""
        return PRESETS[self.model] if isinstance(self.model, str) else self.model

    @property
    def drafts(self) -> int:
        """D, the number of drafts a sequence holds."""
        return self.use_nextn_decode

    @property
    def asynchronous(self) -> bool:
        """Whether decode results are processed one step late (ZOS, RULES 8)."""
        return self.engine_type == "NORMAL" if self.zos is None else self.zos

    @property
    def token_budget(self) -> int:
        """Tokens of one prefill step."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(self.max_model_len, 4096, self.max_num_seqs * (1 + self.drafts))

    @property
    def prompt_limit(self) -> int:
        """Longest fresh prompt that is not ignored (RULES 3.2)."""
        if self.chunked_prefill:
            return self.max_model_len
        return min(self.max_model_len, self.token_budget)

    @property
    def backtrack(self) -> int:
        """Ring tokens kept so that rejected drafts cannot overwrite the window (RULES 5)."""
        return max(self.max_backtracking_tokens, self.drafts + 1)

    @property
    def ring_size(self) -> int:
        """SB, positions of one SWA ring; 0 without a window (RULES 5)."""
        if not self.shape.window_size:
            return 0
        return self.shape.window_size + self.backtrack + self.prefill_store_extra_state

    @property
    def num_rings(self) -> int:
        """Ring groups: one for each half of the model, none without a window or a state pool."""
        if not self.shape.window_size or not self.num_states:
            return 0
        return 2 if self.shape.has_consumers else 1

    @property
    def truncates(self) -> bool:
        """Whether consumer windows are bounded to the kept tail (RULES 6)."""
        return self.yoco_prefill_truncation_mode != "off"

    @property
    def keep(self) -> int:
        """K, tokens at the end of the prompt whose consumer rows are kept."""
        return self.yoco_prefill_keep_tokens


class ForkOptions(BaseModel):
    """Options of the action ``fork_seq`` (RULES 2.4)."""

    model_config = ConfigDict(strict=True)

    id: str = Field(min_length=1)
    source: str
    branch: str = ""
    max_tokens: int = Field(default=1, ge=0)
    replace_last_token_id: int | None = None


_RECORDED = {  # the recordings' short names, and the defaults of the recorded engine
    "block_size": ("block_size", 16),
    "num_blocks": ("num_blocks", 512),
    "num_states": ("num_states", 0),
    "model": ("model", "flat128"),
    "yoco": ("yoco_prefill_truncation_mode", "off"),
    "keep": ("yoco_prefill_keep_tokens", 0),
    "nextn": ("use_nextn_decode", 0),
    "backtrack": ("max_backtracking_tokens", 0),
    "extra_swa": ("prefill_store_extra_state", 0),
    "max_model_len": ("max_model_len", 4096),
    "max_num_batched_tokens": ("max_num_batched_tokens", 4096),
    "max_num_seqs": ("max_num_seqs", 8),
    "stop_preempted_request": ("stop_preempted_request", False),
    "chunked_prefill": ("chunked_prefill", False),
    "engine_type": ("engine_type", 0),
    "interval": ("prefill_interval", 70),
    "any_interval": ("prefill_any_interval", 100),
    "lookahead": ("lookahead_tokens", 0),
    "cp": ("cp", 1),
    "sum_k": ("prefill_max_sum_seqlen_k", 1 << 30),
    "curve": ("mtp_varlen_curve", None),
    "zos": ("zos", False),
}


def from_recorded(config: Mapping[str, Any]) -> Options:
    """Options of one recorded configuration ``{"engine", "policy", "grain", "rollback"}``."""
    engine = dict(config.get("engine", {}))
    for name in engine:
        if name not in _RECORDED:
            raise BadInput(f"no recorded engine option {name!r}", field="engine")
    values = {ours: engine.get(name, value) for name, (ours, value) in _RECORDED.items()}
    kind = values["engine_type"]
    if kind == 2:
        raise Unsupported("COMPLETION engine and P/D transfer")
    values["engine_type"] = ("NORMAL", "PROMPT")[kind]
    values["mtp_varlen_curve"] = values["mtp_varlen_curve"] or ()
    values["outside_policy"] = config.get("policy", "none")
    values["outside_grain"] = config.get("grain", 1)
    values["outside_rollback"] = config.get("rollback", 0)
    return Options(**values)
