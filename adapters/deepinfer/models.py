"""Model descriptions: what the engine and the FLOP estimator read of a model's configuration.

The presets are the toy models of the conformance recordings; real dimensions are given like any
other description.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["PRESETS", "Model"]


class Model(BaseModel):
    """What the engine and the FLOP estimator read of a model's configuration.

    Lists have one entry a layer; layers from ``n_prefill_layer`` on are consumer layers (RULES 6).
    A layer with a compression ratio above 0 and packed KV attends compressed KV, a layer with
    ``use_swa`` also a sliding window; ``topk_tokens`` selects among compressed KV (0 = all).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_layer: int
    n_prefill_layer: int
    n_embed: int
    vocab_size: int
    fp8_mlp: bool
    moe_intermediate_size: int
    moe_top_k: int
    n_shared_experts: int
    n_routed_experts: int
    hc_enabled: bool
    hc_mult: int
    hc_shifted: bool
    engram_n_embed_per_ngram: tuple[int, ...]
    engram_layer_ids: tuple[int, ...]
    engram_fp8_proj: bool
    n_head: int
    q_lora_rank: int
    q_head_dim: int
    o_head_dim: int
    n_wv_group: int
    fp8_attn: bool
    indexer_use_fp4: bool
    window_size: int
    is_kv_source_list: tuple[bool, ...]
    is_index_source_list: tuple[bool, ...]
    is_index_k_source_list: tuple[bool, ...]
    index_candidate_blocks: tuple[int, ...]
    index_candidate_block_size: tuple[int, ...]
    kv_compress_ratio_list: tuple[int, ...]
    topk_tokens: tuple[int, ...]
    has_packed_kv_list: tuple[bool, ...]
    use_swa_list: tuple[bool, ...]
    index_attn_num_heads: tuple[int, ...]
    index_attn_head_dim: tuple[int, ...]
    indexer_use_kproj_list: tuple[bool, ...]

    @property
    def has_consumers(self) -> bool:
        """Whether some layers reuse what the producer half computed (YoCo)."""
        return self.n_prefill_layer < self.n_layer

    @property
    def ratios(self) -> tuple[int, ...]:
        """Compression ratios in use, ascending."""
        return tuple(sorted({ratio for ratio in self.kv_compress_ratio_list if ratio > 0}))

    def ratios_of(self, *, sparse: bool) -> tuple[int, ...]:
        """Ratios of the layers with (``sparse``) or without a top-k selection (RULES 5)."""
        pairs = zip(self.kv_compress_ratio_list, self.topk_tokens)
        return tuple(sorted({r for r, topk in pairs if r > 0 and (topk > 0) == sparse}))


_COMMON: dict[str, Any] = {
    "n_embed": 64,
    "vocab_size": 4096,
    "moe_intermediate_size": 32,
    "moe_top_k": 2,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "n_head": 4,
    "q_lora_rank": 24,
    "q_head_dim": 16,
    "o_head_dim": 12,
    "n_wv_group": 2,
}

PRESETS = {
    "flat128": Model(
        **_COMMON,
        n_layer=3,
        n_prefill_layer=3,
        fp8_mlp=True,
        hc_enabled=False,
        hc_mult=1,
        hc_shifted=False,
        engram_fp8_proj=False,
        fp8_attn=True,
        indexer_use_fp4=True,
        window_size=128,
        kv_compress_ratio_list=(0, 2, 1),
        topk_tokens=(0, 0, 0),
        has_packed_kv_list=(False, True, True),
        use_swa_list=(True, True, True),
        index_attn_num_heads=(0, 0, 0),
        index_attn_head_dim=(0, 0, 0),
        indexer_use_kproj_list=(False, False, False),
        is_kv_source_list=(True, True, True),
        is_index_source_list=(True, True, True),
        is_index_k_source_list=(True, True, True),
        index_candidate_blocks=(0, 0, 0),
        index_candidate_block_size=(0, 0, 0),
        engram_n_embed_per_ngram=(),
        engram_layer_ids=(),
    ),
    "yoco128": Model(
        **_COMMON,
        n_layer=6,
        n_prefill_layer=3,
        fp8_mlp=True,
        hc_enabled=True,
        hc_mult=2,
        hc_shifted=True,
        engram_fp8_proj=True,
        fp8_attn=True,
        indexer_use_fp4=True,
        window_size=128,
        kv_compress_ratio_list=(0, 2, 1, 1, 1, 0),
        topk_tokens=(0, 32, 0, 48, 48, 0),
        has_packed_kv_list=(False, True, True, True, True, False),
        use_swa_list=(True, True, True, True, True, True),
        index_attn_num_heads=(0, 2, 0, 2, 2, 0),
        index_attn_head_dim=(0, 8, 0, 8, 8, 0),
        indexer_use_kproj_list=(False, True, False, True, True, False),
        is_kv_source_list=(False, True, True, True, False, False),
        is_index_source_list=(False, True, False, True, True, False),
        is_index_k_source_list=(False, True, False, True, False, False),
        index_candidate_blocks=(0, 0, 0, 0, 6, 0),
        index_candidate_block_size=(0, 0, 0, 0, 8, 0),
        engram_n_embed_per_ngram=(16, 16),
        engram_layer_ids=(1,),
    ),
    "yoco16": Model(
        **_COMMON,
        n_layer=5,
        n_prefill_layer=2,
        fp8_mlp=False,
        hc_enabled=True,
        hc_mult=2,
        hc_shifted=False,
        engram_fp8_proj=False,
        fp8_attn=False,
        indexer_use_fp4=False,
        window_size=16,
        kv_compress_ratio_list=(0, 2, 1, 1, 2),
        topk_tokens=(0, 8, 0, 12, 12),
        has_packed_kv_list=(False, True, True, True, True),
        use_swa_list=(True, True, False, True, True),
        index_attn_num_heads=(0, 2, 0, 2, 2),
        index_attn_head_dim=(0, 8, 0, 8, 8),
        indexer_use_kproj_list=(False, True, False, True, True),
        is_kv_source_list=(False, True, True, False, True),
        is_index_source_list=(False, True, False, True, True),
        is_index_k_source_list=(False, True, False, False, True),
        index_candidate_blocks=(0, 0, 0, 3, 0),
        index_candidate_block_size=(0, 0, 0, 4, 0),
        engram_n_embed_per_ngram=(),
        engram_layer_ids=(),
    ),
    "noswa": Model(
        **_COMMON,
        n_layer=2,
        n_prefill_layer=2,
        fp8_mlp=True,
        hc_enabled=False,
        hc_mult=1,
        hc_shifted=False,
        engram_fp8_proj=False,
        fp8_attn=True,
        indexer_use_fp4=True,
        window_size=0,
        kv_compress_ratio_list=(1, 2),
        topk_tokens=(0, 16),
        has_packed_kv_list=(True, True),
        use_swa_list=(False, False),
        index_attn_num_heads=(0, 2),
        index_attn_head_dim=(0, 8),
        indexer_use_kproj_list=(False, True),
        is_kv_source_list=(True, True),
        is_index_source_list=(True, True),
        is_index_k_source_list=(True, True),
        index_candidate_blocks=(0, 0),
        index_candidate_block_size=(0, 0),
        engram_n_embed_per_ngram=(),
        engram_layer_ids=(),
    ),
}
