"""The wheel holds exactly the tree, and a third party's adapter shows up beside ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = {".yaml", ".json", ".html", ".css", ".js", ".j2", ".typed"}


def expected() -> set[str]:
    found = set()
    for folder, target in (
        ("handoff", "handoff"),
        ("adapters", "handoff/adapters"),
        ("scenarios", "handoff/scenarios"),
    ):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", *DATA} and "__pycache__" not in path.parts:
                found.add(f"{target}/{path.relative_to(ROOT / folder).as_posix()}")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree (a stale build/ would leak deleted modules)."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("handoff", "adapters", "scenarios"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(out), str(copy)], check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_wheel_holds_the_tree_and_only_handoff(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert names == expected()
    assert {name.split("/")[0] for name in names} == {"handoff"}


PLUGIN = """
from handoff.adapters.vllm import ADAPTER as _BASE


class Dummy(type(_BASE)):
    name = "dummy"
    title = "Dummy"


ADAPTER = Dummy()
"""


def test_a_third_party_adapter_is_listed(tmp_path: Path) -> None:
    (tmp_path / "dummy_adapter.py").write_text(PLUGIN)
    info = tmp_path / "dummy_adapter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dummy-adapter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[handoff.adapters]\ndummy = dummy_adapter:ADAPTER\n")
    shown = subprocess.run(
        [sys.executable, "-m", "handoff", "adapters"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "dummy" in shown
    assert shown.index("deepinfer") < shown.index("dummy")
