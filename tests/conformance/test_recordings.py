"""Every adapter against everything that upstream was recorded doing."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.adapter import load
from handoff.conformance.conform import conform, files_of

from ..conftest import RECORDINGS

FOLDERS = ("vllm", "sglang", "llamacpp", "tensorrt_llm", "deepinfer")


def recordings() -> list[Path]:
    found = []
    for name in FOLDERS:
        declared = load(name).recordings()
        assert declared is not None
        found += files_of(RECORDINGS / name, declared)
    return found


@pytest.mark.parametrize("path", recordings(), ids=lambda p: f"{p.parent.name}-{p.name[:-9]}")
def test_recording_agrees(path: Path) -> None:
    outcome = conform(path, load(path.parent.name))
    assert outcome.differ == 0, outcome.first_difference
    assert outcome.agree > 0 and outcome.fields > 0
    assert outcome.skipped == 0, outcome.skipped_reasons


def test_every_packaged_file_is_replayed() -> None:
    packaged = {p for name in FOLDERS for p in (RECORDINGS / name).glob("*.jsonl.gz")}
    assert packaged == set(recordings())
