"""Options under upstream's names (KvCacheConfig, LLM arguments) with upstream's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from handoff.adapter import Options as BaseOptions
from handoff.errors import Unsupported

__all__ = ["Options", "describe", "from_recorded"]

DEFAULT_OFFLOAD_PRIORITY = 30


class Options(BaseOptions):
    """What shapes a hit (RULES 1).

    The attention windows and ``max_seq_len`` describe the model, the two pool sizes the memory;
    the rest are a server's settings. A pool size is one number for every window or a mapping
    ``{window: blocks}``.
    """

    tokens_per_block: int = Field(32, ge=1)
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    max_attention_window: tuple[int, ...] | None = None
    """Windows cycled over the layers; ``None`` is full attention everywhere."""
    max_seq_len: int = Field(131072, ge=1)
    blocks_in_primary_pool: int | dict[int, int] = 8192
    blocks_in_secondary_pool: int | dict[int, int] = 0
    secondary_offload_min_priority: int | None = None
    """A victim of at least this priority goes to host; ``None`` is the eviction policy's 30."""
    enable_chunked_prefill: bool = False
    context_chunking_policy: Literal["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"] = (
        "FIRST_COME_FIRST_SERVED"
    )
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = (
        "GUARANTEED_NO_EVICT"
    )
    enable_prefix_aware_scheduling: bool = True
    max_num_tokens: int = Field(8192, ge=1)
    max_batch_size: int = Field(2048, ge=1)
    max_beam_width: int = Field(1, ge=1)
    max_draft_len: int = Field(0, ge=0)
    num_extra_kv_tokens: int = Field(0, ge=0)
    use_kv_cache_manager_v2: bool = False

    @model_validator(mode="after")
    def _refuse_left_out(self) -> Options:
        if self.capacity_scheduler_policy != "GUARANTEED_NO_EVICT":
            raise Unsupported(
                f"capacity_scheduler_policy {self.capacity_scheduler_policy}: only"
                " GUARANTEED_NO_EVICT is modelled"
            )
        if self.use_kv_cache_manager_v2:
            raise Unsupported("use_kv_cache_manager_v2: V2 is modelled as look-up facts only")
        if self.max_beam_width > 1:
            raise Unsupported("max_beam_width > 1: beams reorder, only their blocks are modelled")
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
        if isinstance(sizes, int):
            return sizes
        clamped = {min(given, self.max_seq_len): blocks for given, blocks in sizes.items()}
        return clamped.get(window, 0)


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
