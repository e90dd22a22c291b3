"""Streams for ``handoff verify`` that no question asks but every mechanism needs.

Requests at once, a pool too small for them, windows, states, drafts planned ahead, moved chunks,
restored and copied KV. Each is a scenario like any other: options belong to the adapters, here they
are only data.
"""

from __future__ import annotations

from typing import Any

from .experiment import Stream, stream_of
from .workload.scenario import Scenario

__all__ = ["stress_streams"]


def _request(name: str, *spans: tuple[str, int], out: int = 8, **more: Any) -> dict[str, Any]:
    """A request of shared streams; a name that starts with ``-`` is unique to it."""
    parts = [
        {"unique" if stream.startswith("-") else "shared": stream, "len": length}
        for stream, length in spans
    ]
    return {"id": name, "spans": parts, "output_len": out, **more}


def _turns(out: int = 8) -> list[dict[str, Any]]:
    """A prompt, the same one again, one that leaves it in the middle, and one of its own."""
    return [
        _request("first", ("text", 300), ("-a", 40), out=out),
        _request("again", ("text", 300), ("-a2", 24), out=out, when="after:first"),
        _request("middle", ("text", 210), ("-b", 50), out=out, when="after:again"),
        _request("beside", ("other", 170), out=out, when="with:middle"),
        _request("back", ("text", 300), ("-c", 5), out=out, when="after:middle"),
    ]


def _conversation(out: int = 8) -> list[dict[str, Any]]:
    """Each turn quotes the last one and its answer, then one turn forks off an earlier one."""
    turns: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = [{"shared": "system", "len": 290}]
    for at in range(4):
        spans = [*spans, {"unique": f"user-{at}", "len": 23 + 9 * at}]
        when = f"after:turn-{at - 1}" if at else "start"
        turns.append({"id": f"turn-{at}", "spans": spans, "output_len": out, "when": when})
        spans = [*spans, {"output_of": f"turn-{at}", "len": out}]
    fork = [*turns[1]["spans"], {"unique": "fork", "len": 40}]
    return [*turns, {"id": "fork", "spans": fork, "output_len": out, "when": "after:turn-3"}]


def _crowd(out: int) -> list[dict[str, Any]]:
    """Requests that arrive at once and share a head; later ones arrive while others decode."""
    return [
        _request("a", ("head", 280), ("-a", 30), out=out),
        _request("b", ("head", 280), ("-b", 61), out=out),
        _request("c", ("head", 150), ("-c", 90), out=out),
        _request("d", ("head", 280), ("-b2", 33), out=out, when="during_decode:a@3"),
        _request("e", ("tail", 200), out=out, when="during_decode:a@3"),
    ]


def _row(adapter: str, label: str, **values: Any) -> dict[str, Any]:
    return {"adapter": adapter, "label": f"{adapter} {label}", "set": values}


_HYBRID = [{"type": "full"}, {"type": "swa", "window": 64}]

