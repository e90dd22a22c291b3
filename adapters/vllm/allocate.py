"""Granting blocks: the fit check, hit blocks, new blocks and keys in upstream's order.

(RULES 6.3, 7, 8 and 10; kv_cache_manager.py, kv_cache_coordinator.py,
single_type_kv_cache_manager.py)
"""

from __future__ import annotations

from handoff.types import NULL, Bind, Close, Copy, Cut, Event, Load, Open

from . import mamba
from .coordinator import Coordinator, Hit, Measure
from .insert import Insertion
from .keys import KeyTree, prefix_length
from .options import VllmOptions
from .pool import NULL_BLOCK, BlockPool
from .sizes import GroupSpec, Sizes, cdiv
from .state import Outbox, RequestState

__all__ = ["POOL", "KVCache"]

POOL = "kv"
"""Name of the one pool all groups share."""


class KVCache:
    """Blocks of all requests: look-up, allocation, insertion, release (the cache half)."""

    def __init__(self, options: VllmOptions, sizes: Sizes, out: Outbox) -> None:
        self.options = options
        self.sizes = sizes
        self.out = out
        self.caching = options.enable_prefix_caching
        self.pool = BlockPool(options.num_gpu_blocks)
        self.keys = KeyTree(sizes.hash_block)
        self.coordinator = Coordinator(self.pool, sizes)
        self.insertion = Insertion(options, sizes, self.pool, out)
        self._leaving = tuple(group for group in sizes.groups if group.leaves)
        self.has_states = any(group.type == "mamba" for group in sizes.groups)
        self._mambas = tuple(group for group in sizes.groups if group.type == "mamba")
        self._copies: list[list[tuple[int, int]]] = [[] for _ in sizes.groups]
        """Block copies (source, target) of this step, by group."""
        self._num_seqs = 0

    # -- look-up ----------------------------------------------------------------------------

    def find(self, state: RequestState) -> Hit:
        """The hit all groups agree on; notes the junction on the request."""
        if not self.caching or state.skip_reading:
            return self.coordinator.empty()
        hit = self.coordinator.find(state.keys, state.known)
        state.junction = hit.junction
        return hit

    def give_up(self, hit: Hit) -> Hit:
        """No hit, because replaying its window would compute all of it again (RULES 11)."""
        empty = self.coordinator.empty()
        empty.discarded = hit.tokens
        return empty

    def measure(self, state: RequestState, hit: Hit) -> Measure | None:
        """What the index holds for a request before any rule; ``None`` with caching off."""
        if not self.caching:
            return None
        return self.coordinator.measure(state.keys, state.known, hit.tokens)

    # -- allocation -------------------------------------------------------------------------

    def allocate(
        self,
        state: RequestState,
        new: int,
        *,
        hit: Hit | None = None,
        external: int = 0,
        lookahead: int = 0,
        loading: bool = False,
        watermark: int = 0,
        reserved: int = 0,
    ) -> bool:
        """Blocks for ``new`` more tokens of a request; False if they do not fit (RULES 6.3).

        ``hit`` is given on admission only (possibly empty). ``external`` tokens come from a
        connector; while they are ``loading`` nothing gets a key. ``watermark`` blocks must stay
        free, ``reserved`` ones are spoken for.
        """
        limit = self.options.max_model_len
        local = state.computed + (hit.tokens if hit else 0)
        total = min(local + external, limit)
        state.resume_at = total
        pool = self.pool
        slots = min(total + new + lookahead, limit)
        if hit is not None and self.options.scheduler_reserve_full_isl:
            everything = min(state.known, limit)
            if total + new < everything or state.computed:  # else the check below asks no less
                whole = self._needed(state, hit, everything, total, capped=True)
                if whole + watermark > pool.num_free:
                    return False
        computed_after = state.scheduled_to = total + new
        if hit is None and self._is_covered(state, slots):
            self.insertion.insert(state, min(computed_after, state.known))
            return True
        self.leave_windows(state, max(0, total - state.in_flight))
        needed = self._needed(state, hit, slots, total, after=computed_after)
        if needed + watermark > pool.num_free - reserved:
            return False
        if hit is not None and self._hits_this_step(hit):
            return False
        if hit is not None and state.seq < 0:
            state.measure = self.measure(state, hit)
            self._open(state)
        if hit is not None and (hit.tokens or external):
            self._take_hits(state, hit, total, external)
        for group in self.sizes.groups:
            self._grow(state, group, hit, slots, computed_after)
        if not loading:
            self.insertion.insert(state, min(computed_after, state.known))
        return True

    def _is_covered(self, state: RequestState, slots: int) -> bool:
        """Whether a running request needs no new block and has none that could leave.

        Nearly every decode step; it spares them the walk through all groups.
        """
        if self._leaving:
            return False
        return all(
            len(table) * group.block_size >= slots
            for table, group in zip(state.tables, self.sizes.groups)
        )

    def _open(self, state: RequestState) -> None:
        state.seq = self._num_seqs
        self._num_seqs += 1
        known = state.request.prompt
        if state.known > state.prompt_len:
            known = state.tokens.slice(0, state.known)
        self.out.ops.append(Open(state.seq, state.id, known, state.request.lora))

    def _needed(
        self,
        state: RequestState,
        hit: Hit | None,
        tokens: int,
        total: int,
        *,
        capped: bool = False,
        after: int = 0,
    ) -> int:
        """Blocks that all groups would take from the queue for ``tokens`` slots."""
        blocks = 0
        for group in self.sizes.groups:
            if group.type == "mamba":
                blocks += mamba.needed(self, state, group, hit, tokens if capped else after)
            else:
                blocks += self._needed_by(state, group, hit, tokens, total, capped)
        return blocks

    def _needed_by(
        self,
        state: RequestState,
        group: GroupSpec,
        hit: Hit | None,
        tokens: int,
        total: int,
        capped: bool,
    ) -> int:
        required = cdiv(tokens, group.block_size)
        if capped:
            required = min(required, self._admission_cap(group))
        held = len(state.tables[group.index])
        if hit is None or not (hit.tokens or state.computed == 0):
            return max(required - held, 0)
        skip = group.skipped(total) // group.block_size
        blocks = hit.blocks[group.index]
        fresh = max(required - max(skip, len(blocks) + held), 0)
        kept = blocks[max(0, skip - held) :]
        inside = bool(kept) and hit.tokens % group.block_size > 0
        return fresh + self.pool.num_idle(kept) + inside

    def _admission_cap(self, group: GroupSpec) -> int:
        """Most blocks a window group ever holds at once for one request (RULES 6.3)."""
        flying = self.sizes.batches * self.options.max_num_batched_tokens
        limit, size = self.options.max_model_len, group.block_size
        if group.type in ("swa", "swa_mla_replay"):
            return cdiv(min(group.window - 1 + group.extra + flying, limit), size) + 1
        if group.type == "local":
            return cdiv(min(group.chunk + flying, limit), size)
        return cdiv(limit, size)

    def least_blocks(self, prompt: int, total: int) -> int:
        """Blocks without which a request of ``total`` computed tokens can never end.

        Full attention holds all of them to the end; a window is widest while the prompt is
        computed, and never narrower than itself.
        """
        blocks = 0
        for group in self.sizes.groups:
            whole = cdiv(total, group.block_size)
            if group.type == "mamba":
                blocks += 1 + group.spec_blocks
            elif group.is_full:
                blocks += whole
            else:
                wide = min(cdiv(prompt, group.block_size), self._admission_cap(group))
                narrow = cdiv(group.window or group.chunk, group.block_size)
                blocks += max(wide, min(whole, narrow))
        return blocks

    def _take_hits(self, state: RequestState, hit: Hit, total: int, external: int) -> None:
        """Hold the hit blocks that are still in a window, then make room for external tokens."""
        ops = self.out.ops
        for group in self.sizes.groups:
            skip = group.skipped(total) // group.block_size
            kept = hit.blocks[group.index][skip:]
            self.pool.touch(kept)
            state.num_shared += len(kept) - kept.count(NULL_BLOCK)
            table = state.tables[group.index]
            table.extend([NULL_BLOCK] * skip)
            table.extend(kept)
            inside = hit.tokens % group.block_size > 0 and bool(kept)
            state.cached[group.index] = len(table) - inside
            if table:
                ops.append(Bind(state.seq, group.name, 0, _ids(table), False))
        if not external:
            return
        for group in self.sizes.groups:
            table = state.tables[group.index]
            start = max(hit.tokens, group.skipped(total))
            count = cdiv(total, group.block_size) - len(table)
            if start < total and count > 0:
                column = len(table)
                fresh = self.take(count)
                table.extend(fresh)
                ops.append(Bind(state.seq, group.name, column, tuple(fresh), True))
                ops.append(Load(state.seq, group.name, start, total, state.transfer))

    def _grow(
        self, state: RequestState, group: GroupSpec, hit: Hit | None, slots: int, after: int
    ) -> None:
        if group.type == "mamba":
            mamba.grow(self, state, group, hit, after)
            return
        table = state.tables[group.index]
        size = group.block_size
        count = cdiv(slots, size) - len(table)
        inside = hit is not None and hit.tokens % size > 0 and bool(hit.blocks[group.index])
        if inside:
            self.copy_on_write(state, group, len(table) - 1)
        if count > 0:
            column = len(table)
            fresh = self.take(count)
            table.extend(fresh)
            self.out.ops.append(Bind(state.seq, group.name, column, tuple(fresh), True))

    def take(self, count: int) -> list[int]:
        """New blocks from the front of the queue; says which keys that evicted."""
        fresh = self.pool.allocate(count)
        if self.pool.evicted:
            evicted = tuple(self.pool.evicted)
            self.pool.evicted.clear()
            self.out.events.append(Event("evict", ids=evicted, rule="4"))
        return fresh

    def copy_on_write(self, state: RequestState, group: GroupSpec, column: int) -> None:
        """Replace a shared block by a fresh copy of it (RULES 8)."""
        table = state.tables[group.index]
        source = table[column]
        (fresh,) = self.take(1)
        table[column] = fresh
        self.out.ops.append(Bind(state.seq, group.name, column, (fresh,), True))
        self.note_copy(group, source, fresh, hold=fresh)

    def note_copy(self, group: GroupSpec, source: int, target: int, *, hold: int) -> None:
        """Queue a block copy; both ends are held until the end of ``schedule()``.

        One end has a holder to spare (the hit's touch, or the new block's own), ``hold`` is the
        other one.
        """
        self.pool.touch((hold,))
        self._copies[group.index].append((source, target))

    def start_of_schedule(self) -> None:
        """States keyed up to now exist when this step runs."""
        self.insertion.keyed_now.clear()

    def end_of_schedule(self) -> None:
        """Send this step's copies off, group by group, and let go of their ends by turns."""
        ends: list[int] = []
        for group, copies in zip(self.sizes.groups, self._copies):
            size = 1 if group.type == "mamba" else group.block_size
            for source, target in copies:
                run = (source * size, target * size, size)
                self.out.ops.append(Copy(group.name, POOL, POOL, (run,)))
                ends += (source, target)
            copies.clear()
        if ends:
            self.pool.free(ends)

    def _hits_this_step(self, hit: Hit) -> bool:
        """A Mamba state that this very step will compute cannot be resumed in it (RULES 10)."""
        return any(
            blocks[-1] in self.insertion.keyed_now
            for blocks in (hit.blocks[group.index] for group in self._mambas)
            if blocks
        )

    # -- windows ----------------------------------------------------------------------------

    def leave_windows(self, state: RequestState, processed: int) -> None:
        """Free the blocks that ``processed`` tokens have left behind (RULES 7a)."""
        for group in self._leaving:
            table = state.tables[group.index]
            if not table:
                continue
            if group.type == "mamba":
                mamba.leave(self, state, group, processed)
            elif group.type == "rswa":
                first = cdiv(state.prompt_len, group.block_size)
                last = max(state.prompt_len, processed - group.window) // group.block_size
                self._leave(state, group, first, min(last, len(table)))
            else:
                last = group.skipped(processed) // group.block_size
                self._leave(state, group, 0, min(last, len(table)))

    def _leave(self, state: RequestState, group: GroupSpec, first: int, last: int) -> None:
        """Free columns ``[first, last)`` from the last down to the first hole."""
        table = state.tables[group.index]
        column = last
        while column > first and table[column - 1] != NULL_BLOCK:
            column -= 1
        if column < last:
            left = table[column:last]
            table[column:last] = [NULL_BLOCK] * (last - column)
            left.reverse()
            self.pool.free(left)
            self.out.ops.append(Cut(state.seq, group.name, column, last))

    # -- release ----------------------------------------------------------------------------

    def free(self, state: RequestState) -> None:
        """Give back all blocks: group by group, each table from its end (RULES 4)."""
        for table in state.tables:
            self.pool.free([block for block in reversed(table) if block != NULL_BLOCK])
        if state.seq >= 0:
            self.out.ops.append(Close(state.seq))
        state.seq = -1
        state.tables = [[] for _ in self.sizes.groups]
        state.cached = [0] * len(self.sizes.groups)

    def still_needed(self, state: RequestState) -> int:
        """Blocks that the rest of the known tokens will take."""
        return sum(
            max(cdiv(state.known, g.block_size) + g.spec_blocks - len(state.tables[g.index]), 0)
            for g in self.sizes.groups
        )

    def created(self, state: RequestState, hit_tokens: int) -> int:
        """Prompt tokens that this request made findable (``num_cache_creation_tokens``)."""
        if not self.caching:
            return 0
        reach = state.prompt_len
        for group in self.sizes.groups:
            if group.cacheable:
                primary = self.pool.primary
                lengths = [prefix_length(primary[b]) for b in state.tables[group.index] if b]
                reach = min(reach, max(lengths, default=0))
        return max(0, reach - hit_tokens)


def _ids(table: list[int]) -> tuple[int, ...]:
    return tuple(block or NULL for block in table) if NULL_BLOCK in table else tuple(table)
