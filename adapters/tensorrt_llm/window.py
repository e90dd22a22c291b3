"""One window's block manager: the walk, taking blocks, off-loading, storing, releasing.

(RULES 4, 6, 8 and 11b; kvCacheManager.cpp, WindowBlockManager)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from handoff.store.blocks import BlockPool
from handoff.types import NULL

from .blocks import DEFAULT_PRIORITY, HOST, PRIMARY, Block, EvictionPolicy
from .journal import Journal, host_pool, primary_pool
from .keys import BlockKey
from .options import Options
from .request import LlmRequest
from .sequence import WindowSequence
from .tree import Node, ReuseTree

if TYPE_CHECKING:
    from .claims import Claim

__all__ = ["Found", "Walk", "WindowManager"]


class Found(NamedTuple):
    """One step of a walk: ``tokens`` of ``block``; no block is a hole that was only traversed.

    ``partial``: the block is not full or only part of it matches.
    """

    block: Block | None
    tokens: int
    partial: bool


class Walk(NamedTuple):
    """The committed prefix of a walk.

    ``tie``: (candidates, block, tokens) if a partial match was chosen among equally long ones,
    committed or not.
    ``capped``: a larger window's shorter hit ended the walk.
    """

    found: list[Found]
    tokens: int
    tie: tuple[int, int, int] | None
    capped: bool


class WindowManager:
    """Blocks, free queues and tree slots of all layers with one attention window."""

    def __init__(self, window: int, options: Options, tree: ReuseTree, journal: Journal) -> None:
        primary, host = options.pool_blocks(window)
        self.window = window
        self.size = options.tokens_per_block
        self.sliding = window < options.max_seq_len
        self.prompt_limit = max(window, options.max_seq_len)
        self.num_primary, self.num_host = primary, host
        self.copy_partial = options.copy_on_partial_reuse
        self.offload_from = options.offload_min_priority
        self.tree = tree
        self.journal = journal
        self.blocks = [Block(slot, PRIMARY, slot) for slot in range(primary)]
        self.blocks += [Block(primary + slot, HOST, slot) for slot in range(host)]
        self.refs = BlockPool(primary + host)
        self.policy = EvictionPolicy(self.blocks)
        self.num_alloc = 0
        self.num_alloc_new = 0

    # -- match ------------------------------------------------------------------------------

    def walk(
        self, request: LlmRequest, keys: Sequence[BlockKey], partial: bool, cap: int | None
    ) -> Walk:
        """The reusable prefix of ``keys``, at most ``cap`` tokens; changes nothing (RULES 4)."""
        found: list[Found] = []
        node, total = self.tree.root, 0
        committed = committed_tokens = missing_end = 0
        capped, tie = False, None
        for key in keys:
            child = node.children.get(key) if key.length else None
            if child is None:
                piece, tie = self._partial(node, request, total, key) if partial else (None, None)
                if piece is None:
                    break
                if cap is not None and total + piece.tokens > cap:
                    capped = True
                    break
            elif cap is not None and total + key.length > cap:
                capped = True
                break
            else:
                block = child.values.get(self.window)
                if block is None and not self.sliding:
                    break
                piece = Found(block, key.length, block is not None and not block.full)
            found.append(piece)
            total += piece.tokens
            if piece.block is None:
                missing_end = total
            if not missing_end or total >= missing_end + self.window:
                committed, committed_tokens = len(found), total
            if child is None:
                break
            node = child
        return Walk(found[:committed], committed_tokens, tie, capped)

    def whole_blocks(
        self, request: LlmRequest, keys: Sequence[BlockKey]
    ) -> tuple[list[Block], int]:
        """The blocks of a walk without partial matches, and how many keys it covers."""
        if self.sliding:
            walk = self.walk(request, keys, False, None)
            return [piece.block for piece in walk.found if piece.block is not None], len(walk.found)
        found: list[Block] = []
        node = self.tree.root
        for key in keys:
            child = node.children.get(key)
            block = child.values.get(self.window) if child is not None else None
            if child is None or block is None:
                break
            found.append(block)
            node = child
        return found, len(found)

    def _partial(
        self, node: Node, request: LlmRequest, start: int, key: BlockKey
    ) -> tuple[Found | None, tuple[int, int, int] | None]:
        """The longest usable block that shares leading tokens with ``key`` (RULES 4.2, 13)."""
        if not key.length or key.extra.items:
            return None, None
        for tokens, children in node.sharing(request.tokens, start, key.length, key.extra):
            usable = [child for child in children if self._usable(child)]
            if usable:
                block = node.foremost(usable).values[self.window]
                tie = (len(usable), block.ident, tokens) if len(usable) > 1 else None
                return Found(block, tokens, True), tie
        return None, None

    def _usable(self, node: Node) -> bool:
        """Has a block here that may be copied, or taken over as an idle leaf."""
        block = node.values.get(self.window)
        if block is None:
            return False
        return self.copy_partial or (not self.refs.counts[block.ident] and block.is_leaf)

    # -- blocks -----------------------------------------------------------------------------

    def get_free(self, priority: int, duration: float | None) -> Block:
        """A primary block out of queue and tree; its old content may move to host (RULES 6)."""
        block = self.policy.victim(PRIMARY)
        self.num_alloc += 1
        self.num_alloc_new += not block.held
        if block.held and block.priority >= self.offload_from and self.policy.num_free[HOST]:
            block = self._offload(block)
        self._forget(block)
        self.policy.claim(block, priority, duration)
        return block

    def onboard(self, block: Block) -> None:
        """Brings a claimed host block to a primary slot (RULES 6)."""
        freed = self.get_free(35, None)
        self._swap(block, freed)
        self.policy.release(freed)
        self.journal.fact("onboard", self.window, block.ident, freed.ident)

    def place(self, block: Block) -> tuple[str, int]:
        """Pool and slot in which a block's content lies."""
        pool = primary_pool if block.level == PRIMARY else host_pool
        return pool(self.window), block.slot

    def unreference(self, block: Block, to_front: bool = False) -> None:
        """One reference less; an idle block goes back to its queue."""
        if self.refs.drop(block.ident):
            self.policy.release(block, to_front)

    def _offload(self, victim: Block) -> Block:
        """Moves a victim's content to host; returns the block that got its primary slot."""
        block = self.policy.victim(HOST)
        self.policy.claim(victim, None, None)
        self.policy.claim(block, None, None)
        self._swap(victim, block)
        self.policy.release(victim)
        self.journal.fact("offload", self.window, victim.ident, block.ident)
        return block

    def _swap(self, block: Block, other: Block) -> None:
        """``block`` keeps its content and takes the place of ``other``, which loses its own."""
        self.journal.copy(self.window, self.place(block), self.place(other), self.size, self.size)
        block.level, other.level = other.level, block.level
        block.slot, other.slot = other.slot, block.slot

    def _forget(self, block: Block) -> None:
        if block.node is not None:
            self.tree.detach(block, self.window)
            self.journal.fact("evict", self.window, block.ident, block.held)

    # -- store ------------------------------------------------------------------------------

    def store(
        self, request: LlmRequest, sequence: WindowSequence, keys: Sequence[BlockKey]
    ) -> None:
        """Makes the sequence's blocks findable under ``keys``.

        A slot that is taken stays as it is: ours remains outside the tree (RULES 11b).
        """
        first, node = sequence.settled(self.tree)
        stored = 0
        for index in range(first, min(len(keys), len(sequence.blocks))):
            key, block = keys[index], sequence.blocks[index]
            node = self.tree.ensure(node, key, request.tokens, index * self.size)
            if block is not None and self.window not in node.values:
                self.tree.attach(node, self.window, block)
                block.key = key
                block.full = key.length == self.size
                stored = index * self.size + key.length
                self.journal.fact("store", self.window, block.ident, index, key.length)
            if key.length == self.size and (block is None or block.node is node):
                sequence.settle(index, node)
        self.tree.prune(node)
        if stored:
            self.journal.inserted(request.seqs[0], self.window, stored)

    def on_path(self, sequence: WindowSequence, keys: Sequence[BlockKey]) -> list[Block]:
        """The blocks that the tree holds where a stored sequence has blocks of its own."""
        node, found = self.tree.root, []
        for key, block in zip(keys, sequence.blocks):
            node = node.children[key]
            if block is not None:
                found.append(node.values[self.window])
        return found

    # -- sequence ---------------------------------------------------------------------------

    def hole(self, request: LlmRequest, sequence: WindowSequence) -> None:
        """A column that was only traversed: the sequence holds no block there (RULES 4.1c, 8)."""
        sequence.blocks.append(None)
        sequence.ids.append(NULL)
        sequence.traversed = True
        for seq in request.seqs:
            self.journal.bind(seq, self.window, len(sequence.blocks) - 1, NULL, False)

    def copy_claim(
        self, request: LlmRequest, sequence: WindowSequence, claim: Claim, key: BlockKey
    ) -> tuple[int, int, int]:
        """A partly matching block is copied to a new one (RULES 5.1); (source, new, tokens)."""
        source = claim.block
        assert source is not None
        place = self.place(source)
        block = self.get_free(source.priority, source.duration)
        self._keep(block, key)
        self._share(request, sequence, block, fresh=True)
        self.journal.copy(self.window, place, self.place(block), self.size, claim.tokens)
        self.journal.fact("copy", self.window, source.ident, block.ident, claim.tokens)
        if claim.releases and not self.refs.counts[source.ident]:
            self.policy.release(source)
        return place[1], block.slot, claim.tokens

    def take_over(self, claim: Claim, key: BlockKey) -> None:
        """An idle leaf leaves the tree and goes on as this request's own block (RULES 5.1)."""
        block = claim.block
        assert block is not None
        if block.node is not None:
            self.tree.detach(block, self.window)
        self._keep(block, key)
        self.journal.fact("take", self.window, block.ident, claim.tokens)

    def share_claim(self, request: LlmRequest, sequence: WindowSequence, claim: Claim) -> None:
        """A claimed block becomes a column of all beams, from host if need be."""
        assert claim.block is not None
        if claim.block.level == HOST:
            self.onboard(claim.block)
        self._share(request, sequence, claim.block, fresh=False)

    def allocate(
        self,
        request: LlmRequest,
        sequence: WindowSequence,
        priority: int | None,
        duration: float | None,
        key: BlockKey | None,
        shared: bool,
    ) -> None:
        """One new column: a block for all beams, or one for each (RULES 5.2, 5.3)."""
        priority = DEFAULT_PRIORITY if priority is None else priority
        if shared:
            block = self.get_free(priority, duration)
            self._keep(block, key)
            self._share(request, sequence, block, fresh=True)
            return
        column = sequence.columns()
        beams = []
        for beam, seq in enumerate(request.seqs):
            block = self.get_free(priority, duration)
            self._keep(block, None if beam else key)
            self.refs.share(block.ident)
            self.journal.bind(seq, self.window, column, block.slot, True)
            beams.append(block)
        sequence.own.append(beams)

    def _keep(self, block: Block, key: BlockKey | None) -> None:
        """The block will hold what ``key`` says; a decode block keeps its old key till stored."""
        if key is not None:
            block.key = key
            block.full = key.length == self.size

    def _share(
        self, request: LlmRequest, sequence: WindowSequence, block: Block, fresh: bool
    ) -> None:
        column = len(sequence.blocks)
        sequence.blocks.append(block)
        sequence.ids.append(block.ident)
        for beam, seq in enumerate(request.seqs):
            self.refs.share(block.ident)
            self.journal.bind(seq, self.window, column, block.slot, fresh and beam == 0)

    def leave_window(self, request: LlmRequest, sequence: WindowSequence, num_tokens: int) -> None:
        """Blocks that no later token can see leave at the front (RULES 8)."""
        while num_tokens - sequence.removed * self.size >= self.window + self.size:
            index = sequence.removed
            block = sequence.blocks[index]
            sequence.removed += 1
            if block is None:
                continue
            sequence.blocks[index] = None
            block.duration = None
            self.journal.fact("detach_front", self.window, block.ident, index)
            self.journal.cut(request.seqs[0], self.window, index, index + 1)
            self.unreference(block)

    def drop_last(self, request: LlmRequest, sequence: WindowSequence) -> None:
        """The last column goes, to the front of the queue (RULES 11b, rewind)."""
        column = sequence.columns() - 1
        for seq in request.seqs:
            self.journal.cut(seq, self.window, column, column + 1)
        if sequence.own:
            for block in reversed(sequence.own.pop()):
                self.unreference(block, to_front=True)
            return
        sequence.unsettle()
        shared = sequence.blocks.pop()
        sequence.ids.pop()
        assert shared is not None, "only room behind the known tokens is rewound"
        for _ in request.seqs:
            self.unreference(shared, to_front=True)

    def release(self, request: LlmRequest, sequence: WindowSequence) -> None:
        """Gives all blocks back, last one first; what is not in the tree to the front (RULES 7)."""
        for column in reversed(sequence.own):
            for block in reversed(column):
                self.unreference(block, to_front=block.node is None)
        for shared in reversed(sequence.blocks):
            if shared is None:
                continue
            for _ in range(request.beam_width):
                self.unreference(shared, to_front=shared.node is None)
        sequence.blocks.clear()
        sequence.own.clear()