_STREAMS: list[dict[str, Any]] = [
    {"name": "crowd", "requests": _crowd(24), "pool_tokens": 4096},
    {"name": "pressure", "requests": _crowd(60), "pool_tokens": 1024},
    {
        "name": "preempt",
        "requests": _crowd(120),
        "pool_tokens": 768,
        "rows": [
            _row("sglang", "retract", init_new_token_ratio=0.05, min_new_token_ratio_factor=0.1),
            _row("deepinfer", "preempt", stop_preempted_request=False),
        ],
    },
    {
        "name": "windows",
        "requests": _turns(),
        "rows": [
            _row("vllm", "window", groups=_HYBRID),
            _row("vllm", "local", groups=[{"type": "full"}, {"type": "local", "chunk": 64}]),
            _row("sglang", "window", attention="swa", sliding_window_size=64),
            _row("llamacpp", "window", memory="window", n_swa=64, n_layer_swa=1, n_layer=1),
            _row("tensorrt_llm", "window", max_attention_window=(64, 4096)),
            _row("deepinfer", "default"),
            _row("deepinfer", "share", outside_policy="share"),
            _row("deepinfer", "anchor", outside_policy="anchor", outside_rollback=8),
        ],
    },
    {
        "name": "turns",
        "requests": _conversation(),
        "rows": [
            _row("vllm", "window", groups=_HYBRID),
            _row("vllm", "states", groups=[{"type": "full"}, {"type": "mamba", "block_size": 32}]),
            _row(
                "vllm",
                "fine",
                groups=[{"type": "full", "block_size": 64}, {"type": "mamba", "block_size": 64}],
                prefix_match_unit=16,
            ),
            _row("sglang", "window", attention="swa", sliding_window_size=64),
            _row("sglang", "states", attention="mamba"),
            _row("llamacpp", "window", memory="window", n_swa=64, n_layer_swa=1, n_layer=1),
            _row("llamacpp", "states", memory="hybrid"),
            _row("tensorrt_llm", "window", max_attention_window=(64, 4096)),
            _row("deepinfer", "default"),
        ],
    },
    {
        "name": "truncation",
        "requests": _turns(),
        "rows": [
            _row(
                "deepinfer",
                mode,
                yoco_prefill_truncation_mode=mode,
                yoco_prefill_keep_tokens=160,
                max_num_batched_tokens=256,
                max_model_len=1024,
                chunked_prefill=True,
            )
            for mode in ("mask", "compact")
        ],
    },
    {
        "name": "states",
        "requests": _turns(),
        "rows": [
            _row("vllm", "states", groups=[{"type": "full"}, {"type": "mamba", "block_size": 32}]),
            _row("sglang", "states", attention="mamba"),
            _row("llamacpp", "states", memory="hybrid"),
        ],
    },
    {
        "name": "drafts",
        "requests": _crowd(24),
        "rows": [
            _row("vllm", "EAGLE", speculative_method="eagle", num_speculative_tokens=3),
            _row(
                "sglang",
                "EAGLE",
                speculative_algorithm="EAGLE",
                speculative_num_steps=3,
                disable_overlap_schedule=True,
            ),
            _row("llamacpp", "drafts", spec_type="draft-simple"),
            _row("tensorrt_llm", "drafts", max_draft_len=3),
        ],
    },
    {
        "name": "replay",
        "requests": _turns(),
        "rows": [
            _row(
                "vllm",
                "replay",
                groups=[{"type": "full"}, {"type": "swa_mla_replay", "window": 64}],
            ),
            _row(
                "sglang",
                "replay",
                attention="swa",
                sliding_window_size=64,
                enable_decoder_swa_bounded_replay=True,
            ),
        ],
    },
    {
        "name": "moved",
        "requests": [
            _request("whole", ("head", 70), ("paragraph", 40), ("rest", 110)),
            _request("shorter", ("head", 70), ("rest", 110), ("-q", 9), when="after:whole"),
            _request("again", ("head", 70), ("rest", 110), ("-r", 9), when="after:shorter"),
        ],
        "rows": [_row("llamacpp", "cache-reuse", parallel=1, cache_reuse=16)],
    },
    {
        "name": "context-shift",
        "requests": [_request("long", ("text", 200), out=120)],
        "rows": [_row("llamacpp", "context-shift", parallel=1, ctx_size=256, context_shift=True)],
    },
    {
        "name": "host",
        "requests": [
            *_turns(),
            _request("filler", ("filler", 500), when="after:back"),
            _request("third", ("text", 300), ("-d", 5), when="after:filler"),
        ],
        "pool_tokens": 768,
        "rows": [
            _row("sglang", "HiCache", enable_hierarchical_cache=True, hicache_ratio=4.0),
            _row("llamacpp", "RAM", parallel=1),
            _row("tensorrt_llm", "host", blocks_in_secondary_pool=64),
        ],
    },
]


def stress_streams() -> list[Stream]:
    """The streams; those with ``rows`` concern the adapters named there only."""
    return [
        stream_of(Scenario.model_validate({"question": "Is it exact?", **stream}))
        for stream in _STREAMS
    ]
