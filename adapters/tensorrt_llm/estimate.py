"""What a scheduler thinks of a request before its real match: reuse and blocks still needed.

(RULES 9; analyzePrefixReuse, getRemainingBlocksToCompletion, getNeededBlocksOneStep) The estimate
counts whole blocks only and takes no references, so the truth is usually better and sometimes
worse.
"""

from __future__ import annotations

from typing import NamedTuple

from .keys import BlockKey
from .manager import KVCacheManager
from .request import LlmRequest
from .window import WindowManager

__all__ = ["Estimator", "PrefixReuse"]


class PrefixReuse(NamedTuple):
    """Whole blocks in the tree: ``all``, those of them in use, and the first key not there."""

    all: int
    allocated: int
    first_new: BlockKey | None


class Estimator:
    """Estimates over one manager; ``chunk_size`` is upstream's limit of tokens per iteration."""

    def __init__(self, manager: KVCacheManager, chunk_size: int) -> None:
        self._manager = manager
        self._chunk_size = chunk_size
        self._extra_tokens = manager.options.num_extra_kv_tokens
        self._reuses = manager.options.enable_block_reuse and len(manager.windows) == 1

    def analyze_prefix_reuse(self, request: LlmRequest) -> PrefixReuse:
        """Walks the whole blocks of all tokens, the last one included; no side effect."""
        (manager,) = self._manager.windows
        keys = request.full_keys(len(request.tokens))
        blocks, covered = manager.whole_blocks(request, keys)
        counts = manager.refs.counts
        allocated = sum(1 for block in blocks if counts[block.ident])
        first_new = keys[covered] if covered < len(keys) else None
        return PrefixReuse(len(blocks), allocated, first_new)

    def probe_prefix_match_length(self, request: LlmRequest) -> int:
        """Tokens of the whole blocks found; 0 without reuse or with several windows."""
        if not self._reuses:
            return 0
        return self.analyze_prefix_reuse(request).all * self._manager.options.tokens_per_block

    def analyze(self, request: LlmRequest) -> PrefixReuse | None:
        """The same where an estimate is made at all: with reuse and a single window."""
        return self.analyze_prefix_reuse(request) if self._reuses else None

    def remaining_to_completion(
        self, request: LlmRequest, found: PrefixReuse | None = None
    ) -> list[int]:
        """Blocks per window until the request is done; sets its estimate.

        ``found`` saves a second walk where nothing changed since the first.
        """
        request.estimate = 0
        return [self._to_completion(request, manager, found) for manager in self._manager.windows]

    def without_reuse(self, request: LlmRequest) -> list[int]:
        """Blocks per window that a fresh request can need at most at a time."""
        size, beams = self._manager.options.tokens_per_block, request.beam_width
        needed = []
        for manager in self._manager.windows:
            whole = request.prompt_len + request.max_new + self._extra_tokens
            whole = min(whole, manager.window + self._chunk_size)
            context = request.prompt_len // size
            blocks = (
                context + (max(-(-whole // size), -(-request.prompt_len // size)) - context) * beams
            )
            needed.append(blocks)
        return needed

    def needed_one_step(self, request: LlmRequest, drafts: int = 0) -> list[int]:
        """Blocks per window for the next step; sets its estimate."""
        request.estimate = 0
        return [self._one_step(request, manager, drafts) for manager in self._manager.windows]

    def _to_completion(
        self, request: LlmRequest, manager: WindowManager, found: PrefixReuse | None
    ) -> int:
        size, beams = manager.size, request.beam_width
        whole = request.prompt_len + request.max_new + self._extra_tokens
        limit = manager.window + self._chunk_size
        context = min(request.prompt_len, limit) // size
        total = -(-min(whole, limit) // size)
        held = self._held(request, manager)
        reuse = 0
        if not held and self._estimates(request):
            found = found or self.analyze_prefix_reuse(request)
            cap = min(context, (request.prompt_len - 1) // size)
            reuse = min(found.allocated, cap)
            request.estimate = min(found.all, cap) * size
        extra = 0
        if whole > manager.window:
            blocks = -(-whole // size)
            extra = int(blocks > -(-len(request.tokens) // size) and blocks > total)
        left = context - reuse
        if held < left:
            return left - held + (total - context + extra) * beams
        return (total - reuse - held + extra) * beams

    def _one_step(self, request: LlmRequest, manager: WindowManager, drafts: int) -> int:
        size, beams = manager.size, request.beam_width
        if not request.in_context:
            return self._one_step_decode(request, manager, drafts)
        if not request.first_chunk or self._manager.sequence(request):
            return 0
        limit = manager.window + self._chunk_size
        tokens = min(request.prompt_len + min(drafts, request.max_new), limit)
        blocks = tokens // size + (beams if tokens % size else 0)
        if not self._estimates(request):
            return blocks
        found = self.analyze_prefix_reuse(request)
        cap = min(tokens // size, (min(request.prompt_len, limit) - 1) // size)
        request.estimate = min(found.all, cap) * size
        return blocks - min(found.allocated, cap)

    def _one_step_decode(self, request: LlmRequest, manager: WindowManager, drafts: int) -> int:
        generated = len(request.tokens) - request.prompt_len
        if len(request.tokens) > manager.prompt_limit:
            return 0
        tokens = min(drafts + 1, request.max_new - generated)
        held = self._manager.num_tokens(request)
        size = manager.size
        return (-(-(held + tokens) // size) - -(-held // size)) * request.beam_width

    def _held(self, request: LlmRequest, manager: WindowManager) -> int:
        """Blocks the sequence holds in a window, less those that left at the front."""
        sequences = self._manager.sequence(request)
        if not sequences:
            return 0
        sequence = sequences[self._manager.windows.index(manager)]
        return sequence.columns() - sequence.removed

    def _estimates(self, request: LlmRequest) -> bool:
        return self._reuses and request.first_chunk
