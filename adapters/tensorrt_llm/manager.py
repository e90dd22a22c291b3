"""The KV cache manager: all windows together, from adding a batch to removing a sequence.

(RULES 5, 7, 8, 11b and 11d; kvCacheManager.cpp, resource_manager.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handoff.errors import Unsupported

from .blocks import PRIMARY
from .claims import ClaimedRequest, Claims, Use
from .journal import Journal
from .match import WindowMatch, look_up
from .options import Options
from .request import LlmRequest
from .sequence import WindowSequence
from .tree import ReuseTree
from .window import WindowManager

__all__ = ["Admission", "Admitted", "KVCacheManager", "OpenSequence"]


@dataclass(slots=True)
class Admitted:
    """One window's part of an admission.

    ``shared`` leading columns are used as they are (holes included); ``copied`` are (source slot,
    new slot, tokens), ``taken`` tokens lie in a block that was taken over; ``from_host`` tokens lay
    in the secondary pool.
    """

    match: WindowMatch
    matched: int
    from_host: int
    shared: int = 0
    copied: tuple[tuple[int, int, int], ...] = ()
    taken: int = 0


@dataclass(slots=True)
class Admission:
    """What adding a request gave, window by window from the largest.

    ``chunk`` is the chunk planned behind the hit, before the budget is corrected.
    """

    request: LlmRequest
    windows: list[Admitted]
    chunk: int = 0

    @property
    def hit(self) -> int:
        """Tokens that need no computation: the minimum over the windows (RULES 5, 8)."""
        return min(part.matched for part in self.windows)


@dataclass(slots=True)
class OpenSequence:
    """A sequence of the cache: tokens it has room for, and its blocks per window."""

    num_tokens: int
    windows: list[WindowSequence]


class KVCacheManager:
    """Blocks of all windows; windows stand from the largest to the smallest."""

    def __init__(self, options: Options, journal: Journal) -> None:
        self.options = options
        self.journal = journal
        self.tree = ReuseTree()
        self.windows = [
            WindowManager(window, options, self.tree, journal) for window in options.windows
        ]
        self.sequences: dict[str, OpenSequence] = {}
        """By request id."""

    # -- clock and state --------------------------------------------------------------------

    def set_now(self, milliseconds: float) -> None:
        """Moves the virtual clock of the eviction policies."""
        for manager in self.windows:
            manager.policy.now = milliseconds

    def refresh_blocks(self) -> None:
        """Ends expired priorities (RULES 7); upstream does it after each prepare_resources."""
        for manager in self.windows:
            manager.policy.refresh()

    def free_blocks(self) -> list[int]:
        """Free primary blocks per window; cached idle blocks count as free."""
        return [manager.policy.num_free[PRIMARY] for manager in self.windows]

    def sequence(self, request: LlmRequest) -> list[WindowSequence]:
        """The sequence's blocks per window; empty before it was added."""
        found = self.sequences.get(request.id)
        return found.windows if found is not None else []

    def num_tokens(self, request: LlmRequest) -> int:
        """Tokens the sequence has room for."""
        return self.sequences[request.id].num_tokens

    # -- add --------------------------------------------------------------------------------

    def add_sequence_batch(self, requests: Sequence[LlmRequest]) -> list[Admission]:
        """Matches and allocates the whole prompts of a batch, window after window (RULES 5).

        Each request then starts behind its hit. Raises ``NoFreeBlock`` if the scheduler let too
        much through.
        """
        admissions = [Admission(request, []) for request in requests]
        for request in requests:
            windows = [WindowSequence() for _ in self.windows]
            self.sequences[request.id] = OpenSequence(request.prompt_len, windows)
            for seq in request.seqs:
                self.journal.open(seq, request)
        for index, manager in enumerate(self.windows):
            claims = Claims(manager)
            claimed = []
            for admission in admissions:
                match = look_up(manager, admission.request, self.options, self._cap(admission))
                claimed.append(claims.claim(admission.request, match.walk))
                admission.windows.append(Admitted(match, claimed[-1].tokens, claimed[-1].from_host))
            for admission, part in zip(admissions, claimed):
                self._occupy(manager, index, part, admission.windows[-1])
        for admission in admissions:
            if self.options.enable_block_reuse:
                admission.request.set_prepopulated(admission.hit)
            admission.chunk = admission.request.chunk
        return admissions

    @staticmethod
    def _cap(admission: Admission) -> int | None:
        return admission.hit if admission.windows else None

    def _occupy(
        self, manager: WindowManager, index: int, claimed: ClaimedRequest, admitted: Admitted
    ) -> None:
        """Phase two for one request: copies, take-overs and onboarding, then new blocks."""
        request = claimed.request
        sequence = self.sequences[request.id].windows[index]
        alloc, alloc_new = manager.num_alloc, manager.num_alloc_new
        keys = request.lookup_keys(manager.prompt_limit)
        for column, claim in enumerate(claimed.claims):
            if claim.use is Use.HOLE:
                manager.hole(request, sequence)
                continue
            request.reused += 1
            if claim.use is Use.COPY:
                admitted.copied += (manager.copy_claim(request, sequence, claim, keys[column]),)
                continue
            if claim.use is Use.TAKE:
                manager.take_over(claim, keys[column])
                admitted.taken = claim.tokens
            else:
                admitted.shared = column + 1
            manager.share_claim(request, sequence, claim)
        for column in range(len(claimed.claims), len(claimed.retention)):
            priority, duration = claimed.retention[column]
            shared = column < claimed.num_shared
            key = keys[column] if column < len(keys) else None
            manager.allocate(request, sequence, priority, duration, key, shared)
            request.missed += 1
        request.alloc += manager.num_alloc - alloc
        request.alloc_new += manager.num_alloc_new - alloc_new

    # -- decode -----------------------------------------------------------------------------

    def add_token(self, request: LlmRequest) -> None:
        """Room for one more token; blocks may leave the window, a block may be added (RULES 8)."""
        sequence = self.sequences[request.id]
        sequence.num_tokens += 1
        retention = request.retention
        for manager, blocks in zip(self.windows, sequence.windows):
            if manager.sliding:
                if request.beam_width > 1:
                    raise Unsupported("sliding windows with beams: upstream detaches for one beam")
                manager.leave_window(request, blocks, sequence.num_tokens)
            if (sequence.num_tokens - 1) % manager.size == 0:
                manager.allocate(
                    *(request, blocks, retention.decode_priority, retention.decode_duration),
                    key=None,
                    shared=request.beam_width == 1,
                )

    def rewind(self, request: LlmRequest, tokens: int) -> None:
        """Takes back room for rejected drafts; an emptied block goes to the front (RULES 11b)."""
        sequence = self.sequences[request.id]
        for _ in range(tokens):
            sequence.num_tokens -= 1
            for manager, blocks in zip(self.windows, sequence.windows):
                if sequence.num_tokens % manager.window % manager.size == 0:
                    manager.drop_last(request, blocks)

    # -- store and release ------------------------------------------------------------------

    def store_context(self, request: LlmRequest) -> None:
        """Makes the whole blocks of the computed prompt findable (RULES 11b)."""
        if not self.options.enable_block_reuse:
            return
        keys = request.full_keys(max(0, request.materialized - 1))
        for manager, sequence in zip(self.windows, self.sequence(request)):
            if not sequence.traversed:
                manager.store(request, sequence, keys)

    def remove_sequence(self, request: LlmRequest, store: bool = True) -> None:
        """Stores what the request leaves behind, then gives its blocks back (RULES 7, 11b)."""
        self.journal.fact("remove", 0)
        if store and self.options.enable_block_reuse and request.beam_width == 1:
            usable = max(0, request.materialized - 1)
            if request.position == 0 and usable == 0:  # upstream's fallback for unit tests
                usable = len(request.tokens) - 1
            keys = request.keys(usable)
            for manager, sequence in zip(self.windows, self.sequence(request)):
                manager.store(request, sequence, keys)
        for manager, sequence in zip(self.windows, self.sequence(request)):
            manager.release(request, sequence)
        del self.sequences[request.id]
        for seq in request.seqs:
            self.journal.close(seq)

    def store_pinned(self, request: LlmRequest) -> list[int]:
        """Stores as at the end and references every block on the way; returns their ids."""
        if len(self.windows) > 1:
            raise Unsupported("pinning by id with several windows (RULES 8)")
        (manager,), (sequence,) = self.windows, self.sequence(request)
        keys = request.keys(max(0, request.materialized - 1))
        manager.store(request, sequence, keys)
        pinned = manager.on_path(sequence, keys)
        for block in pinned:
            if block.queued:
                manager.policy.claim(block, None, None)
            manager.refs.share(block.ident)
        return [block.ident for block in pinned]

    def unpin_blocks_by_id(self, blocks: Sequence[int]) -> None:
        """One reference less for each; an idle one goes to the back of its queue."""
        (manager,) = self.windows
        for ident in blocks:
            manager.unreference(manager.blocks[ident])
