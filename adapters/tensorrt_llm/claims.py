"""Phase one of adding a batch: every match is claimed before anything is allocated.

(RULES 5; kvCacheManager.cpp, addSequenceBatch) A claim takes the block out of its free queue, so a
batch cannot evict what one of its members matched. Requests that want part of the same block
compete: the last one may take an idle leaf over, the others copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from .blocks import HOST, Block
from .request import LlmRequest
from .window import Walk, WindowManager

__all__ = ["Claim", "ClaimedRequest", "Claims", "Use"]


class Use(Enum):
    """What becomes of a matched block."""

    SHARE = auto()
    COPY = auto()
    TAKE = auto()
    HOLE = auto()


@dataclass(slots=True)
class Claim:
    """One matched block of one request; ``releases``: give the source back after the copy."""

    block: Block | None
    tokens: int
    use: Use
    releases: bool = False


@dataclass(frozen=True, slots=True)
class ClaimedRequest:
    """The claims of one request in one window, and the walk they come from."""

    request: LlmRequest
    walk: Walk
    claims: list[Claim]
    retention: list[tuple[int | None, float | None]]
    num_shared: int
    tokens: int
    from_host: int


class Claims:
    """Claims of one batch in one window, in batch order."""

    def __init__(self, manager: WindowManager) -> None:
        self._manager = manager
        self._pending: dict[int, Claim] = {}  # last partial use of a block
        self._full: set[int] = set()  # blocks that somebody matched as a whole

    def claim(self, request: LlmRequest, walk: Walk) -> ClaimedRequest:
        """Claims the matched blocks among those that all beams share."""
        size = self._manager.size
        num_blocks = -(-request.prompt_len // size)
        own_tail = request.beam_width > 1 and request.prompt_len % size
        shared = num_blocks - 1 if own_tail else num_blocks
        retention = request.retention.per_block(num_blocks, size)
        claims: list[Claim] = []
        from_host = 0
        if walk.tie is not None:
            self._manager.journal.fact("tie", self._manager.window, *walk.tie)
        for (block, tokens, partial), (priority, duration) in zip(walk.found[:shared], retention):
            if block is None:
                claims.append(Claim(None, tokens, Use.HOLE))
                continue
            claim = self._partial(block, tokens) if partial else self._whole(block, tokens)
            claims.append(claim)
            from_host += tokens if block.level == HOST else 0
            if not partial or not self._manager.refs.counts[block.ident]:
                self._manager.policy.claim(block, priority, duration)
        tokens = min(walk.tokens, shared * size)
        return ClaimedRequest(request, walk, claims, retention, shared, tokens, from_host)

    def _whole(self, block: Block, tokens: int) -> Claim:
        pending = self._pending.get(block.ident)
        if pending is not None:
            pending.use, pending.releases = Use.COPY, False
        self._full.add(block.ident)
        return Claim(block, tokens, Use.SHARE)

    def _partial(self, block: Block, tokens: int) -> Claim:
        earlier = self._pending.get(block.ident)
        if earlier is not None:
            earlier.use, earlier.releases = Use.COPY, False
        fully = block.ident in self._full
        held = self._manager.refs.counts[block.ident] > 0
        if held or fully or not block.is_leaf:
            claim = Claim(block, tokens, Use.COPY, releases=not held and not fully)
        else:
            claim = Claim(block, tokens, Use.TAKE)
        self._pending[block.ident] = claim
        return claim
