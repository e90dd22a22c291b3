"""``fork_seq``: a new sequence over the blocks and the state of another one, and its late copies.

A fork shares ids and copies nothing until it is scheduled. Only a branch name that starts with
``_``, or the way through ``prompted``, gives it private blocks (RULES 2.4;
csrc/engine/sequence.hpp, scheduler.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from handoff.errors import HandoffError
from handoff.types import Deduction

from .edits import Edits
from .pool import Pool
from .sequence import Grant, Sequence, Status

__all__ = ["Clones", "ForkError", "Forks"]


class ForkError(HandoffError):
    """A fork that upstream refuses."""


@dataclass(slots=True)
class Clones:
    """Pairs (old, new) of blocks and states; new 0 means that the old one is only released."""

    blocks: list[tuple[int, int]] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    """Destination block -> how many of its slots hold tokens."""
    stale: dict[int, tuple[int, int]] = field(default_factory=dict)
    """New state -> positions that the old ring does not hold any more."""


class Forks:
    """Makes forks and gives them private copies when they are scheduled."""

    def __init__(self, edits: Edits, blocks: Pool, states: Pool | None, block_size: int) -> None:
        self.edits = edits
        self.blocks = blocks
        self.states = states
        self.block_size = block_size
        self.ring_stop: dict[int, int] = {}
        """State id -> one past the last position that was written into its ring."""
        self.ring_size = self.edits.rings[0].block_size if self.edits.rings else 0

    def fork(
        self,
        name: str,
        source: Sequence,
        branch: str,
        max_tokens: int,
        *,
        blocks: list[int] | None = None,
        replace_last: int | None = None,
        forced: int = -1,
        max_model_len: int,
    ) -> Sequence:
        """The new sequence; its references are taken, it is not queued yet."""
        table = list(source.table if blocks is None else blocks)
        if source.num_tokens <= 0 or not table:
            raise ForkError(f"{name}: the source {source.id} has no KV to share")
        tokens = source.tokens.slice(0, source.length)
        if replace_last is not None and replace_last >= 0:
            tokens = source.tokens.slice(0, source.length - 1)
            tokens.append(replace_last)
        incomplete = source.num_tokens < source.length - 1
        ready = min(source.num_tokens, source.length - 1)
        seq = Sequence(
            id=name,
            request_id=source.request_id,
            tokens=tokens,
            prompt_len=source.length,
            max_tokens=max_tokens,
            branch=branch,
            lora=source.lora,
            num_tokens=ready,
            table=table,
            state=source.state,
            cached_hit_tokens=source.cached_hit_tokens,
            forced=None if incomplete else forced,
            grant=source.grant if source.is_probe else _grant(source, ready),
        )
        if source.length > max_model_len:
            seq.status = Status.FINISHED_LENGTH_CAPPED
        self.blocks.share(table)
        if self.states is not None:
            self.states.share((seq.state,))
        self._open(seq, incomplete)
        return seq

    def _open(self, seq: Sequence, incomplete: bool) -> None:
        """Bind what the fork will keep; what it clones later is only referenced until then.

        Without a ``_`` an incomplete fork keeps everything and writes into the shared blocks.
        """
        self.edits.open(seq)
        if not incomplete:
            kept = -(-seq.num_tokens // self.block_size) - 1
        elif seq.branch.startswith("_"):
            kept = seq.num_tokens // self.block_size
        else:
            kept = len(seq.table)
            self.edits.bind_state(seq, fresh=False)
        self.edits.bind(seq, 0, seq.table[:kept], fresh=False)

    def run_by_prefill(self, seq: Sequence, need: int, clones: Clones) -> None:
        """Private copies for a ``_`` branch at the head of ``waiting``; ``need`` new blocks."""
        keep = seq.num_tokens // self.block_size
        seq.branch = seq.branch.removeprefix("_")
        self._clone_state(seq, clones)
        new = self.blocks.allocate(need)
        self.edits.bind(seq, keep, new, fresh=True)
        rest = seq.table[keep:]
        partial = seq.num_tokens % self.block_size
        if partial:
            self._clone_block(seq, rest[0], new[0], partial, clones)
        for block in rest[1 if partial else 0 :]:
            clones.blocks.append((block, 0))
        seq.table = seq.table[:keep] + new

    def run_by_decode(self, seq: Sequence, clones: Clones) -> None:
        """Private copies for a fork that starts to decode: the last block, full or not."""
        self._clone_state(seq, clones)
        (new,) = self.blocks.allocate(1)
        last = -(-seq.num_tokens // self.block_size) - 1
        self.edits.bind(seq, last, [new], fresh=True)
        tokens = seq.num_tokens - last * self.block_size
        self._clone_block(seq, seq.table[last], new, tokens, clones)
        for block in seq.table[last + 1 :]:
            clones.blocks.append((block, 0))
        seq.table = [*seq.table[:last], new]

    def _clone_block(self, seq: Sequence, old: int, new: int, tokens: int, clones: Clones) -> None:
        clones.blocks.append((old, new))
        clones.tokens[new] = tokens
        seq.copied = ((old, new, tokens),)

    def _clone_state(self, seq: Sequence, clones: Clones) -> None:
        if self.states is None:
            return
        (new,) = self.states.allocate(1)
        clones.states.append((seq.state, new))
        self._find_stale(seq, new, clones)
        seq.state = new
        self.edits.bind_state(seq, fresh=True)

    def _find_stale(self, seq: Sequence, new: int, clones: Clones) -> None:
        """Positions that the fork still sees but that the source has overwritten meanwhile.

        A source that decodes on while its fork waits writes round the shared ring; the late copy
        then holds position p + SB where the fork reads p. Upstream does not notice. The slots are
        given as zeros, so that they are known to be wrong instead of silently foreign.
        """
        stop = self.ring_stop.get(seq.state, 0)
        self.ring_stop[new] = stop
        if not self.edits.rings:
            return
        window = self.edits.rings[0].window or 0
        first = max(0, seq.num_tokens - window + 1)
        last = min(seq.num_tokens, stop - self.ring_size)
        if first < last:
            clones.stale[new] = (first, last)
            self.edits.event("unsound", seq, "5", tokens=last - first)
            seq.mark_unsound("5")

    def launch(self, clones: Clones) -> None:
        """Run the copies, then give up the sources: states first, each list backwards."""
        for old, new in clones.blocks:
            if new:
                self.edits.copy_block(old, new, clones.tokens[new])
        for old, new in clones.states:
            self.edits.copy_state(old, new, clones.stale.get(new, (0, 0)))
        if self.states is not None:
            self.states.release([old for old, _ in clones.states])
        self.blocks.release([old for old, _ in clones.blocks])


def _grant(source: Sequence, ready: int) -> Grant:
    """A fork's hit is the source's number of ready tokens, at most all but the last."""
    lost: tuple[Deduction, ...] = ()
    if source.num_tokens > ready:
        lost = (
            Deduction(
                "last_token", ready, source.num_tokens, "2.4", note="min(source.num, len - 1)"
            ),
        )
    return Grant(
        raw=source.num_tokens,
        hit=ready,
        deductions=lost,
        matcher=f"fork_seq: copies the number of ready tokens of {source.id}",
        references="one more reference to every block and to the state of the source",
    )
