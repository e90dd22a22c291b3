"""Sizes and switches that follow from the options (RULES 2 and 9; kv_cache_utils.py, config/).

``SB`` scheduler block size, ``HB`` hash block size and ``AL`` hit alignment of the rule book are
``scheduler_block``, ``hash_block`` and ``alignment`` here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from handoff.errors import Unsupported

from .options import EAGLE_FAMILY, CacheGroup, VllmOptions

__all__ = ["GroupSpec", "Sizes", "cdiv", "floor_to"]


def floor_to(value: int, unit: int) -> int:
    """The largest multiple of ``unit`` that is not above ``value``."""
    return value // unit * unit


def cdiv(value: int, unit: int) -> int:
    """How many units hold ``value``."""
    return -(-value // unit)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One cache group with its effective block size (``block_size`` x DCP where sharded).

    ``eagle``: the group's hits are dropped by one unit. ``cacheable``: it takes part in prefix
    caching (the replayed window of DeepSeek-V4.1 does not).
    """

    index: int
    name: str
    type: str
    block_size: int
    window: int
    chunk: int
    extra: int
    spec_blocks: int
    ckpt_blocks: int
    ckpt_align: int
    eagle: bool
    cacheable: bool

    @property
    def alike(self) -> tuple[object, ...]:
        """Groups that agree in this are looked up together (RULES 5, hybrid)."""
        return (self.type, self.block_size, self.window, self.chunk, self.extra, self.spec_blocks)

    @property
    def is_full(self) -> bool:
        """Looked up like full attention: monotone, from the first block on."""
        return self.type in ("full", "rswa")

    @property
    def leaves(self) -> bool:
        """Whether blocks leave the group while the request runs."""
        return self.type != "full"

    def skipped(self, tokens: int) -> int:
        """Leading tokens that the group no longer needs once ``tokens`` are computed (7a)."""
        if self.type in ("swa", "swa_mla_replay"):
            return max(0, tokens - self.window + 1 - self.extra)
        if self.type == "local":
            return floor_to(tokens, self.chunk)
        if self.type == "mamba":
            return max(0, tokens - 1)
        return 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything the planner needs to know about its configuration, worked out once."""

    groups: tuple[GroupSpec, ...]
    scheduler_block: int
    hash_block: int
    alignment: int
    fine_grained: bool
    lookahead: int
    """Slots reserved behind the scheduled tokens for the drafter."""
    prefill_lookahead: int
    """Prompt tokens that the drafter reads ahead of the target model."""
    num_drafts: int
    draft_slots: int
    """Input slots that the drafter takes from a step's budget for each request (RULES 9)."""
    watermark_blocks: int
    replay: int
    """Tokens recomputed behind a hit to refill a window that is not cached (RULES 11)."""
    batches: int
    """Steps that may be in flight."""
    has_rswa: bool

    @property
    def uncertain(self) -> int:
        """Trailing computed tokens whose KV the drafter may still rewrite (``rp`` in 7b)."""
        return max(0, self.prefill_lookahead - 1)

    @property
    def eagle(self) -> bool:
        """Whether any group drops a unit of its hits."""
        return any(group.eagle for group in self.groups)

    @classmethod
    def of(cls, options: VllmOptions) -> Sizes:
        """Guarantees consistent sizes; ``Unsupported`` for what is left out."""
        _refuse_left_out(options)
        groups = _groups(options)
        cacheable = [group for group in groups if group.cacheable]
        if not cacheable:
            raise Unsupported("a model whose only cache groups are replayed windows")
        scheduler_block = math.lcm(*(group.block_size for group in groups))
        hash_block = _hash_block(options, groups, cacheable, scheduler_block)
        fine = _is_fine_grained(options, cacheable, hash_block, len(groups))
        method, num_drafts = options.speculative_method, options.num_speculative_tokens
        lookahead = num_drafts + (method == "dflash")
        sizes = cls(
            groups=groups,
            scheduler_block=scheduler_block,
            hash_block=hash_block,
            alignment=hash_block if fine else scheduler_block,
            fine_grained=fine,
            lookahead=0 if method == "ngram" else lookahead,
            prefill_lookahead=_prefill_lookahead(options),
            num_drafts=num_drafts,
            draft_slots=_draft_slots(options),
            watermark_blocks=int(options.watermark * options.num_gpu_blocks),
            replay=max((g.window for g in groups if not g.cacheable), default=0),
            batches=2 if options.is_async else 1,
            has_rswa=any(group.type == "rswa" for group in groups),
        )
        _refuse_what_upstream_refuses(options, sizes)
        return sizes


def _prefill_lookahead(options: VllmOptions) -> int:
    if options.speculative_method == "mtp" and options.num_mtp_modules > 1:
        return options.num_speculative_tokens
    return int(options.speculative_method in EAGLE_FAMILY)


