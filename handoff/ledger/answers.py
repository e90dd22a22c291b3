"""The six answers of one admission in the plain form that the ledger keeps and pages show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.types import NULL, GroupAnswer, Handoff

__all__ = ["answers"]

MAX_RUNS = 8
"""Runs of consecutive block ids kept of a table; the rest is only counted."""


def answers(handoff: Handoff, block_sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Who matches, references, tables, positions, write bounds and copies, JSON-ready.

    ``block_sizes`` (tokens a block by group) let a reader turn columns into positions.
    """
    sizes = block_sizes or {}
    out: dict[str, Any] = {
        "matcher": handoff.matcher,
        "references": handoff.references,
        "start": handoff.start,
        "groups": [_group(answer, sizes.get(answer.group)) for answer in handoff.groups],
    }
    if handoff.external_tokens:
        out["external"] = dict(handoff.external_tokens)
    if handoff.moved_spans:
        out["moved"] = [list(span) for span in handoff.moved_spans]
    if handoff.elsewhere:
        out["elsewhere"] = handoff.elsewhere
    return out


def _group(answer: GroupAnswer, block_size: int | None) -> dict[str, Any]:
    runs, left = table_runs(answer.table)
    out: dict[str, Any] = {
        "group": answer.group,
        "matched": answer.matched,
        "columns": len(answer.table),
        "table": runs,
        "fresh": answer.fresh,
        "write": answer.write,
        "visible": answer.visible,
    }
    if block_size is not None:
        out["block_size"] = block_size
    if left:
        out["more_columns"] = left
    if answer.copied:
        out["copied"] = [list(copy) for copy in answer.copied]
    return out


def table_runs(table: Sequence[int]) -> tuple[list[list[int]], int]:
    """Runs ``[first id, ids]`` of a block table (holes are one run of ``NULL``), and columns left.

    >>> table_runs([7, 8, 9, 2, -1, -1])
    ([[7, 3], [2, 1], [-1, 2]], 0)
    """
    runs: list[list[int]] = []
    for column, ident in enumerate(table):
        follows = runs and (
            ident == runs[-1][0] == NULL or ident == runs[-1][0] + runs[-1][1] != NULL
        )
        if follows and (ident == NULL) == (runs[-1][0] == NULL):
            runs[-1][1] += 1
            continue
        if len(runs) == MAX_RUNS:
            return runs, len(table) - column
        runs.append([ident, 1])
    return runs, 0
