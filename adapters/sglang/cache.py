"""The prefix cache of one server: match, room, checkpoint, release (rules 2, 3, 5, 6).

Joins the tree with its slot pools. Window KV (``windows``), recurrent states (``states``) and the
host tier (``host``) exist where the options ask for them. Sources:
``mem_cache/unified_radix_cache.py``, ``mem_cache/allocation.py``, ``mem_cache/common.py``.
"""

from __future__ import annotations

import numpy as np

from handoff.types import NULL, Bind, Copy, Cut, Event, Op, Open

from .hicache import HostTier
from .insert import Inserter
from .journal import Journal
from .layout import FULL, RING, STATE, SWA
from .lookup import Found, Lookup
from .mamba import States
from .node import Node
from .options import Options
from .req import Req
from .room import Room
from .slots import Blocks, FreeList
from .swa import Windows
from .tree import RadixTree
from .window import replay_len

__all__ = ["PrefixCache"]


class PrefixCache:
    """Guarantees that every block is free, owned by the tree, or private to one row."""

    def __init__(self, options: Options, journal: Journal) -> None:
        page = options.page_size
        self.options = options
        self.page = page
        self.journal = journal
        self.disabled = options.disable_radix_cache
        self.ops: list[Op] = []
        """Operations that the bookkeeping asked for since the last Step, in order."""
        self.events: list[Event] = []
        self.slots = FreeList(options.max_total_tokens // page, lifo=page > 1)
        self.tree = RadixTree(options)
        self.windows: Windows | None = None
        self.states: States | None = None
        self.host: HostTier | None = None
        if options.attention == "swa":
            assert options.sliding_window_size is not None
            pool = FreeList(options.swa_tokens // page, lifo=page > 1)
            self.windows = Windows(options.sliding_window_size, page, pool)
            self.tree.components.append(self.windows)
        elif options.attention == "mamba":
            self.states = States(FreeList(options.max_mamba_cache_size, lifo=False))
            self.tree.components.append(self.states)
        self.rings: FreeList | None = None
        if options.ring_rows:
            self.rings = FreeList(options.running_limit, lifo=False)
        if options.enable_hierarchical_cache:
            self.host = HostTier(self)
            self.tree.components.append(self.host)
        self.main = SWA if options.attention == "pure_swa" else FULL
        """The group of ``Req.row``."""
        self.num_sequences = 0
        """Sequences opened so far."""
        self.room = Room(self)
        self.lookup = Lookup(self)
        self.inserter = Inserter(self)

    def pages(self, tokens: int) -> int:
        """Pages that hold ``tokens``."""
        return -(-tokens // self.page)

    # -- admission ------------------------------------------------------------------------------

    def lock(self, end: Node) -> int | None:
        """Hold a node's path; returns the receipt for ``unlock``."""
        self.tree.lock(end)
        if self.states is not None:
            self.states.lock(end)
        return self.windows.lock(end) if self.windows is not None else None

    def unlock(self, end: Node, mark: int | None) -> None:
        """Undo the ``lock`` that returned ``mark``."""
        if self.windows is not None:
            self.windows.unlock(end, mark)
        if self.states is not None:
            self.states.unlock(end)
        self.tree.unlock(end)

    def hold(self, req: Req, end: Node) -> None:
        """The request's lock moves to ``end`` (rules 3.6, 6)."""
        old, mark, locked = req.end, req.mark, req.locked
        if locked:
            assert old is not None
            self.unlock(old, mark)
        req.end, req.mark, req.locked = end, self.lock(end), True
        if self.windows is not None and req.sequence is not None:
            self._let_go(req, self.windows.top(end, req.mark))

    def _let_go(self, req: Req, top: int) -> None:
        """Window KV above the lock may leave the tree: the row stops naming it."""
        first, last = req.window_first // self.page, top // self.page
        if last > first:
            req.window_row.clear(first, last)
            self._cut_table(req, SWA, first, last)
            req.window_first = top

    def give_back(self, req: Req) -> None:
        """The request holds no path any more."""
        if req.locked:
            assert req.end is not None
            self.unlock(req.end, req.mark)
        req.end, req.mark, req.locked = None, None, False

    def start(self, req: Req) -> None:
        """An admitted request becomes a sequence; its row starts with the tree's blocks."""
        self.num_sequences += 1
        req.sequence = self.num_sequences
        first = req.attempt == 0
        text = req.request.prompt if first else req.seq.slice(0, req.known)
        self.ops.append(Open(req.sequence, req.id, text, req.request.lora))
        self.share(req)
        if self.windows is not None:
            self._bind(req, SWA, 0, req.window_row.view(0, len(req.window_row)), fresh=False)
        self._bind(req, self.main, 0, req.row.view(0, len(req.row)), fresh=False)
        if self.rings is not None:
            req.ring = int(self.rings.take(1)[0])
            self.ops.append(Bind(req.sequence, RING, 0, (req.ring,), True))
            req.ring_start = req.hit
            if self.options.enable_encoder_swa_bounded_replay:
                req.ring_start -= replay_len(req.hit)

    def share(self, req: Req) -> None:
        """The row becomes the tree's blocks of the path that the request holds."""
        end = req.end if req.end is not None else self.tree.root
        path = end.path()
        blocks = [node.blocks for node in path if node.blocks is not None]
        req.row.set(np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int32))
        if self.windows is not None:
            top = self.windows.top(end, req.mark)
            parts = [
                node.window
                if node.window is not None and node.start >= top
                else np.full(node.length // self.page, NULL, dtype=np.int32)
                for node in path
            ]
            req.window_row.set(np.concatenate(parts) if parts else np.empty(0, dtype=np.int32))
            req.window_first = top

    def take_state(self, req: Req) -> None:
        """The admitted request gets a state slot of its own if it has none (rule 8)."""
        if self.states is None:
            return
        if req.state is None:
            req.state = self.room.new_state()
        if req.sequence is not None:
            self.ops.append(Bind(req.sequence, STATE, 0, (req.state,), True))
        if req.hit:
            assert req.end is not None and req.end.state is not None
            req.copied_state = req.end.state
            self.copy_state(req.end.state, req.state)

    def load_back(self, found: Found) -> tuple[Node, int]:
        """Bring the host part of a hit to the device; the node and tokens then held there."""
        assert self.host is not None
        if self.host.load_back(found):
            return found.best, found.best.stop
        return found.end, found.hit

    def grow(self, req: Req, tokens: int) -> Blocks:
        """The row gets room for ``tokens`` positions; returns the new blocks."""
        count = self.pages(tokens) - len(req.row)
        if count <= 0:
            return np.empty(0, dtype=np.int32)
        blocks = self.slots.take(count)
        column = len(req.row)
        req.row.append(blocks)
        self._bind(req, self.main, column, blocks, fresh=True)
        if self.windows is not None:
            window = self.windows.free.take(count)
            req.window_row.append(window)
            self._bind(req, SWA, column, window, fresh=True)
        return blocks

    # -- window KV of a running request ---------------------------------------------------------

    def free_windows(self, req: Req, pre: int, interval: int) -> None:
        """Window KV that positions from ``pre`` on no longer see goes back (rule 7)."""
        window = self.options.sliding_window_size
        if window is None or self.rings is not None:
            return
        reach = window if self.disabled else self.pages(max(window, self.page)) * self.page
        threshold = (pre - reach) // self.page * self.page
        if pre - window < req.window_freed + interval:
            return
        start = max(req.window_freed, req.protected, req.floor)
        if threshold > start:
            row = req.window_row if self.windows is not None else req.row
            pool = self.windows.free if self.windows is not None else self.slots
            first, last = start // self.page, threshold // self.page
            pool.give(row.copy(first, last))
            if self.windows is not None:
                row.clear(first, last)
            self._cut_table(req, SWA, first, last)
        req.window_freed = max(start, threshold)

    # -- checkpoint and release -----------------------------------------------------------------

    def checkpoint(self, req: Req, up_to: int) -> None:
        """A running request's KV of ``[0, up_to)`` becomes reusable (rule 3 a, b)."""
        if self.disabled:
            req.prefix = up_to
            return
        self.inserter.running(req, up_to)
        req.prefix = up_to
        self.journal.insert(req, up_to, False)

    def release(self, req: Req, *, insert: bool) -> None:
        """The request gives everything back, after a last insert if it finished (rules 3 c, 5)."""
        if insert and not self.disabled:
            owned = min(req.committed, req.known)
            self.inserter.finished(req, owned)
            self.journal.insert(req, owned, True)
        self.free_row(req, req.protected, len(req.row) * self.page)
        if self.states is not None and req.state is not None:
            self.room.drop_state(req.state)
            req.state = None
        if self.rings is not None and req.ring is not None:
            self.rings.give(np.array([req.ring], dtype=np.int32))
            req.ring = None
        self.give_back(req)

    def free_row(self, req: Req, start: int, stop: int) -> None:
        """Private positions ``[start, stop)`` go back; window KV only above ``window_freed``."""
        first, last = start // self.page, self.pages(stop)
        if self.options.attention == "pure_swa" and req.window_freed > req.floor:
            gone = max(req.floor, req.protected)  # [gone, window_freed) went back while it ran
            self.slots.give(req.row.copy(first, max(gone, first)))
            self.slots.give(req.row.copy(max(req.window_freed, first), last))
            return
        self.slots.give(req.row.copy(first, last))
        if self.windows is not None:
            window = req.window_row.copy(first, last)
            self.windows.free.give(window[window != NULL])

    def findable(self, req: Req, tokens: int) -> None:
        """Tell that the first ``tokens`` tokens of a request can be hit from now on."""
        groups = [self.main]
        if self.windows is not None:
            groups.append(SWA)
        elif self.states is not None:
            groups.append(STATE)
        for group in groups:
            event = Event("insert", group, (), req.sequence, req.id, tokens, "3")
            self.events.append(event)

    # -- operations -----------------------------------------------------------------------------

    def repoint(self, req: Req, group: str, column: int, blocks: Blocks) -> None:
        """A row's columns name the tree's copy from now on (rule 3.3)."""
        row = req.row if group == self.main else req.window_row
        row.put(column, blocks)
        self._bind(req, group, column, blocks, fresh=False)

    def _bind(self, req: Req, group: str, column: int, blocks: Blocks, *, fresh: bool) -> None:
        if req.sequence is not None and len(blocks):
            ids = tuple(blocks.tolist())
            self.ops.append(Bind(req.sequence, group, column, ids, fresh))

    def _cut_table(self, req: Req, group: str, first: int, last: int) -> None:
        if req.sequence is not None and last > first:
            self.ops.append(Cut(req.sequence, group, first, last))

    def copy_state(self, source: int, target: int) -> None:
        """A recurrent state is copied (rule 8: copy on use, copy at a checkpoint)."""
        self.ops.append(Copy(STATE, STATE, STATE, ((source, target, 1),)))
