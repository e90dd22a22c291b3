"""``handoff report``: the page of earlier runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from handoff.errors import BadInput
from handoff.experiment import merge_info
from handoff.ledger.entries import Ledger, read_ledger
from handoff.lines import read_json
from handoff.report.info import RunInfo

from .progress import say

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["report_command"]


def report_command(paths: Sequence[Path], formats: Sequence[str], out: Path) -> None:
    """Write the report of one or more ledgers, with the facts that ``run.json`` beside them has."""
    from handoff.report.page import FORMATS, write_report

    wrong = [each for each in formats if each not in FORMATS]
    if wrong:
        raise BadInput(f"--format {wrong[0]}: give {' or '.join(FORMATS)}, or both")
    ledger = Ledger(entry for path in paths for entry in read_ledger(path))
    infos = [_read_info(path.with_name("run.json")) for path in paths]
    steps = _steps([path.with_name("steps.parquet") for path in paths])
    frame, info = ledger.to_pandas(), _joined(infos)
    written = write_report(frame, info, out, tuple(formats), steps=steps)
    say(f"Wrote {', '.join(str(path) for path in written)}")


def _read_info(path: Path) -> RunInfo:
    from pydantic import ValidationError

    try:
        return RunInfo.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{first['msg']}", file=path, field=place) from None


def _joined(infos: Sequence[RunInfo]) -> RunInfo:
    """Several runs as one: rows merged, scenarios side by side, commands in order."""
    first = infos[0]
    return first.model_copy(
        update={
            "command": "; ".join(dict.fromkeys(info.command for info in infos)),
            "date": max(info.date for info in infos),
            "rows": tuple(merge_info([row for info in infos for row in info.rows])),
            "scenarios": tuple(each for info in infos for each in info.scenarios),
            "files": {name: sha for info in infos for name, sha in info.files.items()},
            "executed": any(info.executed for info in infos),
        }
    )


def _steps(paths: Sequence[Path]) -> pd.DataFrame | None:
    """The Step logs beside the ledgers, one after the other."""
    import pandas as pd

    found = [pd.read_parquet(path) for path in paths if path.exists()]
    return pd.concat(found, ignore_index=True) if found else None
