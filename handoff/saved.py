"""A run on disk: its ledger, the facts about it, its log of Steps, and the report beside them.

``save`` writes what ``read`` gives back; ``handoff run``, ``handoff report`` and the Python API
share both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BadInput
from .experiment import merge_info
from .ledger.entries import Ledger, read_ledger
from .lines import read_json
from .report.info import RunInfo
from .report.steplog import read_steps
from .session import Result

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read", "save", "write_file"]

LEDGER, FACTS, STEPS = "ledger.parquet", "run.json", "steps.parquet"


def write_file(path: Path, write: Callable[[], object]) -> Path:
    """``path``, written by ``write`` into a folder that exists; ``BadInput`` if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", file=path) from None
    return path


def save(found: Result, out: Path, pools: pd.DataFrame | None = None) -> list[Path]:
    """Write ledger, facts, Step log and report into ``out``; the paths a reader wants to know.

    ``pools`` (points of ``pool_points``) adds the pool curve to the report.
    """
    from .report.page import write_report

    frame = found.ledger.to_pandas()
    ledger = write_file(out / LEDGER, lambda: found.ledger.write_parquet(out / LEDGER))
    write_file(
        out / FACTS, lambda: (out / FACTS).write_text(found.info.model_dump_json(indent=2), "utf-8")
    )
    if found.steps is not None:
        steps = found.steps
        write_file(out / STEPS, lambda: steps.to_parquet(out / STEPS, index=False))
    page = write_file(
        out / "index.html",
        lambda: write_report(frame, found.info, out, steps=found.steps, pools=pools),
    )
    return [page, out / "report.md", ledger]


def read(paths: Sequence[Path]) -> Result:
    """The runs that ``save`` wrote, as one; each path is a ledger or the folder it is in.

    ``BadInput`` names a file that is missing or is none.
    """
    ledgers = [path / LEDGER if path.is_dir() else path for path in paths]
    if not ledgers:
        raise BadInput("give the ledger of a run")
    ledger = _all(ledgers)
    info = _joined([_read_info(path.with_name(FACTS)) for path in ledgers])
    return Result(ledger, info, _steps([path.with_name(STEPS) for path in ledgers]), 0.0)


def _all(paths: Sequence[Path]) -> Ledger:
    """The entries of all files; a row's requests of one scenario may be in one of them only."""
    whole = Ledger()
    owner: dict[tuple[str, str], Path] = {}
    for path in paths:
        found = read_ledger(path)
        for key in dict.fromkeys((entry.run, entry.scenario) for entry in found):
            if key in owner:
                same = owner[key].resolve() == path.resolve()
                why = "the file is given twice" if same else f"it is in {owner[key]} too"
                raise BadInput(f"{key[0]} of {key[1]} would count twice: {why}", file=path)
            owner[key] = path
        whole.extend(found)
    return whole


def _read_info(path: Path) -> RunInfo:
    from pydantic import ValidationError

    try:
        return RunInfo.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{first['msg']}", file=path, field=place or None) from None


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

    found = [read_steps(path) for path in paths if path.exists()]
    return pd.concat(found, ignore_index=True) if found else None
