"""Looking a request up: key, walk, acceptance, recency (rule 2).

Source: ``managers/schedule_policy.py`` (``match_prefix_for_req``), ``mem_cache/unified_cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from handoff.types import GroupMatch, Match

from .handoff import deductions
from .layout import STATE, SWA
from .node import Node
from .req import Req

if TYPE_CHECKING:
    from .cache import PrefixCache

__all__ = ["Found", "Lookup"]

STATE_CHUNK = 64
"""Grid of the recurrent kernels; upstream reports branch points of states on it."""


class Found(NamedTuple):
    """What a match gives: ``hit`` device tokens ending at ``end``; it holds nothing yet.

    ``limit`` tokens were offered as key. ``host`` tokens follow on the host up to ``best``, with
    ``host_window`` tokens of window KV; ``matched`` is the hit without windows and states;
    ``branch`` remembers it, floored, where it exceeds the hit (rule 7); ``raw`` is the longest
    stored prefix before every rule.
    """

    end: Node
    hit: int
    limit: int
    matched: int
    raw: int
    best: Node
    host: int = 0
    host_window: int = 0
    branch: int | None = None


class Lookup:
    """Guarantees upstream's answer to a match, with its side effects; ``probe`` has none."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.options = cache.options
        self.tree = cache.tree
        self.windows = cache.windows
        self.states = cache.states
        self.host = cache.host

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
        if self.cache.disabled:
            return Found(root, 0, 0, 0, 0, root)
        limit = self.key_limit(req, req.known, last_token=last_token)
        found = self._find(req, limit)
        if self.options.radix_force_miss:
            found = Found(root, 0, limit, found.matched, found.raw, root)
        if self.states is not None and last_token and found.hit and req.state is None:
            mark = self.cache.lock(found.end)
            req.state = self.cache.room.new_state()
            self.cache.unlock(found.end, mark)
        self.cache.journal.match(req, found)
        return found

    def _find(self, req: Req, limit: int) -> Found:
        """Match the first ``limit`` tokens; the walk goes on to tell how much is stored at all."""
        path, raw, units = self._look(req, limit)
        if not path:
            root = self.tree.root
            return Found(root, 0, limit, 0, raw, root)
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
        host = best.stop - end.stop
        return Found(end, end.stop, limit, units, raw, best, host, window, branch)

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
        if self.cache.disabled:
            return Match(0, 0)
        limit = self.key_limit(req, req.known, last_token=True)
        path, raw, units = self._look(req, limit)
        usable, on_device = self._usable(path, units)
        best = min(path[usable - 1].stop, units) if usable else 0
        device = min(path[on_device - 1].stop, units) if on_device else 0
        loads = best - device >= self.options.load_back_threshold
        hit = 0 if self.options.radix_force_miss else best if loads else device
        groups = [GroupMatch(self.cache.main, units if path else 0)]
        if self.windows is not None:
            groups.append(GroupMatch(SWA, best))
        elif self.states is not None:
            groups.append(GroupMatch(STATE, best))
        lost = deductions(
            self.options,
            req.known,
            raw=raw,
            limit=limit,
            matched=units if path else 0,
            best=best,
            hit=hit,
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
        self.cache.journal.touch(req, limit)

    def rematch(self, req: Req, end: Node) -> None:
        """The match of its own key that follows an insert into the pure-SWA tree (rule 3)."""
        self.tree.refresh(end)
        found = Found(end, end.stop, end.stop, end.stop, end.stop, end)
        self.cache.journal.match(None, found)

    def candidate(self, req: Req) -> Found:
        """The match before admission; a hit on a state takes the slot of its copy (rule 8)."""
        found = self.match(req)
        req.considered = req.known - found.hit
        return found
