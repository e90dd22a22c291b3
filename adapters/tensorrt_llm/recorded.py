"""How recordings write things down: windows, event rows, free queues, requests.

(Recordings' README)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from handoff.index.spans import Seq
from handoff.types import NULL

from .blocks import HOST, PRIMARY
from .intake import FIRST_SALT
from .journal import Fact
from .keys import Item
from .manager import KVCacheManager
from .request import LlmRequest, Retention, RetentionRange

__all__ = ["SALTS", "Notation", "read_request"]

SALTS = ("tenant-a", "tenant-b")
"""Numbered in this order by the recorder; others follow in order of appearance."""

PLACEHOLDER = -1000000
"""A column that was only traversed."""

T = TypeVar("T")


class Notation:
    """Writes values of one manager as recordings do: bare for one window, named for several."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self.windows = [window.window for window in manager.windows]
        self.several = len(self.windows) > 1
        self.has_host = any(window.num_host for window in manager.windows)

    def by_window(self, values: Sequence[T]) -> T | dict[str, T]:
        """The only window's value, or all of them by window."""
        return self.named(values) if self.several else values[0]

    def named(self, values: Sequence[T]) -> dict[str, T]:
        """Values by window."""
        return {str(window): value for window, value in zip(self.windows, values)}

    def free(self, values: Sequence[int] | None = None) -> int | list[int]:
        """Free primary blocks (now, if not given), windows in ascending order."""
        numbers = self._manager.free_blocks() if values is None else values
        return list(reversed(numbers)) if self.several else numbers[0]

    def free_host(self) -> int | list[int]:
        """Free host blocks."""
        numbers = [window.policy.num_free[HOST] for window in self._manager.windows]
        return list(reversed(numbers)) if self.several else numbers[0]

    def queues(self) -> list[dict[str, list[int]]]:
        """Per window: idle primary blocks by priority, next victim first."""
        return [
            {str(priority): ids for priority, ids in window.policy.queues(PRIMARY).items()}
            for window in self._manager.windows
        ]

    def row(self, fact: Fact) -> list[int]:
        """One event; with several windows it starts with the window."""
        return [fact.window, *fact.data] if self.several else list(fact.data)

    def rows(self, facts: Iterable[Fact], kind: str) -> list[list[int]]:
        """Events of one kind."""
        return [self.row(fact) for fact in facts if fact.kind == kind]

    @staticmethod
    def ids(table: Iterable[int]) -> list[int]:
        """A block table with the recorder's placeholder."""
        return [PLACEHOLDER if ident == NULL else ident for ident in table]


def read_request(
    entry: Mapping[str, Any], block_size: int, first_seq: int, salts: dict[str, int]
) -> LlmRequest:
    """A request of ``native`` and ``upstream_test`` recordings."""
    salt, lora = entry.get("salt"), entry.get("lora")
    beams = int(entry.get("beam", 1))
    if salt is not None:
        salts.setdefault(salt, FIRST_SALT + len(salts))
    return LlmRequest(
        str(entry["id"]),
        Seq.of(entry["prompt"]),
        int(entry["max_new"]),
        block_size,
        lora=None if lora is None else str(lora),
        lora_id=lora,
        salt=None if salt is None else salts[salt],
        items=tuple(
            Item(digest, tuple((start, length) for start, length in runs))
            for digest, runs in entry.get("mm", ())
        ),
        retention=_read_retention(entry.get("retention")),
        beam_width=beams,
        seqs=tuple(range(first_seq, first_seq + beams)),
    )


def _read_retention(entry: Mapping[str, Any] | None) -> Retention:
    if entry is None:
        return Retention()
    ranges = tuple(RetentionRange(*span) for span in entry["ranges"])
    default = Retention()
    return Retention(
        ranges,
        entry.get("decode_priority", default.decode_priority),
        entry.get("decode_duration_ms"),
    )
