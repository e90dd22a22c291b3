"""Options under upstream's names (KvCacheConfig, LLM arguments) with upstream's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from handoff.adapter import Options as BaseOptions
from handoff.errors import Unsupported

__all__ = ["Options", "describe", "from_recorded"]

DEFAULT_OFFLOAD_PRIORITY = 30


MOST_BLOCKS = 1 << 23
"""Blocks of a pool: far beyond any device or host, still simulated in memory."""
MOST_DRAFTS = 1 << 10
Blocks = Annotated[int, Field(ge=0, le=MOST_BLOCKS)]


class Options(BaseOptions):
    """What shapes a hit (RULES 1).

    The attention windows and ``max_seq_len`` describe the model, the two pool sizes the memory;
    the rest are a server's settings. A pool size is one number for every window or a mapping
    ``{window: blocks}``.
    """

    tokens_per_block: int = Field(32, ge=1, description="tokens of a block")
    enable_block_reuse: bool = Field(True, description="look up and store blocks at all")
    enable_partial_reuse: bool = Field(True, description="reuse the head of a block, too")
    copy_on_partial_reuse: bool = Field(
        True, description="copy such a block; else only an idle leaf is taken over"
    )
    max_attention_window: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, description="windows cycled over the layers; None = full attention"
    )
    max_seq_len: int = Field(131072, ge=1, description="tokens of prompt and outputs at most")
    blocks_in_primary_pool: Blocks | dict[int, Blocks] = Field(
        8192, description="device blocks: of every window, or {window: blocks}"
    )
    blocks_in_secondary_pool: Blocks | dict[int, Blocks] = Field(
        0, description="host blocks: of every window, or {window: blocks}"
    )
    secondary_offload_min_priority: int | None = Field(
        None, description="priority from which a victim goes to host; None = 30"
    )
    enable_chunked_prefill: bool = Field(False, description="prompts may take several iterations")
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = Field(
        "FIRST_COME_FIRST_SERVED",
        description="who gets the budget: FIRST_COME_FIRST_SERVED or EQUAL_PROGRESS",
    )
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = (
        Field("GUARANTEED_NO_EVICT", description="who may hold blocks; only this one")
    )
    enable_prefix_aware_scheduling: bool = Field(
        True, description="a request waits while another one computes its next block"
    )
    max_num_tokens: int = Field(8192, ge=1, description="tokens of one iteration")
    max_batch_size: int = Field(2048, ge=1, description="requests of one iteration")
    max_beam_width: int = Field(1, ge=1, description="beams; only 1")
    max_draft_len: int = Field(0, ge=0, le=MOST_DRAFTS, description="draft tokens a step")
    num_extra_kv_tokens: int = Field(
        0, ge=0, description="slots a sequence gets beyond its tokens (drafting)"
    )
    use_kv_cache_manager_v2: bool = Field(False, description="the V2 manager; refused")

    @model_validator(mode="after")
    def _refuse_left_out(self) -> Options:
        if self.capacity_scheduler_policy != "GUARANTEED_NO_EVICT":
            raise Unsupported(
                f"capacity_scheduler_policy {self.capacity_scheduler_policy}: only"
                " GUARANTEED_NO_EVICT is modelled"
            )
        if self.use_kv_cache_manager_v2:
            raise Unsupported("use_kv_cache_manager_v2: V2 is modelled as look-up facts only")
        for window in self.windows:
            uneven = window % self.tokens_per_block
            if self.max_draft_len and window < self.max_seq_len and uneven:
                raise Unsupported(
                    f"max_draft_len with window {window}, no multiple of tokens_per_block"
                    f" {self.tokens_per_block}: upstream's rewind drops blocks in use (RULES 11b)"
                )
        if self.max_beam_width > 1:
            raise Unsupported("max_beam_width > 1: beams reorder, only their blocks are modelled")
        return self

    @model_validator(mode="after")
    def _pools_name_the_windows(self) -> Options:
        for sizes in (self.blocks_in_primary_pool, self.blocks_in_secondary_pool):
            named = () if isinstance(sizes, int) else self._clamped(sizes)
            if unknown := sorted(set(named) - set(self.windows)):
                raise ValueError(f"no attention window {unknown[0]} (windows {self.windows})")
        primary = self.blocks_in_primary_pool
        missing = (
            [] if isinstance(primary, int) else set(self.windows) - set(self._clamped(primary))
        )
        if missing:
            raise ValueError(f"blocks_in_primary_pool lacks window {max(missing)}")
        return self

    @property
    def windows(self) -> tuple[int, ...]:
        """Distinct windows, largest first; a window is never longer than ``max_seq_len``."""
        wanted = self.max_attention_window or (self.max_seq_len,)
        return tuple(sorted({min(window, self.max_seq_len) for window in wanted}, reverse=True))

    @property
    def offload_min_priority(self) -> int:
        """Lowest priority of a victim that is moved to host (RULES 6)."""
        given = self.secondary_offload_min_priority
        return DEFAULT_OFFLOAD_PRIORITY if given is None else given

    def pool_blocks(self, window: int) -> tuple[int, int]:
        """Primary and secondary blocks of one window manager."""
        return (
            self._of_window(self.blocks_in_primary_pool, window),
            self._of_window(self.blocks_in_secondary_pool, window),
        )

    def _of_window(self, sizes: int | dict[int, int], window: int) -> int:
        return sizes if isinstance(sizes, int) else self._clamped(sizes).get(window, 0)

    def _clamped(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """By window as the model has it: never longer than ``max_seq_len``."""
        return {min(given, self.max_seq_len): blocks for given, blocks in sizes.items()}


def describe(options: Options) -> str:
    """The options that shape a hit, in a few words."""
    words = [f"block {options.tokens_per_block}"]
    if not options.enable_block_reuse:
        return f"{words[0]}, reuse off"
    if not options.enable_partial_reuse:
        words.append("whole blocks only")
    elif not options.copy_on_partial_reuse:
        words.append("partial without copies")
    else:
        words.append("partial reuse")
    if options.windows != (options.max_seq_len,):
        words.append("windows " + "/".join(map(str, options.windows)))
    if any(options.pool_blocks(window)[1] for window in options.windows):
        words.append("host pool")
    if options.enable_chunked_prefill:
        words.append(f"chunked {options.max_num_tokens}")
    return ", ".join(words)


def from_recorded(config: Mapping[str, Any]) -> Options:
    """Options of a recorded configuration; missing keys are those of ``tpb32``."""
    if config.get("beam_width", 1) != 1:
        raise Unsupported("beam_width > 1: beams reorder, only their blocks are modelled")
    windows = {int(window): sizes for window, sizes in config["windows"].items()}
    chunking = config.get("chunking")
    values: dict[str, Any] = {
        name: config[name]
        for name in (
            "tokens_per_block",
            "enable_block_reuse",
            "enable_partial_reuse",
            "copy_on_partial_reuse",
            "secondary_offload_min_priority",
            "max_seq_len",
            "max_batch_size",
        )
        if name in config
    }
    if chunking:
        values |= {"enable_chunked_prefill": True, "context_chunking_policy": chunking}
    if "capacity_policy" in config:
        values["capacity_scheduler_policy"] = config["capacity_policy"]
    return Options(
        max_num_tokens=config.get("max_num_tokens") or max(1, config.get("chunk_size", 8192)),
        max_attention_window=tuple(windows),
        blocks_in_primary_pool={window: sizes[0] for window, sizes in windows.items()},
        blocks_in_secondary_pool={window: sizes[1] for window, sizes in windows.items()},
        **values,
    )
