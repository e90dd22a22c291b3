"""Writes the comparison reports that we keep: ``python reports/make.py NAME [TRACE]...``.

``workloads`` and ``models`` need nothing, ``traces`` and ``speed`` a public Mooncake-format trace.
Only numbers and figures are written, never a line of a trace.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

import handoff
from handoff.adapter import ORDER, load
from handoff.api import Run
from handoff.experiment import RowSpec
from handoff.report.tables import render_run

HERE = Path(__file__).parent


def page(name: str, again: str, title: str, today: str, parts: Sequence[str]) -> None:
    """Write ``NAME.md``: title, date, versions, the make target, then ``parts``."""
    pinned = ", ".join(f"{load(each).title} {load(each).upstream}" for each in ORDER)
    head = (
        f"# {title}\n\n<!-- Written by reports/make.py; do not edit. -->\n\n"
        f"{today}, handoff {version('handoff')}. Pinned: {pinned}.\n\n"
        f"Again: `make report-{again}`.\n"
    )
    (HERE / f"{name}.md").write_text("\n".join([head, *parts]).rstrip() + "\n", "utf-8")


def picture(name: str, figure: str, drawn: Any) -> str:
    """Keep a figure beside the page; the Markdown that shows it."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    drawn.save(folder / f"{figure}.png")
    return f"![{drawn.alt}]({name}/{figure}.png)\n"


def block(text: str) -> str:
    """Terminal text in a code block."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def tables(run: Run, *, strips: bool) -> str:
    """What ``handoff run`` prints, 110 columns wide."""
    stream = StringIO()
    console = Console(file=stream, width=110, color_system=None, force_terminal=False)
    render_run(console, run.to_pandas(), run.info, strips=strips)
    return block(stream.getvalue())


# -- workloads ---------------------------------------------------------------------------------


def workloads(today: str, traces: Sequence[str]) -> None:
    """All built-in scenarios, executed, with all adapters."""
    run = handoff.run(execute=True, date=today)
    if not run.fine:
        raise SystemExit("a step differs from its cold recompute, or an expectation is not met")
    parts = [
        "Every built-in scenario with every adapter at upstream's defaults (or the rows that the"
        " scenario names). Each step is executed on real KV tensors and its logits are compared"
        " with a cold run; the last lines say how that went.\n",
        picture("workloads", "waterfall", run.plot.waterfall()),
        picture("workloads", "hit_vs_saved", run.plot.hit_vs_saved()),
        tables(run, strips=True),
    ]
    page(
        "workloads", "workloads", "The built-in workloads, five frameworks, executed", today, parts
    )


# -- traces --------------------------------------------------------------------------------------

LENGTHS = {300: 1_048_576, 3000: 4_194_304}
"""First requests of a trace -> pool in tokens."""
POOLS = [262_144, 524_288, 1_048_576, 2_097_152]
WHOLE = {
    "tensorrt_llm": {"enable_chunked_prefill": True},
    "deepinfer": {"max_model_len": 131_072, "chunked_prefill": True},
}
"""What it takes to serve every request: prompts are longer than upstream's default limits."""

DEVICE_ONLY = {"tensorrt_llm": WHOLE["tensorrt_llm"], "llamacpp": {"cache_ram": 0}}
"""The same without a host tier, so that all have the same memory."""


def traces(today: str, paths: Sequence[str]) -> None:
    """One page a trace: its first 300 and 3,000 requests, and the pool curve of the first 300."""
    for path in paths:
        name = f"trace-{Path(path).name.split('.')[0].replace('_', '-')}"
        parts = [
            "Planning only; what a row refused stands below its table. Options that are not"
            " upstream's defaults, because the prompts are longer than its limits, stand below each"
            " table.\n"
        ]
        for limit, pool in LENGTHS.items():
            run = handoff.run(path, limit=limit, pool_tokens=pool, options=WHOLE, date=today)
            parts.append(f"## The first {limit:,} requests, pool {pool:,} tokens\n")
            parts.append(tables(run, strips=False))
            for figure in ("waterfall", "hit_vs_saved"):
                parts.append(picture(name, f"{figure}-{limit}", getattr(run.plot, figure)()))
        parts += _by_pool(path, name)
        page(name, "traces TRACE=path", f"Public trace: {Path(path).name}", today, parts)


