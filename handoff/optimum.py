"""The best any order of eviction could do: what a cache that knows the future would hit.

Belady's rule on prefixes, exact to the token: requests come one after the other in the order
given, everything computed may be kept or dropped at will, and what is needed again last goes
first. A token counts as a hit only if all tokens before it are hits, too; since nobody needs a text
without its beginning, the rule drops ends before beginnings and the condition costs nothing. No
server can hit more from a pool of the same size unless it serves the requests in another order,
reuses text that is no prefix, or keeps more elsewhere (a host tier); servers that keep whole
blocks, pin what runs or look up before a twin has finished hit less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from .index.spans import Seq, common
from .types import Request

__all__ = ["Optimum", "optimum"]


class Optimum(NamedTuple):
    """Prompt tokens hit, of all prompt tokens, with a pool that keeps ``pool_tokens``."""

    pool_tokens: int | None
    hit_tokens: int
    prompt_tokens: int

    @property
    def hit_ratio(self) -> float:
        """Hit tokens over prompt tokens; 0 without prompts."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def optimum(requests: Sequence[Request], pools: Iterable[int | None]) -> list[Optimum]:
    """The most that can be hit, for each pool in tokens (``None``: unlimited), in that order.

    The last token of a prompt is always computed. Generated tokens that are scripted are kept like
    prompt tokens, except the last one, which is never computed. Texts under different salts or
    LoRAs are different texts.

    >>> a, b = (Request(name, Seq.of(range(k, k + 9)), 0) for name, k in (("a", 0), ("b", 50)))
    >>> [each.hit_tokens for each in optimum([a, b, a, b], (None, 12))]
    [16, 12]
    """
    segments = _Segments()
    paths = [segments.add(request) for request in requests]
    visits = [segments.path(*path) for path in paths]
    prompts = sum(len(request.prompt) for request in requests)
    return [Optimum(pool, _hits(visits, segments.length, pool), prompts) for pool in pools]


class _Node:
    """Tokens ``[start, stop)`` of ``seq``; never a part of one is used alone."""

    __slots__ = ("ident", "kids", "seq", "start", "stop")

    def __init__(self, seq: Seq, start: int, stop: int) -> None:
        self.seq, self.start, self.stop = seq, start, stop
        self.kids: dict[int, _Node] = {}
        self.ident = -1


class _Segments:
    """All texts of a stream as a tree of segments, cut wherever one text ends or leaves another."""

    def __init__(self) -> None:
        self._roots: dict[tuple[str | None, str | None], _Node] = {}
        self.length: list[int] = []
        """Tokens of each segment by its number; complete once all paths are asked for."""

    def add(self, request: Request) -> tuple[_Node, Seq, int, int]:
        """Take a request in; what ``path`` wants to know about it later."""
        text = request.prompt
        if request.outputs is not None and request.max_tokens > 1:
            text = text.copy()
            text.extend(request.outputs, 0, request.max_tokens - 1)
        root = self._roots.setdefault((request.salt, request.lora), _Node(Seq(), 0, 0))
        usable = max(0, len(request.prompt) - 1)
        for stop in (usable, len(text)):
            self._grow(root, text, stop)
        return root, text, usable, len(text)

    def path(self, root: _Node, text: Seq, usable: int, stop: int) -> tuple[list[int], list[int]]:
        """Numbers of the segments that can be hits, and of those that are computed in any case."""
        wanted: list[int] = []
        offered: list[int] = []
        node = root
        while node.stop < stop:
            node = node.kids[text[node.stop]]
            if node.ident < 0:
                node.ident = len(self.length)
                self.length.append(node.stop - node.start)
            (wanted if node.stop <= usable else offered).append(node.ident)
        return wanted, offered

    @staticmethod
    def _grow(root: _Node, text: Seq, stop: int) -> None:
        node = root
        while node.stop < stop:
            at = node.stop
            kid = node.kids.get(text[at])
            if kid is None:
                node.kids[text[at]] = _Node(text, at, stop)
                return
            run = common(text, at, kid.seq, at, min(stop, kid.stop) - at)
            if at + run < kid.stop:
                head = _Node(kid.seq, at, at + run)
                head.kids[kid.seq[at + run]] = kid
                node.kids[text[at]] = head
                kid.start = at + run
                kid = head
            node = kid


Visit = tuple[list[int], list[int]]


class _Use(NamedTuple):
    """A segment in one request, and the request that hits it next (``NEVER`` if none does).

    A segment that is computed once more before it can be a hit need not be kept until then.
    """

    ident: int
    depth: int
    again: int


NEVER = -1


def _uses(visits: Sequence[Visit]) -> list[list[_Use]]:
    """For each request its segments with their next uses, found from the last request on."""
    following: dict[int, int] = {}
    found: list[list[_Use]] = []
    for at in range(len(visits) - 1, -1, -1):
        wanted, offered = visits[at]
        path = (*wanted, *offered)
        found.append([_Use(s, depth, following.get(s, NEVER)) for depth, s in enumerate(path)])
        following.update(dict.fromkeys(wanted, at))
        following.update(dict.fromkeys(offered, NEVER))
    return found[::-1]


def _hits(visits: Sequence[Visit], length: Sequence[int], pool: int | None) -> int:
    """Tokens found kept, when the segment that is wanted again last is dropped first."""
    kept = [0] * len(length)
    wanted_at = [NEVER] * len(length)
    total = hits = 0
    queue: list[tuple[int, int, int]] = []  # (minus the next use, minus the depth, segment)
    for (wanted, _), uses in zip(visits, _uses(visits), strict=True):
        hits += sum(kept[ident] for ident in wanted)
        for ident, depth, again in uses:
            total -= kept[ident]
            kept[ident] = length[ident] if again != NEVER else 0
            total += kept[ident]
            wanted_at[ident] = again
            if again != NEVER:
                heappush(queue, (-again, -depth, ident))
        while pool is not None and total > pool:
            use, _, ident = queue[0]
            if not kept[ident] or wanted_at[ident] != -use:  # overtaken by a later entry
                heappop(queue)
                continue
            dropped = min(kept[ident], total - pool)
            kept[ident] -= dropped
            total -= dropped
    return hits
