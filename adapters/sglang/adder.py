"""Which waiting requests join the next prefill batch, and how much of them (rules 4, 6).

Sources: ``managers/schedule_policy.py`` (``PrefillAdder``), ``mem_cache/allocator`` (budgets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from .cache import PrefixCache
from .lookup import Found
from .node import Node
from .options import Options
from .req import Req
from .window import replay_len

__all__ = ["Adder", "Verdict"]


class Verdict(Enum):
    """What to do with the next candidate."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    OTHER = auto()


class Adder:
    """Guarantees that what it admits fits, given that running requests stop as estimated.

    ``running`` are the decoding requests; ``mixed`` of them decode in the same batch.
    """

    def __init__(
        self,
        options: Options,
        cache: PrefixCache,
        running: Sequence[Req],
        new_token_ratio: float,
        mixed: int,
    ) -> None:
        self._options = options
        self._cache = cache
        self._ratio = new_token_ratio
        self._page = options.page_size
        self._input_left = options.max_prefill_tokens - mixed
        chunk = options.chunked_prefill_size
        self._chunk_left: int | None = chunk - mixed if chunk > 0 else None
        self._total_offset = float(mixed)
        self._current_offset = mixed
        self._window_offset = 0
        self.admitted: list[Req] = []
        self.preempted: list[Req] = []
        self.chunked: Req | None = None
        """A newly admitted request that does not fit whole."""
        self._total_offset += sum(self.reserved(req) for req in running)

    def reserved(self, req: Req) -> float:
        """Tokens that a running request is expected to need still."""
        left = min(req.max_new - req.outputs, self._options.clip_max_new_tokens_estimation)
        return left * self._ratio

    # -- what is left ---------------------------------------------------------------------------

    @property
    def total_left(self) -> float:
        """Tokens free or evictable, less reservations."""
        return self._cache.room.free_tokens + self._cache.tree.evictable - self._total_offset

    @property
    def _current_left(self) -> int:
        return self._cache.room.free_tokens + self._cache.tree.evictable - self._current_offset

    @property
    def _window_left(self) -> int:
        windows = self._cache.windows
        assert windows is not None
        return self._cache.room.free_window_tokens + windows.evictable - self._window_offset

    def _window_need(self, extend: int, new: int, limit: int | None, host: int = 0) -> int:
        """Peak of window KV that a request needs: the part of a chunk beyond one window, a window
        at most, a page, and what comes from the host."""
        assert self._cache.windows is not None
        window = self._cache.windows.window
        allocated = extend if limit is None else min(extend, limit)
        need = max(allocated - window, 0) + min(extend + new, window) + self._page
        return need + self._ceil(host)

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    def _clip(self, tokens: int) -> int:
        return min(tokens, self._options.clip_max_new_tokens_estimation)

    @property
    def spent(self) -> bool:
        """Whether the batch has its tokens."""
        return self._input_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0)

    def _state(self) -> Verdict:
        full = self.total_left <= 0 or self._current_left <= 0
        if full or (self._cache.windows is not None and self._window_left <= 0):
            return Verdict.NO_TOKEN
        return Verdict.OTHER if self.spent else Verdict.CONTINUE

    def _charge(self, extend: int, new: int) -> None:
        """Reserve one admitted row: whole pages plus one page (rule 4)."""
        paged = self._ceil(extend)
        if self._cache.windows is not None:
            self._window_offset += self._window_need(paged, new, self._chunk_left)
        self._total_offset += paged + self._page + new
        self._current_offset += paged + self._page
        self._input_left -= paged
        if self._chunk_left is not None:
            self._chunk_left -= paged

    # -- candidates -----------------------------------------------------------------------------

    def add_chunked(self, req: Req) -> Req | None:
        """The request in mid-prompt goes first; returns it if it stays in mid-prompt (rule 4)."""
        assert self._chunk_left is not None
        left = min(self._chunk_left, int(self.total_left))
        if self._cache.windows is not None:
            left = min(left, self._window_left - self._page)
            if left <= 0:
                return req
        elif left <= 0:
            left = self._chunk_left
        whole = req.known - req.prefix
        length = min(whole, left)
        self._admit(req, req.prefix, length)
        self._charge(length, 0 if length < whole else self._clip(req.max_new))
        return req if length < whole else None

    def add(self, req: Req, found: Found, load: Callable[[Found], tuple[Node, int]]) -> Verdict:
        """Admit a matched candidate if it fits; ``load`` brings in its host part."""
        total = req.known - found.hit + self._clip(req.remaining) + self._page
        mark = self._cache.lock(found.end)
        try:
            plan = self._plan(req, found.hit + found.host, total, found.host_window)
            if isinstance(plan, Verdict):
                return plan
            end, hit = found.end, found.hit
            if found.host:
                end, hit = load(found)
                if hit < found.hit + found.host:
                    plan = self._plan(req, hit, total, 0)
                    if isinstance(plan, Verdict):
                        return plan
            length = plan
            req.grant(found, hit)
            self._admit(req, hit, length)
            self._cache.hold(req, end)
        finally:
            self._cache.unlock(found.end, mark)
        whole = hit + length == req.known
        if not whole:
            self.chunked = req
        self._charge(length, self._clip(req.max_new) if whole else 0)
        if self._options.enable_encoder_swa_bounded_replay:
            self._charge_replay(replay_len(hit))
        return self._state()

    def _charge_replay(self, rows: int) -> None:
        """Cached tokens that run again cost compute, not KV (rule 7, "Encoder SWA replay")."""
        self._input_left -= rows
        if self._chunk_left is not None:
            self._chunk_left -= rows

    def _admit(self, req: Req, start: int, length: int) -> None:
        req.start, req.stop = start, start + length
        self.admitted.append(req)

    def _plan(self, req: Req, hit: int, total: int, host_window: int) -> int | Verdict:
        """Length of the first row, or why there is none (rules 4, 6 "Admission")."""
        if total >= self.total_left:
            return Verdict.NO_TOKEN
        extend = req.known - hit
        paged = self._ceil(extend)
        limit = self._chunk_left
        if self._cache.windows is not None:
            new = self._clip(req.remaining)
            need = self._window_need(paged, new, limit, host_window)
            if need >= self._window_left:
                cap = 0
                if need >= self._options.swa_tokens:  # it will never fit whole
                    cap = self._window_left - self._window_need(0, new, None, host_window)
                    cap = max(cap // self._page * self._page, 0)
                if limit is None or cap <= 0:
                    return Verdict.NO_TOKEN
                limit = min(limit, cap)
        if self._chunk_left is None and self.admitted and paged >= self._input_left:
            return Verdict.OTHER
        if limit is None or paged <= limit:
            return extend
        end = (hit + limit // self._page * self._page) // self._page * self._page
        return end - hit if end > hit else Verdict.OTHER

    def preempt(self, req: Req, running: Sequence[Req], sign: int) -> list[Req]:
        """Running requests that give way to ``req``; empty if that would not suffice (rule 5)."""
        threshold = self._options.priority_scheduling_preemption_threshold
        missing = self._clip(req.max_new) + req.considered - self.total_left
        victims: list[Req] = []
        order = sorted(
            (other for other in running if not other.finished),
            key=lambda other: (other.priority * -sign, -other.arrival),
        )
        for other in order:
            if (req.priority - other.priority) * -sign <= threshold:
                break
            victims.append(other)
            missing -= self.reserved(other)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return []
        self._total_offset -= sum(self.reserved(other) for other in victims)
        return victims
