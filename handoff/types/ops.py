"""The eight operations a Step may carry; a closed list.

They run one after the other in list order, all before the first row of the Step. What moves no KV
(evict, insert, free, pin, refuse, preempt ...) is an ``Event``. A slot is
``block * block_size + offset``; a run is half-open in length: ``(first slot, ..., slots)``.
"""

from __future__ import annotations

from typing import NamedTuple

from handoff.index.spans import Seq

__all__ = ["Bind", "Close", "Copy", "Cut", "Load", "Op", "Open", "Shift", "Zero"]


class Open(NamedTuple):
    """A new sequence with all content known now and empty tables.

    Admission, resume after preemption, fork, child; llama.cpp's context shift re-opens with the
    shortened text. ``tokens`` are content ids ``[0, known)``; the executor appends what
    ``StepResult`` emits. ``request`` is the request (or branch) whose outputs this sequence
    produces. ``lora`` changes the computed values, so it enters the content tags; a salt does not.
    """

    seq: int
    request: str
    tokens: Seq
    lora: str | None = None


class Close(NamedTuple):
    """The tables of ``seq`` vanish; slot contents stay as they are."""

    seq: int


class Bind(NamedTuple):
    """``table[column ..] = ids``. ``fresh`` voids the ids in every group of their pool.

    Not fresh keeps the contents: share, touch, take-over, re-pointing to the tree's copy. ``NULL``
    ids are holes.
    """

    seq: int
    group: str
    column: int
    ids: tuple[int, ...]
    fresh: bool


class Cut(NamedTuple):
    """Columns ``[first, last)`` become ``NULL``; trailing ``NULL`` columns go."""

    seq: int
    group: str
    first: int
    last: int


class Copy(NamedTuple):
    """Copy runs ``(source slot, destination slot, slots)`` in all layers of ``group``.

    Pools may differ (off-load, on-load, RAM entries); state ids are slots. A copy that names a
    ``transfer`` has its effect at once, but the planner must not use it before ``arrived`` reports
    it.
    """

    group: str
    src_pool: str
    dst_pool: str
    runs: tuple[tuple[int, int, int], ...]
    transfer: int | None = None


class Shift(NamedTuple):
    """Runs ``(first slot, slots)``: position label += ``delta``, keys rotated by ``delta``.

    Values stay. States: label only. A cell is shifted at most once a Step.
    """

    group: str
    runs: tuple[tuple[int, int], ...]
    delta: int


class Zero(NamedTuple):
    """Runs ``(first slot, slots)`` read as zeros at any position (DeepInfer zero start)."""

    group: str
    runs: tuple[tuple[int, int], ...]


class Load(NamedTuple):
    """Table slots of positions ``[start, stop)`` get what a cold run would hold there.

    vLLM connectors, DeepInfer injection, P/D: a remote that is not simulated.
    """

    seq: int
    group: str
    start: int
    stop: int
    transfer: int | None = None


Op = Open | Close | Bind | Cut | Copy | Shift | Zero | Load