def _by_pool(path: str, name: str) -> list[str]:
    adapters = ["vllm", "sglang", "llamacpp", "tensorrt_llm"]
    curve = handoff.sweep(path, POOLS, limit=300, adapters=adapters, options=DEVICE_ONLY)
    ceiling = curve.ceiling
    best = "; ".join(f"{size:,}: {each.hit_ratio:.2%}" for size, each in curve.best.items())
    return [
        "## The first 300 requests, by pool\n",
        picture(name, "pools", curve.plot.pool_curve()),
        f"llama.cpp without its RAM cache. Ceiling (unlimited pool) {ceiling.hit_ratio:.2%} of"
        f" {ceiling.prompt_tokens:,} prompt tokens. Best possible eviction, by pool in tokens:"
        f" {best}.\n",
    ]


# -- models --------------------------------------------------------------------------------------

STUDIES: dict[str, tuple[str, int, list[RowSpec]]] = {
    "EAGLE": (
        "What does speculation cost in hit tokens? The draft model needs the hidden state before"
        " the first new token, so a matched unit is given up.",
        400,
        [
            RowSpec("vllm", "vllm"),
            RowSpec(
                "vllm + EAGLE", "vllm", {"speculative_method": "eagle", "num_speculative_tokens": 2}
            ),
            RowSpec("sglang page 64", "sglang", {"page_size": 64}),
            RowSpec(
                "sglang page 64 + EAGLE",
                "sglang",
                {"page_size": 64, "speculative_algorithm": "EAGLE"},
            ),
            RowSpec("deepinfer, MTP 5", "deepinfer", {"max_model_len": 32_768}),
        ],
    ),
    "Sliding window": (
        "Half of the layers see only the last 1,024 tokens. What does a hit need, and where does"
        " it end?",
        3_000,
        [
            RowSpec(
                "vllm, window 1,024",
                "vllm",
                {"groups": [{"type": "full"}, {"type": "swa", "window": 1024}]},
            ),
            RowSpec(
                "sglang, window 1,024", "sglang", {"attention": "swa", "sliding_window_size": 1024}
            ),
            RowSpec(
                "llamacpp, window 1,024",
                "llamacpp",
                {"memory": "window", "n_swa": 1024, "n_layer_swa": 16},
            ),
            RowSpec(
                "tensorrt_llm, window 1,024",
                "tensorrt_llm",
                {"max_attention_window": [1024, 131_072]},
            ),
        ],
    ),
    "Hybrid": (
        "Attention and Mamba layers. A hit ends where a state was kept.",
        12_000,
        [
            RowSpec(
                "vllm, blocks of 528",
                "vllm",
                {
                    "groups": [
                        {"type": "full", "block_size": 528},
                        {"type": "mamba", "block_size": 528},
                    ]
                },
            ),
            RowSpec(
                "vllm, blocks of 2,144 + MTP",
                "vllm",
                {
                    "groups": [
                        {"type": "full", "block_size": 2144},
                        {"type": "mamba", "block_size": 2144, "spec_blocks": 3},
                    ],
                    "speculative_method": "mtp",
                    "num_speculative_tokens": 3,
                },
            ),
            RowSpec("sglang", "sglang", {"attention": "mamba"}),
            RowSpec("llamacpp", "llamacpp", {"memory": "hybrid", "state_bytes": 1 << 20}),
        ],
    ),
}
"""Title -> question, longest prompt of the staircase, rows."""


