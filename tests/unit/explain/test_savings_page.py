"""docs/savings.md is what its script writes today."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def shapes(svg: str) -> list[str]:
    """What is drawn, without the coordinates, which another version may round otherwise."""
    return re.findall(r"<(path|use|g id)\b", svg)


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("savings", DOCS / "savings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "savings", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    text, figures = module.page()
    assert text == (DOCS / "savings.md").read_text(encoding="utf-8"), "run python docs/savings.py"
    assert len(figures) == 5
    for name, svg in figures.items():
        kept = (DOCS / "figures" / name).read_text(encoding="utf-8")
        assert svg.startswith("<?xml")
        assert shapes(kept) == shapes(svg), f"{name}: run python docs/savings.py"
