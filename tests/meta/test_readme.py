"""What the README claims about the recordings is what is packaged."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from handoff.adapter import load, names

from ..conftest import RECORDINGS

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_table_of_recordings_counts_the_packaged_cases() -> None:
    for name in names():
        adapter = load(name)
        row = re.search(
            rf"\| {re.escape(adapter.title)} \| (\S+) \| ([\d,]+) \|.*\| (\w+) \|", README
        )
        assert row, f"{adapter.title} is not in the table"
        cases = 0
        for path in (RECORDINGS / name).glob("*.jsonl.gz"):
            with gzip.open(path, "rt") as stream:
                cases += sum(1 for line in stream if line.strip())
        assert int(row[2].replace(",", "")) == cases
        assert row[3] == adapter.evidence
        assert row[1] in adapter.upstream


def test_the_two_commands_come_first() -> None:
    blocks = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    assert blocks[:2] == ["make demo", "make test"]
