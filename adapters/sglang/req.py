"""What the server knows of one request between submission and finish (``schedule_batch.Req``)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from handoff.types import NULL, Request

from .node import Node
from .slots import Blocks

if TYPE_CHECKING:
    from .lookup import Found

__all__ = ["Req", "Row", "namespace_of"]


class Row:
    """A request's line of ``req_to_token``: one block per column, growing at the end."""

    __slots__ = ("_blocks", "_columns")

    def __init__(self) -> None:
        self._blocks: Blocks = np.empty(0, dtype=np.int32)
        self._columns = 0

    def __len__(self) -> int:
        return self._columns

    def set(self, blocks: Blocks) -> None:
        """Make the row exactly ``blocks``."""
        self._blocks, self._columns = blocks, len(blocks)

    def append(self, blocks: Blocks) -> None:
        """Add columns at the end."""
        stop = self._columns + len(blocks)
        if stop > len(self._blocks):
            grown = np.empty(max(stop, self._columns * 5 // 4 + 8), dtype=np.int32)
            grown[: self._columns] = self._blocks[: self._columns]
            self._blocks = grown
        self._blocks[self._columns : stop] = blocks
        self._columns = stop

    def view(self, start: int, stop: int) -> Blocks:
        """Columns ``[start, stop)`` that exist; shared until the row changes there."""
        return self._blocks[start : min(stop, self._columns)]

    def copy(self, start: int, stop: int) -> Blocks:
        """Columns ``[start, stop)`` as an array of its own."""
        return self.view(start, stop).copy()

    def put(self, start: int, blocks: Blocks) -> None:
        """Overwrite columns from ``start`` on."""
        if not self._blocks.flags.writeable or self._blocks.base is not None:
            self._blocks = self._blocks.copy()
        self._blocks[start : start + len(blocks)] = blocks

    def clear(self, start: int, stop: int) -> None:
        """Columns ``[start, stop)`` hold nothing any more."""
        self.put(start, np.full(max(min(stop, self._columns) - start, 0), NULL, dtype=np.int32))


def namespace_of(request: Request) -> Hashable:
    """Names the request's subtree; ``None`` is the common one (rule 6, "Isolation").

    The LoRA's id is appended to ``extra_key`` as upstream does, so "a" + "b" and "ab" collide.
    """
    extra = request.options.get("extra_key")
    if extra is None and request.lora is None and request.salt is None:
        return None
    return (f"{extra or ''}{request.lora or ''}", request.salt or "")


class Req:
    """One request. All lengths are tokens of prompt + outputs.

    * ``seq`` grows with the outputs; ``arrival`` orders the queue; ``attempt`` counts admissions.
    * ``row`` and ``window_row``: block tables; columns below ``protected`` belong to the tree.
    * ``end``, ``mark``, ``locked``: the node held and the receipt of its window lock.
    * ``raw``, ``limit``, ``matched``, ``best``, ``hit``, ``loaded``: tokens stored at all, offered
      as key, found by the tree, accepted by every group, granted, and loaded from the host for it.
    * ``considered``: tokens to compute by the last look at it, 0 before the first.
    * ``prefix``: first position of the next prefill row; ``start, stop``: the current one.
    * ``committed``: positions that hold KV once all launched batches ran; ``allocated``: positions
      the row has room for.
    * ``launched``: outputs that launched batches will emit; ``outputs``: those that arrived.
    * ``decoded``: whether a decode step was launched (window KV goes from the second one on).
    * ``counted``: longest insert so far (rule 3.2); ``branch``: where the next window insert must
      end (rule 7); ``window_freed``: window KV below it was given back; ``floor``: end of the last
      prefill of a prefill-aware model.
    * ``ring``, ``ring_start``: own ring of window KV and the first position ever written to it.
    * ``state``, ``copied_state``: own recurrent state, and the one it was copied from.
    """

    __slots__ = (
        "allocated",
        "arrival",
        "attempt",
        "best",
        "branch",
        "committed",
        "considered",
        "copied_state",
        "counted",
        "decoded",
        "drafts",
        "end",
        "finished",
        "floor",
        "hit",
        "id",
        "launched",
        "limit",
        "loaded",
        "locked",
        "mark",
        "matched",
        "max_new",
        "namespace",
        "outputs",
        "prefix",
        "priority",
        "processed_at_arrival",
        "prompt",
        "protected",
        "raw",
        "reported",
        "request",
        "ring",
        "ring_start",
        "row",
        "seq",
        "sequence",
        "start",
        "state",
        "stop",
        "stop_ids",
        "window_first",
        "window_freed",
        "window_row",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.id = request.id
        self.seq = request.prompt
        self.prompt = len(request.prompt)
        self.namespace = namespace_of(request)
        self.max_new = request.max_tokens
        self.priority = request.priority
        self.arrival = arrival
        self.stop_ids = frozenset(request.options.get("stop_token_ids", ()))
        self.attempt = 0
        self.outputs = 0
        self.launched = 0
        self.finished = False
        self.reported: int | None = None
        self.processed_at_arrival = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything that the cache gave; prompt and outputs stay."""
        self.sequence: int | None = None
        self.row = Row()
        self.window_row = Row()
        self.end: Node | None = None
        self.mark: int | None = None
        self.locked = False
        self.hit = self.best = self.matched = self.raw = self.limit = self.loaded = 0
        self.considered = 0
        self.prefix = self.start = self.stop = 0
        self.protected = self.committed = self.allocated = 0
        self.counted = 0
        self.decoded = False
        self.branch: int | None = None
        self.window_freed = 0
        self.window_first = 0
        self.floor = 0
        self.ring: int | None = None
        self.ring_start = 0
        self.state: int | None = None
        self.copied_state: int | None = None
        self.drafts: tuple[int, ...] = ()
        self.launched = self.outputs

    def append(self, token: int) -> None:
        """One more output is known; the first one copies the text, which the client owns."""
        if self.seq is self.request.prompt:
            self.seq = self.seq.slice(0, self.prompt)
        self.seq.append(token)

    def grant(self, found: Found, hit: int) -> None:
        """Admission: ``hit`` tokens are reused, their part of the row belongs to the tree."""
        self.hit = self.protected = hit
        self.loaded = hit - found.hit
        self.limit, self.raw, self.matched = found.limit, found.raw, found.matched
        self.best, self.branch = found.best.stop, found.branch

    @property
    def known(self) -> int:
        """Prompt and outputs that arrived and are kept."""
        return len(self.seq)

    @property
    def remaining(self) -> int:
        """Outputs still wanted."""
        return max(self.max_new - self.outputs, 0)
