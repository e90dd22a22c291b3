"""Order of the waiting queue (rule 6, "Queue order").

Source: ``managers/schedule_policy.py`` (``SchedulePolicy``).
"""

from __future__ import annotations

from collections import defaultdict

from handoff.index.spans import common

from .cache import PrefixCache
from .lookup import Found
from .node import Node
from .options import Options
from .req import Req

__all__ = ["QueuePolicy"]

CACHE_AWARE = frozenset({"lpm", "dfs-weight", "hrrn", "shortest-prefill-first"})
IN_BATCH = 32  # a tree hit up to this is checked against earlier waiting prompts; so many count
TOUCH_EVERY, TOUCHED = 32, 128
LONG_QUEUE = 128
TOUCHED_POLICIES = frozenset({"lru", "fifo", "filo", "mru"})


class QueuePolicy:
    """Guarantees upstream's order, and its side effects on the tree."""

    def __init__(self, options: Options, cache: PrefixCache) -> None:
        self._options = options
        self._cache = cache
        policy = options.schedule_policy
        self._policy = "fcfs" if cache.disabled and policy in CACHE_AWARE else policy
        self._passes = 0
        self.sign = 1 if options.schedule_low_priority_values_first else -1
        """Multiplies a priority so that smaller is more urgent."""

    def arrange(self, waiting: list[Req], processed_tokens: int) -> None:
        """Sort ``waiting`` in place for this pass."""
        if self._policy in CACHE_AWARE:
            if self._policy in ("lpm", "hrrn") and len(waiting) > LONG_QUEUE:
                return
            self._sort_by_cache(waiting, processed_tokens)
        else:
            if self._policy == "lof":
                ranked = self._options.enable_priority_scheduling
                waiting.sort(key=lambda r: (r.priority * self.sign if ranked else 0, -r.max_new))
            elif self._options.enable_priority_scheduling:
                waiting.sort(key=lambda r: (r.priority * self.sign, r.arrival))
            self._touch(waiting)
        if self._policy != "fcfs" or self._options.enable_priority_scheduling:
            self._cache.journal.order(waiting)

    def _touch(self, waiting: list[Req]) -> None:
        """Every 32nd pass keeps the prefixes of the first 128 waiting requests recent.

        Upstream asks for the command line's lru; policies that only the factory offers are set
        beside it, so they are touched too (rule 6).
        """
        policy = self._options.radix_eviction_policy
        if not waiting or self._cache.disabled or policy not in TOUCHED_POLICIES:
            return
        if self._passes % TOUCH_EVERY == 0:
            for req in reversed(waiting[:TOUCHED]):
                self._cache.lookup.touch(req)
        self._passes += 1

    def _sort_by_cache(self, waiting: list[Req], processed_tokens: int) -> None:
        found, later = self._match_all(waiting)

        def hit(req: Req) -> int:
            """Usable hit on device and host."""
            match = found[req.id]
            return min(match.hit + match.host, req.known - 1)

        if self._policy == "lpm":
            waiting.sort(key=lambda r: float("inf") if r.id in later else -hit(r))
        elif self._policy == "dfs-weight":
            waiting[:] = self._depth_first(waiting, found)
        elif self._policy == "hrrn":

            def ratio(req: Req) -> tuple[float, str]:
                """Waiting time in processed tokens over the tokens to compute."""
                if req.id in later:
                    return float("inf"), req.id
                uncached = max(req.prompt - hit(req), 0)
                if not uncached:
                    return -float("inf"), req.id
                waited = max(processed_tokens - req.processed_at_arrival, 0)
                return -waited / uncached, req.id

            waiting.sort(key=ratio)
        else:
            waiting.sort(key=lambda r: (r.id in later, max(r.known - hit(r), 1), r.arrival))

    def _match_all(self, waiting: list[Req]) -> tuple[dict[str, Found], set[str]]:
        """Match each request in full; those that share an earlier one's unseen prefix wait."""
        found: dict[str, Found] = {}
        later: set[str] = set()
        earlier: dict[object, list[Req]] = defaultdict(list)
        for req in waiting:
            match = found[req.id] = self._cache.lookup.match(req, last_token=False)
            if match.hit > IN_BATCH:
                continue
            others = earlier[req.namespace]
            if any(common(req.seq, 0, o.seq, 0, IN_BATCH) >= IN_BATCH for o in others):
                later.add(req.id)
            else:
                others.append(req)
        return found, later

    def _depth_first(self, waiting: list[Req], found: dict[str, Found]) -> list[Req]:
        """Heavier subtrees first; requests that end on an inner node follow its subtree."""
        ending: dict[int, list[Req]] = defaultdict(list)
        weight: dict[int, int] = defaultdict(int)
        root = self._cache.tree.root
        for req in waiting:
            node = found[req.id].end
            ending[id(node)].append(req)
            while node.parent is not None:
                weight[id(node)] += 1
                node = node.parent
        out: list[Req] = []

        def visit(node: Node) -> None:
            kids = [kid for kid in node.kids.values() if id(kid) in weight]
            for kid in sorted(kids, key=lambda kid: -weight[id(kid)]):
                visit(kid)
            out.extend(ending[id(node)])

        visit(root)
        return out
