"""Which step comes next, and which sequences run in it (RULES 3, 4; csrc/engine/scheduler.hpp)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from handoff.errors import HandoffError

from .edits import Edits
from .forks import Clones, Forks
from .images import fit_chunk
from .options import Options
from .pool import Pool
from .sequence import Sequence, Status
from .varlen import Varlen

__all__ = ["Batch", "EngineError", "Scheduled", "Scheduler"]


class EngineError(HandoffError):
    """Upstream raises here and its engine loop ends; ``label`` is the recordings' word for it."""

    def __init__(self, label: str, message: str) -> None:
        self.label = label
        super().__init__(f"{label}: {message}")


class Scheduled(NamedTuple):
    """``q`` rows of one sequence that end at position ``k``."""

    seq: Sequence
    q: int
    k: int
    rest: int = 0
    """Prompt tokens left after this chunk (upstream: ``chunked_rest_len``)."""
    forced: int | None = None
    """Golden token of a fork's first row: replaces the sampled one, unless it is -1."""


@dataclass(slots=True)
class Batch:
    """One step as scheduled."""

    kind: Literal["prefill", "decode"]
    rows: list[Scheduled] = field(default_factory=list)
    batched: int = 0
    ignored: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    clones: Clones = field(default_factory=Clones)


class Scheduler:
    """Queues and step choice of one data-parallel rank.

    ``waiting`` sequences need prefill, ``prompted`` forks need only a decode row, ``running`` ones
    decode. Finished ones stay in ``running`` until the next decode step takes them out.
    """

    def __init__(
        self, options: Options, edits: Edits, blocks: Pool, states: Pool | None, forks: Forks
    ) -> None:
        self.options = options
        self.edits = edits
        self.blocks = blocks
        self.states = states
        self.forks = forks
        self.varlen = Varlen(options.mtp_varlen_curve)
        self.waiting: deque[Sequence] = deque()
        self.prompted: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.decode_step = 0

    @property
    def unfinished(self) -> bool:
        """Whether any queue holds a sequence."""
        return bool(self.waiting or self.prompted or self.running)

    def schedule(self) -> Batch:
        """The next step: prefill if its turn has come and it has work, else decode (RULES 3.1)."""
        clones = Clones()  # those of a prefill that then schedules nothing run in the decode step
        batch = None
        if self.options.engine_type == "PROMPT":
            batch = self._prefill(clones)
        elif self._prefill_turn():
            batch = self._prefill(clones)
            if batch.rows or batch.ignored:
                self.decode_step = 0
            else:
                batch = None
        if batch is None:
            self.decode_step += 1
            batch = self._decode(clones)
        self.forks.launch(clones)
        return batch

    def _prefill_turn(self) -> bool:
        done, options = self.decode_step, self.options
        due = done % options.prefill_interval == 0 or (
            done != 0 and done % options.prefill_any_interval == 0
        )
        head = self.waiting[0] if self.waiting else None
        return due and not self.blocks.above_watermark and head is not None and head.schedulable

    def lacks(self, seq: Sequence) -> int:
        """Blocks that a waiting sequence must get before it can run (RULES 2.4, 3.2)."""
        size = self.options.block_size
        if not seq.table:
            return seq.need(size)
        return seq.need(size) - seq.num_tokens // size if seq.branch.startswith("_") else 0

    # -- memory -----------------------------------------------------------------------------

    def room(self, number: int) -> str:
        """Verdict for ``number`` blocks and one state (RULES 2.1)."""
        verdict = self.blocks.can_allocate(number)
        if verdict == "OK" and self.states is not None and not self.states.free:
            return "LATER"
        return verdict

    def allocate(self, seq: Sequence) -> None:
        """Blocks for everything known, then a state."""
        seq.table = self.blocks.allocate(seq.need(self.options.block_size))
        self.edits.bind(seq, 0, seq.table, fresh=True)
        if self.states is not None:
            (seq.state,) = self.states.allocate(1)
            self.forks.ring_stop[seq.state] = seq.num_tokens
            self.edits.bind_state(seq, fresh=True)
        if seq.num_tokens:
            self._bare(seq)

    def _bare(self, seq: Sequence) -> None:
        """Tokens said to be ready before there were blocks: nobody filled them (RULES 2.3).

        Upstream reads whatever the blocks and the ring held; they are given as zeros.
        """
        self.edits.zero_blocks(seq.table, seq.num_tokens)
        for ring in self.edits.rings:
            self.edits.zero_ring(ring, seq.state)
        seq.mark_unsound("2.3")
        self.edits.event("unsound", seq, "2.3", tokens=seq.num_tokens)

    def free(self, seq: Sequence) -> None:
        """Give up state and blocks, in this order; the state field stays stale (RULES 2.1)."""
        if self.states is not None and seq.table:
            self.states.release((seq.state,))
        self.blocks.release(seq.table)
        seq.table = []
        self.edits.close(seq)

    # -- prefill (RULES 3.2) ----------------------------------------------------------------

    def _prefill(self, clones: Clones) -> Batch:
        batch = Batch("prefill", clones=clones)
        options = self.options
        unit = 2 * options.cp if options.cp > 1 else 1
        count = len(self.running)
        sum_k = options.prefill_max_sum_seqlen_k
        while self.waiting:
            seq = self.waiting[0]
            if seq.status.finished:
                self._ignore(batch, seq.status)  # its blocks are not freed: upstream leaks them
                continue
            if not seq.schedulable:
                break
            verdict = self._memory(seq, batch)
            if verdict == "ignored":
                continue
            if verdict == "stop" or count + 1 > options.max_num_seqs or sum_k < seq.length:
                break
            sum_k -= seq.length
            tokens = self._chunk(seq, batch, unit)
            if tokens is None:
                break
            work = seq.length - seq.num_tokens
            batch.batched += -(-tokens // unit) * unit
            if batch.batched > options.token_budget:
                raise EngineError("over_budget", f"{batch.batched} tokens in one prefill step")
            self._guard(seq.num_tokens + tokens)
            if not seq.table:
                self.edits.open(seq)
                self.allocate(seq)
            self.waiting.popleft()
            if tokens == work:
                count += 1
                seq.status = Status.RUNNING
            batch.rows.append(Scheduled(seq, tokens, seq.num_tokens + tokens, work - tokens))
            if tokens < work and options.engine_type == "NORMAL":
                break
        return batch

    def _guard(self, end: int) -> None:
        """Positions stay inside of upstream's position tables (RULES 4, last but one item)."""
        options = self.options
        limit = options.max_model_len + 2 * options.drafts
        limit += options.drafts + 1 if options.asynchronous else 0
        if end > limit:
            raise EngineError("position_beyond_limit", f"{end} tokens, the tables hold {limit}")

    def _ignore(self, batch: Batch, status: Status) -> None:
        seq = self.waiting.popleft()
        seq.status = status
        batch.ignored.append(seq)
        self.edits.close(seq)

    def _memory(self, seq: Sequence, batch: Batch) -> Literal["ok", "stop", "ignored"]:
        """Item 3: a fresh prompt must fit, a ``_`` fork gets its copies now."""
        private = seq.branch.startswith("_") and bool(seq.table)
        if seq.table and not private:
            return "ok"
        if seq.length > self.options.prompt_limit:
            if private:
                self.free(seq)
            self._ignore(batch, Status.FINISHED_IGNORED)
            return "ignored"
        need = self.lacks(seq)
        verdict = self.room(need)
        if verdict == "LATER":
            return "stop"
        if verdict == "NEVER":
            if private:
                raise EngineError("fork_never_fits", f"{seq.id} needs {need} blocks")
            self._ignore(batch, Status.FINISHED_IGNORED)
            return "ignored"
        if private:
            self.forks.run_by_prefill(seq, need, batch.clones)
        return "ok"

    def _chunk(self, seq: Sequence, batch: Batch, unit: int) -> int | None:
        """Items 4 to 7: how many prompt tokens run now, or ``None`` to stop the queue."""
        options = self.options
        work = seq.length - seq.num_tokens
        ahead = options.lookahead_tokens
        if ahead and work < ahead:
            raise EngineError("workload_below_lookahead", f"{seq.id}: {work} tokens left")
        if ahead and seq.table and 0 < seq.num_tokens < ahead:
            raise EngineError("hit_below_lookahead", f"{seq.id}: {seq.num_tokens} tokens ready")
        room = options.token_budget - batch.batched
        tokens = min(work, room // unit * unit)
        points = [point for point in seq.checkpoints if point > seq.num_tokens]
        if points and seq.num_tokens + tokens >= points[0]:
            tokens = points.pop(0) - seq.num_tokens
        seq.checkpoints = points
        tokens = fit_chunk(seq, tokens, room, options.shape.vocab_size, first=not batch.rows)
        if tokens == 0:
            if not batch.rows:
                raise EngineError("head_has_nothing_to_run", f"{seq.id}: all {seq.length} ready")
            return None
        if (tokens < work and not options.chunked_prefill) or tokens < ahead:
            return None
        if seq.valid_start > seq.num_tokens:
            raise EngineError("valid_start_above_start", f"{seq.id}: {seq.valid_start}")
        return tokens

    # -- decode (RULES 4) -------------------------------------------------------------------

    def _decode(self, clones: Clones) -> Batch:
        batch = Batch("decode", clones=clones)
        batch.finished = [seq for seq in self.running if seq.status.finished]
        self.running = [seq for seq in self.running if not seq.status.finished]
        for seq in [seq for seq in self.waiting if seq.status.finished]:
            self.waiting.remove(seq)
            batch.ignored.append(seq)
            self.edits.close(seq)
        self._admit_prompted(batch)
        chosen = self._choose(batch)
        chosen.sort(key=lambda seq: -seq.length)
        self.running = chosen
        rows = self.varlen.rows(chosen)
        for seq, q in zip(chosen, rows):
            start = seq.num_tokens + seq.inflight
            self._guard(start + 1 + 2 * self.options.drafts)
            batch.rows.append(Scheduled(seq, q, start + q, forced=seq.forced))
            seq.forced = None
            batch.batched += q
        return batch

    def _admit_prompted(self, batch: Batch) -> None:
        """Forks that need only a decode row; each takes one block and one state."""
        while self.prompted and len(self.running) < self.options.max_num_seqs:
            seq = self.prompted[0]
            if seq.status is Status.FINISHED_ABORTED:
                batch.finished.append(self.prompted.popleft())
                continue
            if not self.blocks.free or (self.states is not None and not self.states.free):
                break
            self.prompted.popleft()
            self.forks.run_by_decode(seq, batch.clones)
            if seq.status is Status.FINISHED_LENGTH_CAPPED:
                batch.finished.append(seq)
                continue
            seq.status = Status.RUNNING
            self.running.append(seq)

    @property
    def padding(self) -> tuple[int, ...]:
        """What a sequence holds as drafts before its first decode row (RULES 7)."""
        return (self.options.shape.vocab_size - 1,) * self.options.drafts

    def _choose(self, batch: Batch) -> list[Sequence]:
        """Fewest outputs first; while no block is free, the one with most outputs goes.

        Ties keep their order; beyond 16 sequences upstream's unstable sort may differ.
        """
        queue = deque(sorted(self.running, key=lambda seq: -seq.num_outputs))
        chosen = []
        while queue:
            seq = queue.pop()
            while not self.blocks.free and queue:
                self._preempt(queue.popleft(), batch)
            if self.blocks.free:
                self._fit_table(seq)
                chosen.append(seq)
            else:
                self._preempt(seq, batch)
        return chosen

    def _fit_table(self, seq: Sequence) -> None:
        """Append one block or free the surplus tail (RULES 4.3)."""
        need, have = seq.need(self.options.block_size), len(seq.table)
        if need > have:
            if need > have + 1:
                raise EngineError("table_gap", f"{seq.id} needs {need - have} blocks at once")
            new = self.blocks.allocate(1)
            self.edits.bind(seq, have, new, fresh=True)
            seq.table += new
        elif need < have:
            self.blocks.release(seq.table[need:])
            self.edits.cut(seq, need, have)
            del seq.table[need:]

    def _preempt(self, seq: Sequence, batch: Batch) -> None:
        """Take everything away; the hit is lost and the prompt starts from 0 again."""
        self.edits.event("preempt", seq, "4")
        self.free(seq)
        if self.options.stop_preempted_request:
            seq.status = Status.FINISHED_PREEMPTED
            batch.ignored.append(seq)
            return
        seq.restart()
        self.waiting.appendleft(seq)
