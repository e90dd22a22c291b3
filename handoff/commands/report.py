"""``handoff report``: the page of earlier runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from handoff.errors import BadInput
from handoff.saved import read

from .progress import say

__all__ = ["report_command"]


def report_command(paths: Sequence[Path], formats: Sequence[str], out: Path) -> None:
    """Write the report of one or more ledgers, with the facts that ``run.json`` beside them has."""
    from handoff.report.page import FORMATS, write_report

    wrong = [each for each in formats if each not in FORMATS]
    if wrong:
        raise BadInput(f"--format {wrong[0]}: give {' or '.join(FORMATS)}, or both")
    found = read(paths)
    frame = found.ledger.to_pandas()
    written = write_report(frame, found.info, out, tuple(formats), steps=found.steps)
    say(f"Wrote {', '.join(str(path) for path in written)}")
