"""What one forward pass reads: flat arrays per stage and group, made by ``engine.plan``."""

from __future__ import annotations

from dataclasses import dataclass

from handoff.kernels import Segments
from handoff.store.tables import Ints

__all__ = ["ForwardPlan", "KVPlan", "StagePlan", "StagedRow", "StatePlan"]


@dataclass(frozen=True)
class StagedRow:
    """A row in a ring that would overwrite what it still sees (O4).

    Its keys are joined outside of the ring: those of the ring's ``slots``, read before anything is
    written, then the row's own from its ``own``-th on (counted in the stage that makes the KV).
    ``row`` numbers the Step's rows; its queries are rows ``begin .. end`` of this stage, and
    ``segments`` attends over the joined keys as one block.
    """

    row: int
    begin: int
    end: int
    slots: Ints
    own: int
    segments: Segments


@dataclass(frozen=True)
class KVPlan:
    """One KV group in one stage, for layers whose KV is made in one stage.

    ``slots [rows]`` is where each row is stored by an owning layer (-1: not at all). ``segments``
    covers the rows ``paged`` (all of them if ``None``), ``staged`` the others.
    """

    slots: Ints
    segments: Segments
    paged: Ints | None = None
    staged: tuple[StagedRow, ...] = ()

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs of all rows."""
        return self.segments.pairs + sum(each.segments.pairs for each in self.staged)


@dataclass(frozen=True)
class StatePlan:
    """One state group: ids to load per request, and ids to save after rows of stage 0."""

    loads: tuple[int, ...]
    save_rows: tuple[int, ...]
    save_ids: tuple[int, ...]


@dataclass(frozen=True)
class StagePlan:
    """The rows a stage computes.

    ``keep`` are their indices among the rows of the stage before (``None``: all of them), ``kv``
    the plans by (group, stage that makes the KV), ``loras`` runs of rows (name, begin, end).
    """

    keep: Ints | None
    positions: Ints
    q_start: Ints
    kv: dict[tuple[int, int], KVPlan]
    loras: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class ForwardPlan:
    """Everything a forward pass reads: flat arrays, positions are the only coordinate.

    ``tokens [rows]`` of stage 0; ``emits`` are indices of the last stage's rows whose logits are
    wanted, ``emit_start [requests + 1]`` says which belong to which row of the Step.
    """

    tokens: Ints
    stages: tuple[StagePlan, ...]
    states: dict[int, StatePlan]
    emits: Ints
    emit_start: Ints
