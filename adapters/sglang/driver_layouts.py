"""Replays ``dsv41_window`` and ``encoder`` recordings: one function call a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from handoff.conformance.recording import Case

from .window import deduct_encoder, replay_len, window_layout

__all__ = ["ENCODER_INPUTS", "WINDOW_INPUTS", "replay_encoder", "replay_window"]

WINDOW_INPUTS: Mapping[str, Any] = {
    "case": True,
    "window": True,
    "capacity": True,
    "zero_row": True,
    "groups": True,
    "req": True,
    "pos": True,
    "floor": True,
    "replay_len": "keys",
}
ENCODER_INPUTS: Mapping[str, Any] = {
    "case": True,
    "prefix_len": True,
    "extend_len": True,
    "encoder_len": True,
    "out_cache_loc": True,
}
TOKENS_A_REQUEST = 100
"""The recorder's token at position p of request i is ``100 * i + p``."""


def replay_window(case: Case) -> Mapping[str, Any]:
    """The layout of one batch, and replay lengths where hits are given."""
    line = case.line
    layout = window_layout(
        line["window"],
        line["capacity"],
        line["zero_row"],
        line["groups"],
        line["req"],
        line["pos"],
        line["floor"],
    )
    hits = line["replay_len"]
    lengths = None if hits is None else {hit: replay_len(int(hit)) for hit in hits}
    return {**line, **asdict(layout), "replay_len": lengths}


def replay_encoder(case: Case) -> Mapping[str, Any]:
    """The deduction of one batch."""
    line = case.line
    done = deduct_encoder(
        line["prefix_len"], line["extend_len"], line["encoder_len"], line["out_cache_loc"]
    )
    result = {
        "prefix_lens": done.prefix_lens,
        "extend_lens": done.extend_lens,
        "seq_lens": done.seq_lens,
        "encoder_cached": done.cached,
        "decoder_out_cache_loc": done.decoder_loc,
        "encoder_out_cache_loc": done.encoder_loc,
        "extend_num_tokens": sum(done.extend_lens),
        "input_ids": [
            TOKENS_A_REQUEST * index + position
            for index, (first, stop) in enumerate(done.kept)
            for position in range(first, stop)
        ],
    }
    return {**line, "result": result}
