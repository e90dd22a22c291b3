"""The prefix cache of one server: match, room, checkpoint, release (rules 2, 3, 5, 6).

Joins the tree with its slot pools. Window KV (``windows``), recurrent states (``states``) and the
host tier (``host``) exist where the options ask for them. Sources:
``mem_cache/unified_radix_cache.py``, ``mem_cache/allocation.py``, ``mem_cache/common.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from handoff.types import NULL, Bind, Copy, Cut, Event, GroupMatch, Match, Op, Open

from .handoff import deductions
from .hicache import HostTier
from .insert import Inserter
from .journal import Evicted, Journal
from .layout import FULL, STATE, SWA
from .mamba import States
from .node import Node
from .options import Options
from .req import Req
from .slots import Blocks, FreeList
from .swa import Windows
from .tree import RadixTree

__all__ = ["Found", "PrefixCache"]

STATE_CHUNK = 64
"""Grid of the recurrent kernels; upstream reports branch points of states on it."""


class Found(NamedTuple):
    """What a match gives: ``hit`` device tokens ending at ``end``; it holds nothing yet.

    ``host`` tokens follow on the host up to ``best``, with ``host_window`` tokens of window KV;
    ``matched`` is the hit without windows and states; ``branch`` remembers it, floored, where it
    exceeds the hit (rule 7); ``raw`` is the longest stored prefix before every rule.
    """

    end: Node
    hit: int
    matched: int
    raw: int
    best: Node
    host: int = 0
    host_window: int = 0
    branch: int | None = None


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
        if options.enable_hierarchical_cache:
            self.host = HostTier(self)
            self.tree.components.append(self.host)
        self.main = SWA if options.attention == "pure_swa" else FULL
        """The group of ``Req.row``."""
        self._sequences = 0
        self.inserter = Inserter(self)

    # -- sizes ----------------------------------------------------------------------------------

    def pages(self, tokens: int) -> int:
        """Pages that hold ``tokens``."""
        return -(-tokens // self.page)

    @property
    def free_tokens(self) -> int:
        """Tokens of full KV that can be taken at once."""
        return self.slots.num_free * self.page

    @property
    def free_window_tokens(self) -> int:
        """Tokens of window KV that can be taken at once."""
        assert self.windows is not None
        return self.windows.free.num_free * self.page

    # -- match ----------------------------------------------------------------------------------

    def key_limit(self, req: Req, tokens: int, *, last_token: bool) -> int:
        """Tokens of the key that may be matched (rule 2.1)."""
        limit = tokens - 1 if last_token else tokens
        options = self.options
        if options.enable_decoder_swa_bounded_replay:
            assert options.sliding_window_size is not None
            limit = min(limit, tokens - options.sliding_window_size)
        asked = req.request.options
        if last_token and asked.get("return_logprob"):
            start = int(asked.get("logprob_start_len", -1))
            if start >= 0:
                limit = min(limit, start)
        return max(limit, 0)

    def match(self, req: Req, *, last_token: bool = True) -> Found:
        """Look up the request's text; splits and refreshes as upstream does (rules 2.3 to 2.5)."""
        root = self.tree.root
        if self.disabled:
            return Found(root, 0, 0, 0, root)
        limit = self.key_limit(req, req.known, last_token=last_token)
        found = self._find(req, limit)
        if self.options.radix_force_miss:
            found = Found(root, 0, found.matched, found.raw, root)
        if self.states is not None and last_token and found.hit and req.state is None:
            mark = self.lock(found.end)
            req.state = self.new_state()
            self.unlock(found.end, mark)
        self.journal.match(req, limit, found)
        return found

    def _find(self, req: Req, limit: int) -> Found:
        """Match the first ``limit`` tokens; the walk goes on to tell how much is stored at all."""
        path, raw, units = self._look(req, limit)
        if not path:
            root = self.tree.root
            return Found(root, 0, 0, raw, root)
        if path[-1].stop > units:
            path[-1] = self.tree.split(path[-1], units)
        usable, on_device = self._usable(path, units)
        best = path[usable - 1] if usable else self.tree.root
        end = path[on_device - 1] if on_device else self.tree.root
        self.tree.refresh(best)
        window = 0
        if self.windows is not None:
            self.windows.refresh(best)
            if self.host is not None and best is not end:
                window = self.host.window_tokens(best)
        elif self.states is not None:
            self.states.refresh(best)
        branch = self._branch(units, best.stop)
        return Found(end, end.stop, units, raw, best, best.stop - end.stop, window, branch)

    def _look(self, req: Req, limit: int) -> tuple[list[Node], int, int]:
        """Nodes that the first ``limit`` tokens follow, tokens stored at all, and usable units.

        Changes nothing; the last node may reach beyond the units.
        """
        pair = self.tree.pair
        path, raw = self.tree.walk(req.seq, max(req.known - pair, 0), req.namespace)
        units = self.tree.floor(min(raw, max(limit - pair, 0)))
        while path and path[-1].start >= units:
            path.pop()
        return path, raw + pair if raw else 0, units

    def _usable(self, path: list[Node], units: int) -> tuple[int, int]:
        """How many nodes every component accepts (rule 2.4), and how many of them on the device."""
        on_host = self.host is not None
        if self.windows is not None:
            usable = self.windows.accept(path, units, host=on_host)
            if not on_host:
                return usable, usable
            return usable, self.windows.accept(path[:usable], units, host=False)
        usable = len(path) if self.states is None else self.states.accept(path, units)
        on_device = usable
        while on_device and path[on_device - 1].blocks is None:
            on_device -= 1
        return usable, on_device

    def probe(self, req: Req) -> Match:
        """What a match would give now; changes nothing."""
        if self.disabled:
            return Match(0, 0)
        limit = self.key_limit(req, req.known, last_token=True)
        path, raw, units = self._look(req, limit)
        usable, on_device = self._usable(path, units)
        best = min(path[usable - 1].stop, units) if usable else 0
        device = min(path[on_device - 1].stop, units) if on_device else 0
        loads = best - device >= self.options.load_back_threshold
        hit = 0 if self.options.radix_force_miss else best if loads else device
        groups = [GroupMatch(self.main, units if path else 0)]
        if self.windows is not None:
            groups.append(GroupMatch(SWA, best))
        elif self.states is not None:
            groups.append(GroupMatch(STATE, best))
        lost = deductions(
            self.options, req.known, raw=raw, limit=limit, matched=units if path else 0,
            best=best, hit=hit,
        )
        return Match(raw, hit, tuple(groups), best if best > device else 0, lost)

    def _branch(self, matched: int, hit: int) -> int | None:
        """Where the paths part, if a component cut the hit short (rules 7, 8).

        Only windows act on it (see ``Inserter``); with states upstream reports it.
        """
        if self.states is not None:
            matched = matched // STATE_CHUNK * STATE_CHUNK
        elif self.windows is None:
            return None
        return matched if matched > hit else None

    def touch(self, req: Req) -> None:
        """Keep a waiting request's prefix recent (rule 6): a match of its whole text."""
        limit = self.key_limit(req, req.known, last_token=False)
        self._find(req, limit)
        self.journal.touch(req, limit)

    def rematch(self, req: Req, end: Node) -> None:
        """The match of its own key that follows an insert into the pure-SWA tree (rule 3)."""
        self.tree.refresh(end)
        found = Found(end, end.stop, end.stop, end.stop, end)
        self.journal.match(None, end.stop, found)

    def candidate(self, req: Req) -> Found:
        """The match before admission; a hit on a state takes the slot of its copy (rule 8)."""
        found = self.match(req)
        req.considered = req.known - found.hit
        return found

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
        self._sequences += 1
        req.sequence = self._sequences
        first = req.attempt == 0
        text = req.request.prompt if first else req.seq.slice(0, req.known)
        self.ops.append(Open(req.sequence, req.id, text, req.request.lora))
        self.share(req)
        if self.windows is not None:
            self._bind(req, SWA, 0, req.window_row.view(0, len(req.window_row)), fresh=False)
        self._bind(req, self.main, 0, req.row.view(0, len(req.row)), fresh=False)

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
            req.state = self.new_state()
        if req.sequence is not None:
            self.ops.append(Bind(req.sequence, STATE, 0, (req.state,), True))
        if req.hit:
            assert req.end is not None and req.end.state is not None
            req.copied_state = req.end.state
            self.copy_state(req.end.state, req.state)

    def new_state(self) -> int:
        """A free state slot, evicting one state if there is none."""
        assert self.states is not None
        if not self.states.free.num_free:
            self.evict(0, states=1)
        return int(self.states.free.take(1)[0])

    def drop_state(self, state: int) -> None:
        """A state slot goes back."""
        assert self.states is not None
        self.states.free.give(np.array([state], dtype=np.int32))

    def load_back(self, found: Found) -> tuple[Node, int]:
        """Bring the host part of a hit to the device; the node and tokens then held there."""
        assert self.host is not None
        if self.host.load_back(found):
            return found.best, found.best.stop
        return found.end, found.hit

    # -- room and blocks ------------------------------------------------------------------------

    def make_room(self, tokens: int, window_tokens: int | None = None) -> None:
        """Evict what ``tokens`` miss, in the window pool too (rules 5, 6, 7)."""
        full = max(tokens - self.free_tokens, 0)
        window = 0
        if self.windows is not None:
            wanted = tokens if window_tokens is None else window_tokens
            window = max(wanted - self.free_window_tokens, 0)
        if (full or window) and not self.disabled:
            self.evict(full, window)

    def has_room(self, tokens: int, window_tokens: int = 0) -> bool:
        """Whether so much is free in each pool."""
        if self.windows is not None and self.free_window_tokens < window_tokens:
            return False
        return self.free_tokens >= tokens

    def evict(self, full: int, window: int = 0, states: int = 0) -> None:
        """Free at least so many tokens and states, or all that can be freed (rule 6)."""
        done = Evicted(full, window, states)
        while done.full < full:
            leaf = self.tree.leaves.pop()
            if leaf is None:
                break
            self._evict_leaf(leaf, done)
        if self.windows is not None and done.window < window:
            self._evict_windows(done)
        if self.states is not None and done.states < states:
            self._evict_states(done)
        self.journal.evict(done)
        for group, amount in ((self.main, done.full), (SWA, done.window), (STATE, done.states)):
            if amount:
                self.events.append(Event("evict", group, tokens=amount, rule="6"))

    def _evict_leaf(self, leaf: Node, done: Evicted) -> None:
        """A device leaf goes completely, with window KV and state; a host copy stays (rule 10)."""
        stays = self.host is not None and self.host.demote(leaf)
        done.full += leaf.length
        if self.windows is not None and leaf.window is not None:
            done.window += leaf.length
            self.windows.free.give(self.windows.bury(leaf))
        if self.states is not None and leaf.state is not None:
            done.states += 1
            self.drop_state(self.states.drop(leaf))
        blocks = self.tree.drop_blocks(leaf)
        done.gone.append(blocks)
        self.slots.give(blocks)
        parent = leaf.parent
        if self.host is not None:
            if stays:
                self.host.left_device(leaf)
            else:
                self.host.drop_below(leaf)
        if not stays:
            self.tree.remove(leaf)
        self.tree.leaves.offer(parent)

    def _evict_windows(self, done: Evicted) -> None:
        """Window KV in order of recency; an inner or held node becomes a tombstone (rule 7)."""
        assert self.windows is not None
        while done.window < done.need_window:
            node = next(iter(self.windows.unlocked()), None)
            if node is None:
                return
            if node.evictable:
                self._evict_leaf(node, done)
            else:
                done.window += node.length
                self.windows.free.give(self.windows.bury(node))

    def _evict_states(self, done: Evicted) -> None:
        """States in order of recency; an inner or held node only loses its state (rule 8)."""
        assert self.states is not None
        while done.states < done.need_states:
            node = next(iter(self.states.unlocked()), None)
            if node is None:
                return
            if node.evictable:
                self._evict_leaf(node, done)
            else:
                done.states += 1
                self.drop_state(self.states.drop(node))

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
        if window is None:
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
            self.drop_state(req.state)
            req.state = None
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

    def hold_frees(self) -> None:
        """Frees from now on become available together (rule 5, "Grouped frees")."""
        self.slots.hold()
        if self.windows is not None:
            self.windows.free.hold()

    def release_frees(self) -> None:
        """They become available."""
        self.slots.release()
        if self.windows is not None:
            self.windows.free.release()

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
