"""What a hit saves: rows of producer and consumer layers of one prompt over growing hits."""

from __future__ import annotations

from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import Seq
from handoff.types import Request

from .engine import DeepInferEngine
from .environment import Environment
from .flops import Estimator
from .options import Options, from_recorded
from .sequence import Grant

__all__ = ["replay_saving", "saved"]


def replay_saving(case: Case) -> dict[str, Any]:
    """One grid: ``[H, prefill steps, producer rows, consumer rows, attention, total]``."""
    line = case.line
    options = from_recorded({"engine": line["cfg"]})
    rows = [saved(options, line["len"], row[0], case) for row in line["rows"]]
    return {**line, "rows": rows}


def saved(options: Options, length: int, hit: int, case: Case | None = None) -> list[int]:
    """Prefill a prompt of ``length`` tokens with ``hit`` of them injected and count its rows."""
    engine = DeepInferEngine(options)
    watcher = case.watch(engine.layout) if case and case.watch else None
    env = Environment(engine, "saving", lambda name, index: index, watcher)
    seq = engine.sequence_of(Request("r", Seq.of(range(length)), 1))
    if hit:
        engine.try_allocate(seq)
        engine.inject(seq, Grant(raw=hit, hit=hit, external=True))
    engine.enqueue(seq)
    estimator = Estimator(options.shape, options.yoco_prefill_truncation_mode, options.keep)
    steps = producers = consumers = attention = total = 0
    while seq.num_tokens < length:
        step = engine.run_step()
        env.plan(step)
        (row,) = step.rows
        flops = estimator.estimate(len(row.tokens), row.stop, True, length)
        steps += 1
        producers += len(row.tokens)
        consumers += row.stop - (row.spans.compute[-1] if row.spans else row.start)
        attention += flops.attention
        total += flops.total
        env.complete(step)
    return [hit, steps, producers, consumers, attention, total]
