"""DeepInfer's own FLOP estimate of a prefill chunk or a decode row, as 64-bit integers.

Units are FP8-equivalent operations: a multiply-add pair weighs 1 in FP4, 2 in FP8, 4 in BF16 and 8
in TF32 or FP32 (RULES 11; csrc/engine/flops_estimator.hpp).
"""

from __future__ import annotations

from typing import NamedTuple

from .models import Model
from .options import TruncationMode

__all__ = ["Estimator", "Flops", "pairs"]


class Flops(NamedTuple):
    """Attention part and total of one row."""

    attention: int
    total: int


def _up_to(n: int, ratio: int, cap: int) -> int:
    """Sum of ``min(t // ratio, cap)`` over t = 1 .. n (cap 0: none)."""
    if n <= 0:
        return 0
    over = max(0, n - cap * ratio + 1) if cap else 0
    n -= over
    blocks = n // ratio
    return ratio * blocks * (blocks - 1) // 2 + blocks * (n - blocks * ratio + 1) + cap * over


def pairs(begin: int, end: int, ratio: int, cap: int) -> int:
    """Query-key pairs of the positions ``[begin, end)``: row p sees ``(p + 1) // ratio`` keys.

    >>> pairs(0, 4, 1, 0), pairs(0, 4, 1, 2), pairs(0, 4, 2, 0)
    (10, 7, 4)
    """
    return _up_to(end, ratio, cap) - _up_to(begin, ratio, cap)


class _Rows(NamedTuple):
    """Row ranges of one call: full rows ``[start, stop)``, consumer rows ``[kept, stop)``."""

    start: int
    kept: int
    stop: int
    window_pairs: int
    kept_window_pairs: int
    is_prompt: bool


