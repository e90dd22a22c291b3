"""The oracle of the truth test: a whole sequence at once, without store, tables or kernels.

Plain dense attention with explicit masks over all positions. It shares weights and the maps of one
layer with the executor, and none of the machinery that hands KV over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from handoff.index.spans import Seq
from handoff.model.forward import StagePlan
from handoff.model.transformer import Transformer, feed_forward, normed
from handoff.model.weights import embed
from handoff.store.tables import expand
from handoff.types import Layout, Spans

__all__ = ["Cold", "Rule", "cold_run", "relative_error", "stage_of"]

_ROWS = 512


@dataclass(frozen=True)
class Rule:
    """How deep a cold run of a prompt goes, and what it shows: the same rule as the engine's.

    ``spans`` are those of the whole prompt as one row (``None``: plain); positions from ``prompt``
    on are decoded, hence computed in every stage.
    """

    prompt: int = 0
    spans: Spans | None = None


@dataclass
class Cold:
    """``logits [rows, vocab]`` and ``hidden`` of the ``positions`` that the last stage computes.

    ``kv`` are rotated keys and values by owning layer over all positions (NaN where the layer's
    stage computes nothing), ``states`` the state after every position by state layer.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    positions: torch.Tensor
    kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    states: dict[int, torch.Tensor] = field(default_factory=dict)


@torch.inference_mode()
def cold_run(
    model: Transformer, layout: Layout, content: Seq, lora: str | None, rule: Rule | None = None
) -> Cold:
    """Compute all of ``content`` from nothing."""
    spec = model.spec
    length = len(content)
    rule = rule or Rule()
    x = embed(model.weights, expand(content))
    out = Cold(x, x, torch.arange(length, device=x.device))
    rows = out.positions
    for at, layer in enumerate(spec.layers):
        kept = _computed(rule, layer.stage, length).to(x.device)
        if len(kept) != len(rows):
            x = x[torch.isin(rows, kept)]
            rows = kept
        stage = stage_of(rows, lora)
        inputs = normed(x, spec.norm_eps)
        if layer.kind == "state":
            mixed = _recur(model, at, inputs, stage, out)
        else:
            if layer.reads is None:
                out.kv[at] = _spread(model.key_value(at, inputs, stage), rows, length)
            k, v = out.kv[at if layer.reads is None else layer.reads]
            visible = rule.spans.visible[layer.group] if rule.spans else 0
            mask = _mask(rows, length, visible, layer.window, layer.local)
            mixed = _dense(model.query(at, inputs, stage), k, v, mask, model.scale)
        x = x + mixed @ model.weights.layers[at].o
        x = x + feed_forward(x, model.weights.layers[at], spec.norm_eps)
    out.hidden = x
    out.logits = model.logits(x)
    out.positions = rows
    return out


def _computed(rule: Rule, stage: int, length: int) -> torch.Tensor:
    """Positions that a stage computes: from its bound on, and every decoded one."""
    if rule.spans is None:
        return torch.arange(length)
    first = min(rule.spans.compute[stage], rule.prompt)
    return torch.arange(min(first, length), length)


def stage_of(rows: torch.Tensor, lora: str | None) -> StagePlan:
    """The rows as the maps of a layer want them."""
    count = len(rows)
    return StagePlan(
        keep=None,
        positions=rows.cpu().numpy().astype(np.int64),
        q_start=np.array([0, count], np.int64),
        kv={},
        loras=((lora, 0, count),) if lora is not None and count else (),
    )


def _spread(
    kv: tuple[torch.Tensor, torch.Tensor], rows: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at their positions; NaN where there are none."""
    spread = []
    for each in kv:
        wide = each.new_full((length, *each.shape[1:]), torch.nan)
        wide[rows] = each
        spread.append(wide)
    return spread[0], spread[1]


def _mask(
    rows: torch.Tensor, length: int, visible: int, window: int | None, local: int | None
) -> torch.Tensor:
    """``[rows, length]``: which position sees which."""
    row, key = rows[:, None], torch.arange(length, device=rows.device)[None]
    mask = (key <= row) & (key >= visible)
    if window is not None:
        mask &= key > row - window
    if local is not None:
        mask &= key >= row - row % local
    return mask


def _dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Softmax attention by its definition; a row that sees nothing gives 0."""
    group = q.shape[1] // k.shape[1]
    seen = mask.any(0)
    k, v, mask = k[seen], v[seen], mask[:, seen]
    k, v = (each.repeat_interleave(group, 1).transpose(0, 1) for each in (k, v))
    parts = []
    for queries, sees in zip(torch.split(q, _ROWS), torch.split(mask, _ROWS)):  # bounded scores
        scores = (queries.transpose(0, 1) @ k.transpose(1, 2)) * scale
        weights = torch.softmax(scores.masked_fill(~sees, -torch.inf), -1)
        weights[:, ~sees.any(-1)] = 0
        parts.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(parts) if parts else q.flatten(1)


def _recur(
    model: Transformer, at: int, inputs: torch.Tensor, stage: StagePlan, out: Cold
) -> torch.Tensor:
    decay = model.decay(at, inputs)
    gain = (1 - decay) * model.value(at, inputs, stage)
    state = torch.zeros_like(gain[0])
    states = []
    for a, b in zip(decay, gain):
        state = a * state + b
        states.append(state)
    out.states[at] = torch.stack(states)
    return out.states[at] * model.output_gate(at, inputs, stage)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``max|difference| / max|expected|``; infinite where a number is missing."""
    difference = (found - expected).abs().max() / expected.abs().max()
    return float(difference) if torch.isfinite(difference) else torch.inf
