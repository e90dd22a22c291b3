"""Models as the ledger sees them: per layer, what a token and a visible pair cost.

A model is read from an HF-style ``config.json``; the presets are such files with the fields that
matter. Understood: dense and grouped-query attention, sliding windows (``layer_types`` or every
n-th layer full), multi-head latent attention, mixtures of experts (active parameters), gated
delta-rule layers of hybrids. A configuration with parts that would be miscounted is refused.
Multiply-adds count two; norms, rotations, activations and softmax
count nothing, as in ``torch.utils.flop_counter``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from handoff.errors import BadInput, Unsupported

from .spec import ModelSpec

__all__ = [
    "LayerShape",
    "Model",
    "from_config",
    "load_model",
    "preset",
    "preset_names",
    "reference_model",
]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Equal layers have equal shapes; numbers are per layer.

    * ``kind``: ``kv`` or ``state``; ``window``: sliding window in tokens or ``None``;
      ``local``: chunk size of chunked-local attention.
    * ``projection``, ``kv_projection``: weights of the mixer's linear maps that a computed position
      passes through; the latter only where the layer makes its own KV.
    * ``mlp``: weights a position passes through in the feed-forward part (active experts only).
    * ``pair``: FLOPs per visible (query, key) pair. ``recurrent``: FLOPs per position of a scan.
    * ``kv_bytes`` stored per position, ``state_bytes`` per state.
    * ``weights``: weights of the layer that every step reads; ``expert`` weights of one of
      ``experts`` routed experts, ``active`` of which a position uses.
    """

    kind: str = "kv"
    window: int | None = None
    local: int | None = None
    projection: int = 0
    kv_projection: int = 0
    mlp: int = 0
    pair: int = 0
    recurrent: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    weights: int = 0
    expert: int = 0
    experts: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model's layers in depth order, its logits' weights and the bytes of one weight."""

    title: str
    layers: tuple[LayerShape, ...]
    head: int
    weight_bytes: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """KV of one position over all layers, without window limits."""
        return sum(layer.kv_bytes for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Weights of all layers and the head (an untied embedding is not read in bulk)."""
        layers = sum(layer.weights + layer.experts * layer.expert for layer in self.layers)
        return layers + self.head

    def pool_bytes(self, tokens: int, sequence: int | None = None) -> int:
        """Bytes of KV for ``tokens`` positions.

        Without ``sequence`` every layer stores every position and states are not counted. With it
        the positions are those of sequences of that length: a window layer keeps one window and a
        recurrent layer one state of each.
        """
        if sequence is None:
            return tokens * self.kv_bytes_per_token
        number = -(-tokens // sequence)
        total = 0
        for layer in self.layers:
            kept = tokens if layer.window is None else number * min(sequence, layer.window)
            total += kept * layer.kv_bytes + number * layer.state_bytes
        return total


NOT_UNDERSTOOD = (
    "attention_chunk_size",
    "attn_layer_period",
    "encoder_layers",
    "hybrid_override_pattern",
    "interleave_moe_layer_step",
    "mamba_d_state",
    "num_encoder_layers",
    "num_kv_shared_layers",
    "ssm_state_size",
    "state_size",
)
"""Fields of architectures whose layers this module cannot price."""

POSITIVE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("kv_lora_rank", "qk_rope_head_dim", "v_head_dim"),
    *("linear_num_key_heads", "linear_key_head_dim", "linear_conv_kernel_dim"),
    *("linear_num_value_heads", "linear_value_head_dim"),
)
NOT_NEGATIVE = (
    *("num_local_experts", "n_routed_experts", "num_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "n_shared_experts", "shared_expert_intermediate_size"),
    *("first_k_dense_replace", "decoder_sparse_step"),
    *("sliding_window", "sliding_window_pattern", "full_attention_interval"),
    *("q_lora_rank", "qk_nope_head_dim"),
)
"""Numbers that are read, where they are given; 0 switches off, as ``null`` does."""
LARGEST = 1 << 40
MOST_LAYERS = 1 << 14


@cache
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("handoff.model").joinpath("presets.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def preset_names() -> list[str]:
    """Names of the built-in models."""
    return list(_presets())


def preset(name: str) -> Model:
    """A built-in model by name; ``BadInput`` suggests the nearest."""
    found = _presets().get(name.lower())
    if found is None:
        close = difflib.get_close_matches(name.lower(), _presets(), 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise BadInput(f"no model {name!r}.{hint} Built in: {', '.join(_presets())}")
    return from_config(found)


def load_model(name: str) -> Model:
    """A built-in model by name, or one from an HF-style ``config.json``."""
    path = Path(name)
    if path.suffix != ".json":
        return preset(name)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"cannot be read: {error}", file=path) from None
    if not isinstance(config, dict):
        raise BadInput("is not a JSON object", file=path)
    try:
        return from_config({"title": path.parent.name or path.stem, **config})
    except KeyError as error:
        raise BadInput("is missing", file=path, field=str(error.args[0])) from None
    except _Wrong as error:
        raise BadInput(error.why, file=path, field=error.field) from None


class _Wrong(BadInput):
    """A field whose value is none for it."""

    def __init__(self, field: str, why: str) -> None:
        self.field, self.why = field, why
        super().__init__(why, field=field)


def reference_model(spec: ModelSpec, dtype: int = 4) -> Model:
    """The executed reference model as the ledger prices it; ``dtype`` is bytes a number."""
    width = spec.heads * spec.head_dim
    key_value = 2 * spec.hidden * spec.kv_heads * spec.head_dim
    mlp = 3 * spec.hidden * spec.intermediate
    shapes = []
    for layer in spec.layers:
        if layer.kind == "state":  # three maps in, one out; the scan itself multiplies no matrices
            maps = 4 * spec.hidden * width
            shape = LayerShape("state", projection=maps, state_bytes=width * dtype)
        else:
            shape = LayerShape(
                window=layer.window,
                local=layer.local,
                projection=2 * spec.hidden * width,
                kv_projection=key_value,
                pair=4 * width,
                kv_bytes=2 * spec.kv_heads * spec.head_dim * dtype,
            )
        own = shape.kv_projection if layer.reads is None else 0
        shapes.append(replace(shape, mlp=mlp, weights=shape.projection + own + mlp))
    return Model("reference", tuple(shapes), spec.hidden * spec.vocab, dtype)


def from_config(config: Mapping[str, Any]) -> Model:
    """The model of an HF-style configuration.

    ``KeyError`` names a field that is missing, ``Unsupported`` one that is not understood,
    ``BadInput`` one whose value cannot be.
    """
    inner = config.get("text_config") or {}
    if not isinstance(inner, Mapping):
        raise _Wrong("text_config", "is not a JSON object")
    config = {name: value for name, value in {**config, **inner}.items() if value is not None}
    _check(config)
    strange = [name for name in NOT_UNDERSTOOD if config.get(name)]
    if strange:
        raise Unsupported(f"a model with {strange[0]} would be miscounted; it is not understood")
    count = int(config["num_hidden_layers"])
    windows = _windows(config, count)
    states = _states(config, count)
    layers = tuple(_layer(config, index, states[index], windows[index]) for index in range(count))
    head = int(config["hidden_size"]) * int(config["vocab_size"])
    return Model(str(config.get("title", config.get("model_type", "model"))), layers, head)


def _check(config: Mapping[str, Any]) -> None:
    """Every number is one and in range, every list has one item a layer."""
    for names, least in ((POSITIVE, 1), (NOT_NEGATIVE, 0)):
        for name in names:
            value = config.get(name, least)
            if not isinstance(value, int) or isinstance(value, bool):
                raise _Wrong(name, f"{value!r} is no whole number")
            if not least <= value <= LARGEST:
                raise _Wrong(name, f"{value} is not between {least} and {LARGEST:,}")
    count = config["num_hidden_layers"]
    if count > MOST_LAYERS:
        raise _Wrong("num_hidden_layers", f"{count} is more than {MOST_LAYERS:,}")
    types = config.get("layer_types", [""] * count)
    if not isinstance(types, list) or len(types) != count:
        raise _Wrong("layer_types", f"is no list of {count} layers")
    if not isinstance(config.get("mlp_only_layers", []), list):
        raise _Wrong("mlp_only_layers", "is no list of layers")
    if "head_dim" not in config and config["hidden_size"] < config["num_attention_heads"]:
        raise _Wrong("num_attention_heads", "is more than hidden_size")


def _windows(config: Mapping[str, Any], count: int) -> Sequence[int | None]:
    """Each layer's sliding window: by ``layer_types``, or all but every n-th layer."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return [None] * count
    types = config.get("layer_types")
    if types:
        return [int(window) if kind == "sliding_attention" else None for kind in types]
    every = config.get("sliding_window_pattern")
    if every:
        # gpt-oss starts with a window layer, Gemma ends each period with a full one: both mean
        # that the last layer of a period is full.
        return [None if (index + 1) % int(every) == 0 else int(window) for index in range(count)]
    return [int(window)] * count


def _states(config: Mapping[str, Any], count: int) -> Sequence[bool]:
    """Which layers hold a recurrent state instead of KV."""
    types = config.get("layer_types")
    if types and "linear_attention" in types:
        return [kind == "linear_attention" for kind in types]
    every = config.get("full_attention_interval")
    return [bool(every) and (index + 1) % int(every or 1) != 0 for index in range(count)]


def _layer(config: Mapping[str, Any], index: int, state: bool, window: int | None) -> LayerShape:
    if state:
        mixer = _delta_rule(config)
    elif "kv_lora_rank" in config:
        mixer = _latent(config)
    else:
        mixer = _grouped(config)
    mlp, weights, experts = _feed_forward(config, index)
    mixing = mixer["projection"] + mixer.get("kv_projection", 0)
    return LayerShape(
        kind="state" if state else "kv",
        window=window,
        mlp=mlp,
        weights=mixing + weights,
        **mixer,
        **experts,
    )


def _grouped(config: Mapping[str, Any], dtype: int = 2) -> dict[str, int]:
    """Grouped-query attention: q, k, v, o; an output gate doubles the query map."""
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    dim = int(config.get("head_dim") or width // heads)
    queries = 2 if config.get("attn_output_gate") else 1
    return {
        "projection": (queries + 1) * width * heads * dim,
        "kv_projection": 2 * width * kv_heads * dim,
        "pair": 4 * heads * dim,
        "kv_bytes": 2 * kv_heads * dim * dtype,
    }


def _latent(config: Mapping[str, Any], dtype: int = 2) -> dict[str, int]:
    """Multi-head latent attention, prefill form: keys and values are expanded from the latent.

    The expansion is charged to the position that makes the latent; expanding cached latents again
    is not counted.
    """
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    rank, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    nope, value = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    query = heads * (nope + rope)
    low = config.get("q_lora_rank")
    queries = int(low) * (width + query) if low else width * query
    return {
        "projection": queries + heads * value * width,
        "kv_projection": width * (rank + rope) + rank * heads * (nope + value),
        "pair": 2 * heads * (nope + rope) + 2 * heads * value,
        "kv_bytes": (rank + rope) * dtype,
    }


def _delta_rule(config: Mapping[str, Any], dtype: int = 2) -> dict[str, int]:
    """Gated delta rule: in and out maps, a short convolution, three products with the state."""
    width = int(config["hidden_size"])
    keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
    heads, dim = int(config["linear_num_value_heads"]), int(config["linear_value_head_dim"])
    values = heads * dim
    kernel = int(config["linear_conv_kernel_dim"])
    channels = 2 * keys + values
    state = heads * int(config["linear_key_head_dim"]) * dim
    return {
        "projection": width * (2 * keys + 2 * values + 2 * heads) + values * width,
        "recurrent": 2 * channels * kernel + 6 * state,
        "state_bytes": (state + channels * (kernel - 1)) * dtype,
    }


def _is_dense(config: Mapping[str, Any], index: int) -> bool:
    """Whether a layer of a mixture of experts has an ordinary feed-forward part."""
    if index < int(config.get("first_k_dense_replace") or 0):
        return True
    if index in (config.get("mlp_only_layers") or ()):
        return True
    return (index + 1) % int(config.get("decoder_sparse_step") or 1) != 0


def _feed_forward(config: Mapping[str, Any], index: int) -> tuple[int, int, dict[str, int]]:
    """(weights a position uses, weights every step reads, routed experts) of one layer."""
    width = int(config["hidden_size"])
    experts = next(
        (
            int(config[name])
            for name in ("num_local_experts", "n_routed_experts", "num_experts")
            if config.get(name)
        ),
        0,
    )
    if not experts or _is_dense(config, index):
        dense = 3 * width * int(config["intermediate_size"])
        return dense, dense, {}
    active = int(config["num_experts_per_tok"])
    inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    expert = 3 * width * inner
    shared = 3 * width * inner * int(config.get("n_shared_experts") or 0)
    if config.get("shared_expert_intermediate_size"):
        shared = 3 * width * int(config["shared_expert_intermediate_size"]) + width
    always = width * experts + shared
    routed = {"expert": expert, "experts": experts, "active": active}
    return always + active * expert, always, routed
