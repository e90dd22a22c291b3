"""The server's options, under upstream's names and with upstream's defaults (RULES 1)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from handoff.adapter import Options as BaseOptions
from handoff.errors import BadInput, Unsupported

__all__ = ["Options", "from_command", "round_up"]

CELLS_GRAIN = 256
"""Cell counts are rounded up to a multiple of this (RULES 1; llama-kv-cache.cpp)."""


def round_up(count: int, grain: int = CELLS_GRAIN) -> int:
    """``count`` rounded up to a multiple of ``grain``."""
    return -(-count // grain) * grain


MOST_SLOTS = 256
"""Sequences that one context of upstream can hold (llama.h, LLAMA_MAX_SEQ; read, not run)."""


class Options(BaseOptions):
    """A llama-server and its model; the defaults are those of a server started without arguments.

    Sizes derived from them (``num_slots``, ``total_cells``, ``slot_limit`` ...) are properties.
    """

    # server arguments (common/common.h)
    parallel: int = Field(
        -1, description="slots; -1 = auto: 4 slots and unified KV", ge=-1, le=MOST_SLOTS
    )
    ctx_size: int = Field(0, description="tokens of context; 0 = the model's training length", ge=0)
    kv_unified: bool | None = Field(None, description="one pool for all slots; None = as -np says")
    kv_unified_per_slot: int = Field(0, description="cap on one slot's tokens; 0 = none", ge=0)
    batch_size: int = Field(2048, description="tokens of a batch", ge=1)
    ubatch_size: int = Field(512, description="tokens of a micro-batch", ge=1)
    cache_prompt: bool = Field(True, description="reuse the slot's prefix")
    cache_reuse: int = Field(0, description="smallest chunk to reuse by shifting; 0 = off", ge=0)
    slot_prompt_similarity: float = Field(0.1, description="threshold of the slot choice", ge=0)
    cache_ram: int = Field(8192, description="RAM prompt cache in MiB; 0 = off, < 0 = no limit")
    cache_idle_slots: bool = Field(True, description="save idle slots whenever a task starts")
    ctx_checkpoints: int = Field(32, description="checkpoints kept per slot; 0 = off", ge=0)
    checkpoint_min_step: int = Field(8192, description="tokens between checkpoints", ge=0)
    swa_full: bool = Field(False, description="window cache with as many cells as the full one")
    context_shift: bool = Field(False, description="discard and shift when a slot is full")
    keep: int = Field(0, description="tokens kept by a context shift; < 0 = the prompt", ge=-1)
    lora: tuple[str, ...] = Field((), description="adapters loaded at start (scale 1 by default)")
    spec_type: Literal["none", "draft-simple"] = Field("none", description="draft model or none")
    spec_draft_n_max: int = Field(3, description="drafts per decode", ge=0)
    # the model
    memory: Literal["attention", "window", "recurrent", "hybrid"] = Field(
        "attention", description="kind of the model's memory"
    )
    n_ctx_train: int = Field(131072, description="the model's training length", ge=1)
    n_layer: int = Field(32, description="full-attention layers", ge=0)
    kv_bytes_per_token: int = Field(131072, description="K and V of those layers, bytes", ge=0)
    n_swa: int = Field(0, description="sliding window in tokens", ge=0)
    n_layer_swa: int = Field(0, description="sliding-window layers", ge=0)
    swa_bytes_per_token: int = Field(0, description="K and V of those layers, bytes", ge=0)
    state_bytes: int = Field(0, description="serialized recurrent state, bytes", ge=0)
    draft_n_layer: int = Field(0, description="layers of the draft model", ge=0)
    draft_bytes_per_token: int = Field(0, description="K and V of the draft model, bytes", ge=0)
    add_bos: bool = Field(False, description="the model adds a BOS token")
    eos_token: int | None = Field(None, description="token that ends a generation")

    @model_validator(mode="after")
    def _window_of_window_memory(self) -> Options:
        if (self.memory == "window") != (self.n_swa > 0):
            raise ValueError("memory 'window' needs n_swa above 0, and n_swa needs that memory")
        return self

    @cached_property
    def num_slots(self) -> int:
        """Number of slots (``-np auto`` = 4)."""
        return 4 if self.parallel <= 0 else self.parallel

    @cached_property
    def unified(self) -> bool:
        """Whether all slots share one pool; on only for auto, unless asked for."""
        return self.parallel <= 0 if self.kv_unified is None else self.kv_unified

    @cached_property
    def streams(self) -> int:
        """Number of separate caches: one, or one per slot."""
        return 1 if self.unified else self.num_slots

    @cached_property
    def total_cells(self) -> int:
        """Cells of the full cache, all streams together."""
        return self.stream_cells * self.streams

    @cached_property
    def stream_cells(self) -> int:
        """Cells of one stream of the full cache."""
        total = round_up(self.ctx_size or self.n_ctx_train)
        return total if self.unified else round_up(total // self.num_slots)

    @cached_property
    def window_cells(self) -> int:
        """Cells of one stream of the window cache (RULES 7; llama-kv-cache-iswa.cpp)."""
        if self.swa_full:
            return self.stream_cells
        span = self.n_swa * (self.num_slots if self.unified else 1) + self.micro_batch
        return round_up(min(self.stream_cells, span))

    @cached_property
    def slot_limit(self) -> int:
        """Tokens one slot may hold (``n_ctx`` in the rules)."""
        limit = min(self.stream_cells, self.n_ctx_train)
        return min(limit, self.kv_unified_per_slot) if self.kv_unified_per_slot else limit

    @cached_property
    def batch(self) -> int:
        """Tokens of a batch: ``b := min(b, total)``."""
        return min(self.batch_size, self.total_cells)

    @cached_property
    def micro_batch(self) -> int:
        """Tokens of a micro-batch: ``ub := min(b, ub)``."""
        return min(self.batch, self.ubatch_size)

    @cached_property
    def can_shift(self) -> bool:
        """Whether positions can be moved: iswa only if both caches have equally many cells."""
        return self.memory != "window" or self.window_cells == self.stream_cells

    @cached_property
    def shifts_context(self) -> bool:
        """``--context-shift``, forced off where the memory cannot shift."""
        return self.context_shift and self.can_shift

    @cached_property
    def visible_window(self) -> int:
        """The window in the server's tests of a hit: 0 with ``--swa-full`` (RULES 3.6)."""
        return 0 if self.swa_full else self.n_swa

    @cached_property
    def has_checkpoints(self) -> bool:
        """Whether context checkpoints exist: memories that cannot simply be cut (RULES 5)."""
        cuttable = self.memory == "attention" or (self.memory == "window" and self.swa_full)
        return self.ctx_checkpoints > 0 and not cuttable

    @cached_property
    def ram_bytes(self) -> int | None:
        """Byte limit of the RAM prompt cache; ``None`` = no limit."""
        return None if self.cache_ram < 0 else self.cache_ram << 20

    @cached_property
    def num_drafts(self) -> int:
        """Drafts wanted per decode."""
        return self.spec_draft_n_max if self.spec_type != "none" else 0


