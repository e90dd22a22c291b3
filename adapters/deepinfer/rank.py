"""What an outside KV system can do to one rank: queue, allocate, inject, fork, pin (RULES 2, 9).

DeepInfer never looks for a hit. Whoever sits outside sets the number of ready tokens, and must see
to it that blocks and rings really hold them.
"""

from __future__ import annotations

from handoff.errors import HandoffError
from handoff.types import Request

from .edits import Edits
from .forks import Forks
from .layout import BLOCKS, CONSUMER, make_layout
from .options import Options
from .pool import Pool, Verdict
from .scheduler import Scheduler
from .sequence import Grant, Sequence

__all__ = ["Rank"]


class Rank:
    """Pools, queues and the operations on them that come from outside."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.layout = make_layout(options)
        self.blocks = Pool(options.num_blocks)
        self.states = Pool(options.num_states) if options.num_states else None
        self.edits = Edits(self.layout)
        self.forks = Forks(self.edits, self.blocks, self.states, options.block_size)
        self.scheduler = Scheduler(options, self.edits, self.blocks, self.states, self.forks)

    def sequence_of(self, request: Request) -> Sequence:
        """A sequence for a request; not queued yet."""
        return Sequence(
            id=request.id,
            request_id=request.id,
            tokens=request.prompt.slice(0, len(request.prompt)),
            prompt_len=len(request.prompt),
            max_tokens=request.max_tokens,
            lora=request.lora,
        )

    def enqueue(self, seq: Sequence) -> None:
        """To the back of ``waiting``."""
        self.scheduler.waiting.append(seq)

    def try_allocate(self, seq: Sequence) -> bool:
        """Private blocks and a state before queueing; False if they lack now (RULES 2.2)."""
        verdict = self.scheduler.room(seq.need(self.options.block_size))
        if verdict == "NEVER":
            raise HandoffError(f"{seq.id} can never be allocated")
        if verdict == "LATER":
            return False
        self.edits.open(seq)
        self.scheduler.allocate(seq)
        return True

    def fits_beside_watermark(self, seq: Sequence) -> Verdict:
        """Whether a load now leaves prefill possible: usage at most 90 % after it (RULES 9.5).

        Prompts ahead in the queue will take blocks, too; they count.
        """
        size = self.options.block_size
        need = seq.need(size)
        if self.blocks.can_allocate(need + self.watermark_blocks) == "NEVER":
            return "NEVER"
        spare = len(self.blocks.free) - need - self.watermark_blocks
        for ahead in self.scheduler.waiting:
            if spare < 0:
                break
            spare -= 0 if ahead.table else ahead.need(size)
        return "OK" if spare >= 0 and self.scheduler.room(need) == "OK" else "LATER"

    def blocks_wanted(self) -> int:
        """Free blocks that the next step could use: for the head of the queue, for decoding."""
        scheduler = self.scheduler
        wanted = len(scheduler.running) + len(scheduler.prompted)
        if scheduler.waiting:
            head = scheduler.waiting[0]
            wanted = max(wanted, self.watermark_blocks, scheduler.lacks(head))
        return wanted

    @property
    def watermark_blocks(self) -> int:
        """Free blocks that keep the usage at or below 90 %."""
        return -(-self.blocks.size // 10)

    def inject(self, seq: Sequence, grant: Grant, valid_start: int = 0) -> None:
        """Set the number of ready tokens; fill blocks and rings if the sequence has any."""
        hit = grant.hit
        seq.num_tokens = hit
        seq.valid_start = valid_start
        seq.grant = grant
        if not seq.table:
            return  # a bare number: blocks come when it is scheduled (RULES 2.3)
        seq.cached_hit_tokens = hit
        self.edits.load(seq, BLOCKS, 0, hit)
        self._restore_rings(seq)

    def _restore_rings(self, seq: Sequence) -> None:
        """Fill the window before the hit, in the rings that a store keeps (RULES 9.3, 9.4).

        Producer rings are restored for ``[max(vs, H - W), H)``. Consumer rings are restored only
        where nothing is truncated: the store keeps none, so a hit beyond L - K leaves a consumer
        window that nobody filled. What nobody filled is given as zeros.
        """
        hit = seq.num_tokens
        self.forks.ring_stop[seq.state] = hit
        for ring in self.edits.rings:
            if ring.name == CONSUMER and self.options.truncates:
                if hit > seq.length - self.options.keep:
                    self.edits.zero_ring(ring, seq.state)
                    self._unsound(seq, "9.3")
                continue
            if seq.valid_start:
                self.edits.zero_ring(ring, seq.state)
            first = max(seq.valid_start, hit - self.options.shape.window_size, 0)
            self.edits.load(seq, ring.name, first, hit)

    def _unsound(self, seq: Sequence, rule: str) -> None:
        seq.mark_unsound(rule)
        self.edits.event("unsound", seq, rule, tokens=seq.num_tokens)

    def probe_of(self, request: Request, grant: Grant) -> Sequence | None:
        """A sequence that only holds a restored state, to be forked; ``None`` if none is free."""
        seq = self.sequence_of(request)
        seq.is_probe = True
        seq.id = f"{request.id}#probe"
        seq.num_tokens = seq.cached_hit_tokens = grant.hit
        seq.grant = grant
        if self.states is None:
            return seq
        if len(self.states.free) < 2:  # one for the restored state, one for its copy
            return None
        (seq.state,) = self.states.allocate(1)
        if self.edits.rings:
            self.edits.open(seq)
            self.edits.bind_state(seq, fresh=True)
            self._restore_rings(seq)
        return seq

    def drop_probe(self, seq: Sequence) -> None:
        """Give up the restored state."""
        if self.states is not None:
            self.states.release((seq.state,))
        self.edits.close(seq)

    def fork_seq(
        self,
        name: str,
        source: Sequence,
        branch: str,
        max_tokens: int,
        *,
        blocks: list[int] | None = None,
        replace_last: int | None = None,
        forced: int = -1,
    ) -> Sequence:
        """Fork ``source`` and queue the fork: incomplete ones first, others await decode."""
        seq = self.forks.fork(
            name,
            source,
            branch,
            max_tokens,
            blocks=blocks,
            replace_last=replace_last,
            forced=forced,
            max_model_len=self.options.max_model_len,
        )
        if source.num_tokens < source.length - 1:
            self.scheduler.waiting.appendleft(seq)
        else:
            self.scheduler.prompted.append(seq)
        return seq

    def hold(self, number: int) -> list[int]:
        """Blocks that the outside takes for itself."""
        return self.blocks.allocate(number)

    def drop(self, ids: list[int]) -> None:
        """Un-pin blocks."""
        self.blocks.release(ids)
