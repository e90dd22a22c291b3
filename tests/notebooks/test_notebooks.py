"""Every notebook runs from a clean kernel, ends in a figure and a paragraph, and is stored bare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebook'")

FOLDER = Path(__file__).parents[2] / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in BOOKS]


def load(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_all_are_there() -> None:
    assert [name[0] for name in NAMES] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("path", BOOKS, ids=NAMES)
def test_is_stored_without_outputs(path: Path) -> None:
    book = load(path)
    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@pytest.mark.parametrize("path", BOOKS, ids=NAMES)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the kernel's client are not ours
def test_runs_and_ends_in_a_figure_and_a_paragraph(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra 'notebook'")
    pytest.importorskip("ipykernel", reason="needs the extra 'notebook'")
    monkeypatch.delenv("TRACE", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = load(path)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute(cwd=str(FOLDER))
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    shown = [output for cell in code for output in cell.outputs]
    assert "image/png" in shown[-1].get("data", {}), "the last thing shown is a figure"
    assert not [each for each in shown if each.get("name") == "stderr"]
    last = book.cells[-1]
    assert last.cell_type == "markdown" and last.source.startswith("**To quote.**")