# -- a recorded command line -------------------------------------------------------------------

MODELS: Mapping[str, Mapping[str, Any]] = {
    "full": {"n_layer": 2, "kv_bytes_per_token": 128},
    "lev": {"n_layer": 2, "kv_bytes_per_token": 128},
    "fat": {"n_layer": 4, "kv_bytes_per_token": 4096},
    "swa64": {
        "memory": "window",
        "n_swa": 64,
        "n_layer": 1,
        "kv_bytes_per_token": 64,
        "n_layer_swa": 1,
        "swa_bytes_per_token": 64,
    },
    "lfm2": {"memory": "hybrid", "n_layer": 1, "kv_bytes_per_token": 64, "state_bytes": 300},
    "mamba": {"memory": "recurrent", "n_layer": 0, "kv_bytes_per_token": 0, "state_bytes": 300},
}
"""The tiny models of the recordings; sizes follow from recorded file sizes (RULES 8.4).

Of ``mamba`` no file was recorded and no decision depends on its bytes: it has lfm2's state.
"""

_MEMORIES = {"plain": "full", "window": "swa64", "hybrid": "lfm2", "recurrent": "mamba"}

TRAINED = 8192
"""Training length of the recorded models."""

_FLAGS: Mapping[str, tuple[str, Any]] = {
    "--kv-unified": ("kv_unified", True),
    "--no-cache-prompt": ("cache_prompt", False),
    "--no-cache-idle-slots": ("cache_idle_slots", False),
    "--swa-full": ("swa_full", True),
    "--context-shift": ("context_shift", True),
}
_VALUES: Mapping[str, tuple[str, type]] = {
    "-np": ("parallel", int),
    "-c": ("ctx_size", int),
    "-b": ("batch_size", int),
    "-ub": ("ubatch_size", int),
    "-sps": ("slot_prompt_similarity", float),
    "--kv-unified-per-slot": ("kv_unified_per_slot", int),
    "--cache-reuse": ("cache_reuse", int),
    "--cache-ram": ("cache_ram", int),
    "--ctx-checkpoints": ("ctx_checkpoints", int),
    "--checkpoint-min-step": ("checkpoint_min_step", int),
    "--keep": ("keep", int),
    "--spec-type": ("spec_type", str),
    "--spec-draft-n-max": ("spec_draft_n_max", int),
}


def from_command(config: Mapping[str, Any]) -> Options:
    """Options from a recorded ``model`` (or ``memory`` and ``window``), ``args`` and ``lora`` mode.

    ``BadInput`` for an unknown server argument, ``Unsupported`` for an unknown model.
    """
    values = _model(config)
    words = iter(shlex.split(str(config.get("args", ""))))
    for word in words:
        if word in _FLAGS:
            name, value = _FLAGS[word]
            values[name] = value
        elif word in _VALUES:
            name, kind = _VALUES[word]
            values[name] = kind(next(words))
        elif word == "-md":
            draft = MODELS[next(words).removeprefix("@")]
            values["draft_n_layer"] = draft["n_layer"]
            values["draft_bytes_per_token"] = draft["kv_bytes_per_token"]
        elif word == "--override-kv":
            key, _, value = next(words).partition("=")
            if key != "tokenizer.ggml.add_bos_token":
                raise BadInput(f"unknown override {key}", field="args")
            values["add_bos"] = value.endswith("true")
        else:
            raise BadInput(f"unknown server argument {word}", field="args")
    if config.get("lora"):
        values["lora"] = ("0", "1")
    return Options(**values)


def _model(config: Mapping[str, Any]) -> dict[str, Any]:
    """What describes the model: a recorded one by name, else a kind of memory."""
    kind = config.get("memory")
    if kind is None:
        model = str(config.get("model", "full"))
        if model not in MODELS:
            raise Unsupported(f"model {model} is not one of the recorded models")
        return {"n_ctx_train": TRAINED, "eos_token": 2, **MODELS[model]}
    if kind not in _MEMORIES:
        raise Unsupported(f"memory {kind} is none of {', '.join(_MEMORIES)}")
    values = dict(MODELS[_MEMORIES[kind]])
    if "window" in config:
        values["n_swa"] = int(config["window"])
    return values