class Estimator:
    """FLOPs of one sequence's rows in one step, for a model and a truncation mode."""

    def __init__(self, model: Model, mode: TruncationMode = "off", keep: int = 0) -> None:
        self.model = model
        self.mode = mode
        self.keep = keep
        self._kept_windows = mode == "compact" or (
            mode != "off" and any(model.use_swa_list[model.n_prefill_layer :])
        )
        self._per_row = self._non_attention()

    def estimate(
        self, q: int, k: int, is_prompt: bool, full_len: int = -1, valid_start: int = 0
    ) -> Flops:
        """``q`` rows ending at ``k``; ``full_len`` is the whole prompt's length (-1: ``k``)."""
        rows = self._rows(q, k, is_prompt, k if full_len < 0 else full_len, valid_start)
        attention = sum(self._layer(layer, rows) for layer in range(self.model.n_layer))
        producers, consumers = self._per_row
        other = producers * q + consumers * (k - rows.kept)
        logits = 4 * self.model.n_embed * self.model.vocab_size * (1 if is_prompt else q)
        return Flops(attention, attention + other + logits)

    def _rows(self, q: int, k: int, is_prompt: bool, full_len: int, valid_start: int) -> _Rows:
        start = k - q
        window = self.model.window_size
        kept = start
        if is_prompt and self.mode == "compact":
            kept = min(max(full_len - self.keep, start), k - 1)
        seen = pairs(start - valid_start, k - valid_start, 1, window) if window else 0
        kept_seen = seen
        if window and is_prompt and self._kept_windows:
            edge = max(valid_start, full_len - self.keep)
            kept_seen = pairs(max(0, kept - edge), max(0, k - edge), 1, window)
        return _Rows(start, kept, k, seen, kept_seen, is_prompt)

    def _layer(self, i: int, rows: _Rows) -> int:
        """Attention FLOPs of layer ``i``: projections, core, window, index."""
        m = self.model
        truncated = self.mode != "off" and i >= m.n_prefill_layer
        begin = rows.kept if truncated and self.mode == "compact" else rows.start
        width = 2 if m.fp8_attn else 4
        heads = m.n_head * m.q_head_dim
        ratio = m.kv_compress_ratio_list[i] if m.has_packed_kv_list[i] else 0
        topk = m.topk_tokens[i]
        local = topk > 0 and m.is_index_source_list[i]
        index_heads = m.index_attn_num_heads[i] if local else 0
        index_width = index_heads * m.index_attn_head_dim[i]
        per_row = (
            width * m.n_embed * (m.q_lora_rank + m.q_head_dim * m.use_swa_list[i])
            + width * m.q_lora_rank * (heads + index_width)
            + 2 * heads * m.o_head_dim
            + width * m.n_wv_group * m.o_head_dim * m.n_embed
            + 4 * m.n_embed * index_heads
        )
        total = per_row * (rows.stop - begin)
        if m.is_kv_source_list[i] and m.has_packed_kv_list[i]:
            kinds = 1 if ratio == 1 else 2
            total += 4 * m.n_embed * m.q_head_dim * kinds * (rows.stop - rows.start)
        if local and m.is_index_k_source_list[i]:
            total += 4 * m.q_head_dim * m.index_attn_head_dim[i] * self._index_keys(ratio, rows)
        if m.use_swa_list[i]:
            total += 8 * heads * (rows.kept_window_pairs if truncated else rows.window_pairs)
        if ratio:
            total += 8 * heads * pairs(begin, rows.stop, ratio, topk)
            if local:
                total += self._index(i, index_width, ratio, begin, rows.stop)
        return total

    @staticmethod
    def _index_keys(ratio: int, rows: _Rows) -> int:
        if not rows.is_prompt:
            return rows.stop - rows.start
        return max(1, rows.stop // ratio - rows.start // ratio)

    def _index(self, i: int, index_width: int, ratio: int, begin: int, stop: int) -> int:
        """Scores of the top-k selection, over all keys or over candidate blocks."""
        unit = (1 if self.model.indexer_use_fp4 else 2) * index_width
        candidates = self.model.index_candidate_blocks[i]
        if not candidates:
            return unit * pairs(begin, stop, ratio, 0)
        size = self.model.index_candidate_block_size[i]
        shift = ratio * (size - 1)
        return unit * size * pairs(begin + shift, stop + shift, ratio * size, candidates)

    def _non_attention(self) -> tuple[int, int]:
        """FLOPs a row outside attention: all producer layers, all consumer layers."""
        m = self.model
        embed, layers, split = m.n_embed, m.n_layer, m.n_prefill_layer
        experts = m.moe_top_k + m.n_shared_experts
        mlp = (2 if m.fp8_mlp else 4) * 3 * embed * m.moe_intermediate_size * experts
        mlp += 4 * embed * m.n_routed_experts
        producers, consumers = split * mlp, (layers - split) * mlp
        if m.hc_enabled:
            more = self._hyper_connections()
            producers, consumers = producers + more[0], consumers + more[1]
        engram = (2 if m.engram_fp8_proj else 4) * sum(m.engram_n_embed_per_ngram) * embed
        engram = engram * (m.hc_mult + 1) + 8 * m.hc_mult * embed
        for layer in m.engram_layer_ids:
            if layer < split:
                producers += engram
            else:
                consumers += engram
        return producers, consumers

    def _hyper_connections(self) -> tuple[int, int]:
        """Mixing between the copies of the residual stream, by half."""
        m = self.model
        u, embed = m.hc_mult, m.n_embed
        mix = 8 * u * embed
        pre = 8 * u * embed * u * (u + 2) + mix
        post = 8 * u * (u + 1) * embed
        moved = pre if self.mode == "compact" and m.has_consumers else 0
        producers = m.n_prefill_layer * 2 * (pre + post) - (mix if m.hc_shifted else 0) + moved
        head = mix + (0 if m.hc_shifted else 8 * u * embed * u)
        consumers = (m.n_layer - m.n_prefill_layer) * 2 * (pre + post) + head - moved
        return producers, consumers
