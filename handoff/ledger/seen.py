"""What a run of one adapter has seen: ever computed, under which isolation key, ever findable.

Three questions about a new prompt, answered by history trees that never forget. Sequences that
are still generating enter the trees lazily: only when a new prompt runs into their end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from handoff.index.history import History
from handoff.index.spans import Seq
from handoff.types import Request

from .classes import Shared

__all__ = ["ISOLATING", "Live", "Seen", "isolation"]

ISOLATING = ("salt", "lora")
"""The keys of a request that may keep tenants or adapters apart."""

_OPTIONS = {"salt": ("cache_salt", "extra_key"), "lora": ("lora", "lora_id")}
"""Request options under upstream's names that say the same."""


def isolation(
    request: Request | None, lora: str | None, keys: Sequence[str] = ISOLATING
) -> Hashable:
    """What a request says for those ``keys`` of ``ISOLATING`` that its framework looks at.

    ``lora`` stands in where the request is not known. Images need no key, their content ids differ.
    """
    given = {"salt": None, "lora": lora}
    if request is None:
        return tuple(given[key] for key in keys)
    given = {"salt": request.salt, "lora": request.lora}
    options = [
        (name, repr(request.options[name]))
        for key in keys
        for name in _OPTIONS[key]
        if name in request.options
    ]
    return (*(given[key] for key in keys), *options)


class Live:
    """A sequence: its text as far as it is known, and how much of its KV exists."""

    __slots__ = ("added", "computed", "copied", "key", "loaded", "request", "text")

    def __init__(self, request: str, text: Seq, key: Hashable) -> None:
        self.request = request
        self.text = text
        self.key = key
        self.computed = 0
        """Leading positions that were granted or computed."""
        self.added = 0
        """Leading positions that the trees know of."""
        self.copied = self.loaded = 0
        """Bytes moved on its behalf."""


class Seen:
    """The three sets of one run, fed while it happens."""

    def __init__(self) -> None:
        self._computed = History()
        self._keyed: defaultdict[Hashable, History] = defaultdict(History)
        self._findable: defaultdict[Hashable, History] = defaultdict(History)
        self.inserts = False
        """Whether anything was ever made findable."""

    def shared(self, text: Seq, key: Hashable, running: Iterable[Live]) -> Shared:
        """How much of ``text`` was seen before; ``running`` are the open sequences."""
        stop = len(text)
        computed = self._computed.longest(text, stop)
        while grown := [
            live for live in running if live.added == computed and live.computed > computed
        ]:
            for live in grown:
                self.add(live)
            longer = self._computed.longest(text, stop)
            if longer == computed:
                break
            computed = longer
        return Shared(
            computed,
            self._keyed[key].longest(text, stop),
            self._findable[key].longest(text, stop),
        )

    def add(self, live: Live) -> None:
        """Enter what a sequence has computed so far."""
        if live.added < live.computed:
            self._computed.add(live.text, live.computed)
            self._keyed[live.key].add(live.text, live.computed)
            live.added = live.computed

    def insert(self, live: Live, tokens: int) -> None:
        """The first ``tokens`` tokens of a sequence became findable."""
        self.inserts = True
        self._findable[live.key].add(live.text, min(tokens, len(live.text)))