def _draft_slots(options: VllmOptions) -> int:
    """A draft model reads one token more, parallel drafters also their masks (speculative.py)."""
    drafts = options.num_speculative_tokens
    return {"draft_model": 1, "dflash": drafts, "dspark": drafts - 1}.get(
        options.speculative_method or "", 0
    )


def _groups(options: VllmOptions) -> tuple[GroupSpec, ...]:
    given = options.cache_groups
    drops = (
        options.speculative_method in EAGLE_FAMILY
        and not options.disable_eagle_block_drop
        and options.enable_prefix_caching
    )
    flagged = any(group.eagle for group in given)  # if none is flagged, all are (RULES 9)
    return tuple(
        _group(options, index, group, drops and (group.eagle or not flagged))
        for index, group in enumerate(given)
    )


def _group(options: VllmOptions, index: int, group: CacheGroup, eagle: bool) -> GroupSpec:
    alone = sum(other.type == group.type for other in options.cache_groups) == 1
    replayed = group.type == "swa_mla_replay" and options.swa_bounded_replay
    return GroupSpec(
        index=index,
        name=group.type if alone else f"{group.type}{index}",
        type=group.type,
        block_size=group.block_size * options.decode_context_parallel_size,
        window=group.window or 0,
        chunk=group.chunk or 0,
        extra=group.extra,
        spec_blocks=group.spec_blocks,
        ckpt_blocks=group.ckpt_blocks,
        ckpt_align=group.ckpt_align,
        eagle=eagle and not replayed,
        cacheable=not replayed,
    )


def _hash_block(
    options: VllmOptions,
    groups: tuple[GroupSpec, ...],
    cacheable: list[GroupSpec],
    scheduler_block: int,
) -> int:
    unit = options.prefix_match_unit
    if len(groups) == 1:
        if unit not in (None, groups[0].block_size):
            raise Unsupported(f"prefix_match_unit {unit} with one group of {groups[0].block_size}")
        return scheduler_block
    if not options.enable_prefix_caching and options.kv_connector is None:
        return scheduler_block
    sizes = [group.block_size for group in cacheable]
    hash_block = unit or math.gcd(*sizes)
    if any(size % hash_block for size in sizes):
        raise Unsupported(f"prefix_match_unit {hash_block} does not divide block sizes {sizes}")
    return hash_block


def _is_fine_grained(
    options: VllmOptions, cacheable: list[GroupSpec], hash_block: int, num_groups: int
) -> bool:
    """Whether hits may end inside a block (RULES 2)."""
    return (
        num_groups > 1
        and options.enable_prefix_caching
        and any(group.type == "mamba" and group.block_size > hash_block for group in cacheable)
        and all(
            group.is_full or group.type == "mamba" or group.block_size == hash_block
            for group in cacheable
        )
    )


def _refuse_left_out(options: VllmOptions) -> None:
    has_mamba = any(group.type == "mamba" for group in options.cache_groups)
    if has_mamba and options.enable_prefix_caching and options.mamba_cache_mode != "align":
        raise Unsupported(f"mamba_cache_mode {options.mamba_cache_mode} with prefix caching")
    if has_mamba and options.decode_context_parallel_size > 1:
        raise Unsupported("Mamba groups with decode_context_parallel_size above 1")
    if has_mamba and options.kv_connector is not None:
        raise Unsupported("Mamba groups with a KV connector")
    if len(options.cache_groups) > 1 and options.decode_context_parallel_size > 1:
        raise Unsupported("several cache groups with decode_context_parallel_size above 1")


def _refuse_what_upstream_refuses(options: VllmOptions, sizes: Sizes) -> None:
    """Combinations at which the engine would not start (RULES 5, 7c, 9)."""
    groups, unit = sizes.groups, sizes.scheduler_block
    if any(group.type == "local" for group in groups):
        if any(group.block_size != groups[0].block_size for group in groups):
            raise Unsupported("a chunked-local group beside groups of another block size")
        if any(group.type == "local" and group.eagle for group in groups):
            raise Unsupported("a chunked-local group whose hits are dropped for EAGLE")
    interval = options.prefix_cache_retention_interval
    if interval:
        if not any(group.type in ("swa", "swa_mla_replay", "mamba") for group in groups):
            raise Unsupported(
                f"prefix_cache_retention_interval {interval} without a window or Mamba group"
            )
        if interval % unit:
            raise Unsupported(
                f"prefix_cache_retention_interval {interval} is no multiple of {unit}, the"
                " scheduler's block size"
            )
    if sizes.eagle and unit < sizes.prefill_lookahead:
        raise Unsupported(
            f"{sizes.prefill_lookahead} drafts of several MTP modules with a scheduler block of"
            f" {unit}"
        )
    if options.max_num_batched_tokens <= sizes.draft_slots:
        raise Unsupported(
            f"max_num_batched_tokens {options.max_num_batched_tokens} leaves no token beside"
            f" {sizes.draft_slots} draft slots a request"
        )
