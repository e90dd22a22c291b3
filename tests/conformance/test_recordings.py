"""Every adapter against everything that upstream was recorded doing.

Each Step that is planned on the way goes through the tag pass: a read of void, foreign or misplaced
content is a fault, and a fault makes the case differ.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.adapter import load
from handoff.conformance.conform import conform, files_of
from handoff.store.tags import TagStore
from handoff.types import Layout

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
    engines: list[TagStore] = []

    def watch(layout: Layout) -> TagStore:
        engines.append(TagStore(layout))
        return engines[-1]

    outcome = conform(path, load(path.parent.name), watch=watch)
    assert outcome.differ == 0, outcome.first_difference
    assert outcome.agree > 0 and outcome.fields > 0
    assert outcome.skipped == 0, outcome.skipped_reasons
    planned = path.name.startswith(("common", "native"))
    assert not planned or sum(tags.num_tokens for tags in engines) > 0, "no Step was checked"


def test_every_packaged_file_is_replayed() -> None:
    packaged = {p for name in FOLDERS for p in (RECORDINGS / name).glob("*.jsonl.gz")}
    assert packaged == set(recordings())
