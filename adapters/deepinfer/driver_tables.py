"""Index tables of a step in the form of the native recordings: whole, or summarised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .metadata import DecodeTables, PromptTables, Rows
from .options import Options
from .scheduler import Batch

__all__ = ["step_tables"]


def step_tables(
    options: Options, kind: str, batch: Batch, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The tables with the ``wanted`` keys; whole ones in traces of kind ``yoco``."""
    rows = [
        Rows(
            scheduled.q,
            scheduled.k,
            scheduled.seq.length,
            tuple(scheduled.seq.table),
            scheduled.seq.state,
            scheduled.seq.valid_start,
        )
        for scheduled in batch.rows
    ]
    whole = kind == "yoco"
    if batch.kind == "decode":
        found = _decode(options, DecodeTables(options, rows), whole)
    else:
        tables = PromptTables(options, rows)
        if tables.refused:
            return {"err": "keep_too_small"}
        found = _prompt(options, tables, whole)
    return {key: found[key]() for key in wanted if key in found}


def _writes(slots: Any, whole: bool) -> list[int]:
    if whole:
        return [int(slot) for slot in slots]
    real = slots[slots >= 0]
    if not len(real):
        return [len(slots), 0]
    return [len(slots), len(real), int(real[0]), int(real[-1])]


def _table(rows: Any, whole: bool) -> list[Any]:
    """All rows, or ``[rows, first, last, column sums]``; a vector counts as one column."""
    table = np.asarray(rows)
    if whole:
        return table.tolist()  # type: ignore[no-any-return]
    if table.ndim == 1:
        table = table[:, None]
    return [len(table), table[0].tolist(), table[-1].tolist(), table.sum(axis=0).tolist()]


def _prompt(options: Options, tables: PromptTables, whole: bool) -> dict[str, Any]:
    """Functions for the tables of a prefill step, by the recordings' key."""
    model = options.shape
    sparse, dense = model.ratios_of(sparse=True), model.ratios_of(sparse=False)

    def loads(ratio: int) -> list[Any]:
        pieces = tables.compressed_loads(ratio)
        if whole:
            return [list(piece) for piece in pieces]
        return [len(pieces), sum(piece[0] < 0 for piece in pieces)]

    def keys(ratio: int, end: bool, clips: list[int] | None = None) -> list[Any]:
        base, count = tables.visible(ratio, clips)
        return _table(base + count if end else base, whole)

    def ranges(ratio: int, clips: list[int] | None = None) -> list[Any]:
        return _table(np.stack(tables.visible(ratio, clips), axis=1), whole)

    def compact() -> dict[str, Any]:
        kept = tables.compact()
        found: dict[str, Any] = {
            "n": kept.cu[-1],
            "cu": kept.cu,
            "qi": _table(kept.places, whole),
            "piv": _table(kept.pivots, whole),
            "ws": _writes(kept.ring_writes, whole),
            "pos": _table(kept.positions, whole),
        }
        if whole:
            found["ke"] = {str(r): keys(r, True, kept.clips) for r in sparse}
            found["ol"] = {str(r): ranges(r, kept.clips) for r in dense}
        if options.cp > 1:
            counts = [row.q - clip for row, clip in zip(tables.rows, kept.clips)]
            found["cp_mirror_len"] = tables.mirror_length(counts)
            found["cp_contrib_pad_len"] = tables.contribution_length(kept.clips)
        return found

    return {
        "pos": lambda: _positions(tables.positions()),
        "ws": lambda: _writes(tables.ring_writes(), whole),
        "wc": lambda: {str(r): _writes(tables.compressed_writes(r), whole) for r in model.ratios},
        "swa": lambda: [list(piece) for piece in tables.history()],
        "ca": lambda: {str(r): loads(r) for r in model.ratios},
        "ck": lambda: {str(r): tables.gathered_length(r) for r in model.ratios},
        "piv": lambda: _table(tables.pivots(), whole),
        "kea": lambda: {str(r): keys(r, True) for r in sparse},
        "ksa": lambda: {str(r): keys(r, False) for r in sparse},
        "ol": lambda: {str(r): ranges(r) for r in dense},
        "ym": lambda: _table(tables.masked(), whole),
        "yc": compact,
        "cpm": tables.mirror_length,
    }


def _decode(options: Options, tables: DecodeTables, whole: bool) -> dict[str, Any]:
    """Functions for the tables of a decode step, by the recordings' key."""
    model = options.shape
    return {
        "pos": lambda: _positions(tables.positions()),
        "ws": lambda: _writes(tables.ring_writes(), whole),
        "wc": lambda: {str(r): _writes(tables.compressed_writes(r), whole) for r in model.ratios},
        "cl": lambda: _table(tables.positions() + 1, whole),
        "swi": lambda: _table(tables.windows(), whole),
        "ol": lambda: {
            str(r): _table(np.stack(tables.visible(r), axis=1), whole)
            for r in model.ratios_of(sparse=False)
        },
    }


def _positions(positions: Any) -> list[int]:
    return [int(positions[0]), int(positions[-1]), len(positions)]