def models(today: str, paths: Sequence[str]) -> None:
    """EAGLE, sliding window and hybrid: one pair of prompts, then prompts of every length."""
    parts = []
    for title, (question, longest, rows) in STUDIES.items():
        name = title.lower().replace(" ", "-")
        why = handoff.explain(shared=6_000, tail=500, adapters=[], rows=rows)
        formulas = {a.entry.run: a.formula.general for a in why.answers if a.formula}
        steps = handoff.stairs(longest, adapters=[], rows=rows)
        parts += [
            f"## {title}\n\n{question}\n",
            block(repr(why).split("\nNext: ")[0]),
            picture("models", f"{name}-strip", why.plot.strip(why.comparison.name)),
            picture("models", f"{name}-stairs", steps.plot.staircase(formulas=formulas)),
        ]
    page("models", "models", "Speculation, windows and states", today, parts)


# -- speed -----------------------------------------------------------------------------------------

SPEED: list[tuple[str, str, dict[str, Any], str, float]] = [
    ("vllm", "serial, block 16", {"block_size": 16}, "serial", 37.9),
    ("vllm", "serial, block 512", {"block_size": 512}, "serial", 4.73),
    (
        "vllm",
        "scheduler, 20 ms a step",
        {
            "async_scheduling": False,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "max_model_len": 1 << 20,
        },
        "scheduler",
        107.1,
    ),
    ("sglang", "serial", {}, "serial", 1.85),
]
"""Adapter, what is measured, options, mode, CPU seconds noted with upstream's own replay."""


def speed(today: str, paths: Sequence[str]) -> None:
    """Planning a whole trace, beside the CPU seconds that upstream's own replay took."""
    from handoff.bench import bench_trace

    lines = []
    for adapter, what, options, mode, upstream in SPEED:
        found = bench_trace(
            Path(paths[0]), adapter, options, pool_tokens=4_194_304, mode=mode, step_ms=20.0
        )
        print(f"{adapter}, {what}: {found['cpu_s']:.2f} s", file=sys.stderr, flush=True)
        lines.append(
            f"| {load(adapter).title} | {what} | {found['requests']:,} | {found['hit_tokens']:,}"
            f" | {found['cpu_s']:.2f} | {upstream} | {upstream / found['cpu_s']:.1f} |"
        )
    load_now = os.getloadavg()[0]
    head = "| planner | mode | requests | hit tokens | CPU s | upstream CPU s | ratio |"
    parts = [
        "Planning alone, with all records (operations, rows, one Handoff a request), pool of"
        f" 4,194,304 tokens; CPU seconds of the engine's calls in one process, {os.cpu_count()}"
        f" cores, load average {load_now:.1f}, Python {sys.version.split()[0]}. Upstream's seconds"
        " were noted when its own replay of the whole conversation trace was recorded (cache and"
        " scheduler code alone, no model).\n",
        f"{head}\n|---|---|---:|---:|---:|---:|---:|\n" + "\n".join(lines) + "\n",
        "That hits, tables and order of finishing are upstream's is checked by `handoff bench trace"
        " --hits --tables --finish` with the packaged replays; see"
        " [planning-vllm.md](planning-vllm.md).\n",
    ]
    page("speed", "speed TRACE=path", "Planning speed", today, parts)


REPORTS: dict[str, tuple[Callable[[str, Sequence[str]], None], bool]] = {
    "workloads": (workloads, False),
    "models": (models, False),
    "traces": (traces, True),
    "speed": (speed, True),
}
"""Name -> how to write it, and whether it needs a trace."""


def main() -> int:
    """Write one report; without the trace that it needs, say so and write nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=REPORTS)
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--date", default=date.today().isoformat())
    given = parser.parse_args()
    write, needs = REPORTS[given.name]
    if needs and not given.traces:
        print(f"report-{given.name}: skipped, no trace; give TRACE=path", file=sys.stderr)
        return 0
    write(given.date, given.traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
