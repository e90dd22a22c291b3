"""Replays the conformance recordings: translates them into calls and back; no rules in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handoff.conformance.recording import Case, Kind, Recordings
from handoff.errors import BadInput, Unsupported
from handoff.types import Image

from .hashes import block_hashes, none_hash
from .options import CacheGroup, VllmOptions
from .serial import replay_common
from .traces import op_inputs, replay_native, spell

__all__ = ["RECORDINGS", "options_of"]

_KEYS = {
    "budget": "max_num_batched_tokens",
    "caching": "enable_prefix_caching",
    "connector": "kv_connector",
    "dcp": "decode_context_parallel_size",
    "long_prefill_token_threshold": "long_prefill_token_threshold",
    "mamba_shared_prefix_checkpoint": "enable_mamba_shared_prefix_checkpoint",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "num_blocks": "num_gpu_blocks",
    "policy": "policy",
    "prefix_match_unit": "prefix_match_unit",
    "reserve_full_isl": "scheduler_reserve_full_isl",
    "retention": "prefix_cache_retention_interval",
    "watermark": "watermark",
}
"""Keys of a recorded configuration that are options under another (or the same) name."""
_DEFAULTS = {"num_blocks": 1024, "max_model_len": 8192}
"""Where the recordings' default is not the option's."""
_OTHER_KEYS = {"groups", "spec", "scheduler", "derived"}


def options_of(config: Mapping[str, Any]) -> VllmOptions:
    """Options of a recorded configuration; what it does not name has the recordings' default.

    ``Unsupported`` names a key that is not modelled.
    """
    for key in config:
        if key not in _KEYS and key not in _OTHER_KEYS:
            raise Unsupported(f"configuration key {key}")
    spec = config.get("spec") or {}
    values = {_KEYS[key]: value for key, value in {**_DEFAULTS, **config}.items() if key in _KEYS}
    return VllmOptions(
        groups=tuple(CacheGroup(**group) for group in config["groups"]),
        async_scheduling=config.get("scheduler", "sync") == "async",
        speculative_method=spec.get("method"),
        num_speculative_tokens=spec.get("k", 0),
        num_mtp_modules=spec.get("modules", 1),
        disable_eagle_block_drop=not spec.get("drop", True),
        **values,
    )


def replay_hashes(case: Case) -> dict[str, Any]:
    """One vector: the NONE hash and the chain of block hashes."""
    line = case.line
    seed, lora, rows = line["PYTHONHASHSEED"], line.get("lora"), line.get("emb")
    tokens = spell(line["p"])
    embeds = None
    if rows:
        embeds = [[2 * r + 1000 * rows, 2 * r + 1 + 1000 * rows] for r in range(len(tokens))]
        tokens = [0] * len(tokens)
    hashes = block_hashes(
        tokens,
        line["block_size"],
        line["algo"],
        seed,
        lora=(f"lora{lora}", f"adapters/{lora}") if lora else None,
        images=[Image(*item) for item in line.get("mm", ())],
        salt=line.get("salt"),
        embeds=embeds,
    )
    return {
        **line,
        "none_hash": none_hash(line["algo"], seed).hex(),
        "hashes": [value.hex() for value in hashes],
    }


def _options(case: Case) -> VllmOptions:
    if case.config is None:
        raise BadInput("names no known configuration", field="config")
    return options_of(case.config)


_HASH_INPUTS = ("algo", "PYTHONHASHSEED", "block_size", "p", "salt", "lora", "mm", "emb")

RECORDINGS = Recordings(
    kinds={
        "common": Kind(
            inputs={"workload": True, "config": True},
            replay=lambda case: replay_common(case, _options(case)),
        ),
        "native": Kind(
            inputs={"trace": True, "config": True, "ops": op_inputs},
            replay=lambda case: replay_native(case, _options(case)),
            requests=lambda line: sum(op["op"] == "add" for op in line["ops"]),
        ),
        "hashes": Kind(inputs=dict.fromkeys(_HASH_INPUTS, True), replay=replay_hashes),
    },
    options=options_of,
    config_entry=lambda configs, name: configs.get("configs", {}).get(name),
)
