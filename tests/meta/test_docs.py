"""The documentation is complete, up to date, links to what exists, and shows what happens."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / "reports").glob("*.md"), *ROOT.glob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
PAGES = [path for path in PAGES if "_build" not in path.parts]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- reference ----------------------------------------------------------------------------------


def test_the_reference_is_up_to_date(generate: Any) -> None:
    for path, text in generate.pages().items():
        assert (DOCS / path).read_text("utf-8") == text, f"{path}: run python docs/generate.py"


def test_every_option_of_every_command_is_there() -> None:
    page = (DOCS / "reference/cli.md").read_text("utf-8")
    sections = dict(re.findall(r"## handoff ([\w ]+)\n(.*?)(?=\n## |\Z)", page, re.DOTALL))
    shown = _help()
    assert {command for command, _ in shown} == set(sections)
    for command, text in shown:
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - {"--help"}
        missing = {flag for flag in flags if flag not in sections[command]}
        assert flags and not missing, f"{command}: {missing}"


def _help() -> list[tuple[str, str]]:
    """What each command's own ``--help`` prints."""
    code = (
        "import sys, json, contextlib, io\n"
        "from handoff.cli import app\n"
        "from typer.main import get_command\n"
        "def walk(name, command):\n"
        "    for kid, each in getattr(command, 'commands', {}).items():\n"
        "        yield from walk([*name, kid], each)\n"
        "    if not hasattr(command, 'commands'):\n"
        "        out = io.StringIO()\n"
        "        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):\n"
        "            get_command(app)(args=[*name, '--help'], prog_name='handoff')\n"
        "        yield ' '.join(name), out.getvalue()\n"
        "print(json.dumps(list(walk([], get_command(app)))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
    )
    return [(command, text) for command, text in json.loads(done.stdout)]


def test_every_adapter_option_is_there() -> None:
    from handoff.adapter import ORDER, load

    page = (DOCS / "reference/options.md").read_text("utf-8")
    for adapter in ORDER:
        section = page.split(f"\n`{adapter}`, pinned to", 1)[1].split("\n## ", 1)[0]
        for option in load(adapter).options.model_fields:
            assert f"| `{option}` |" in section, f"{adapter}.{option}"
        for what in load(adapter).left_out:
            assert f"| {what} |".replace("|", "") in section.replace("|", ""), what


def test_every_class_has_a_meaning(generate: Any) -> None:
    from handoff.ledger.entries import CLASSES

    assert tuple(generate.MEANINGS) and set(generate.MEANINGS) == set(CLASSES)


# -- links --------------------------------------------------------------------------------------


def links(path: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).strip() for head in heads]
    return {head.replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{name(page)}: {target}"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(page)}: {target}"


def test_every_page_is_in_the_site() -> None:
    listed = set()
    for index in DOCS.rglob("*.md"):
        for tree in re.findall(r"```\{toctree\}(.*?)```", index.read_text("utf-8"), re.DOTALL):
            for line in tree.split("\n"):
                if line and not line.startswith(":"):
                    listed |= set(index.parent.glob(f"{line.strip()}.md"))
    missing = {name(path) for path in DOCS.rglob("*.md")} - {name(path) for path in listed}
    assert missing <= {"docs/index.md"}


# -- what the pages show ------------------------------------------------------------------------

SHOWN = [path for path in sorted(DOCS.rglob("*.md")) if "```console" in path.read_text("utf-8")]


@pytest.mark.parametrize("page", SHOWN, ids=name)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    for file, body in re.findall(r"Save this as `([\w.]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL):
        (tmp_path / file).write_text(body)
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        for command, wanted in re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", block):
            _check(shlex.split(command), wanted, tmp_path)


def _check(words: list[str], wanted: str, folder: Path) -> None:
    assert words[0] == "handoff"
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    same = doctest.OutputChecker().check_output(wanted, done.stdout, doctest.ELLIPSIS)
    assert same, f"{shlex.join(words)} prints\n{done.stdout}"


PYTHON = [path for path in (DOCS / "howto").glob("*.md") if "```python\nimport" in path.read_text()]


@pytest.mark.parametrize("page", PYTHON, ids=name)
def test_python_on_the_pages_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import handoff

    monkeypatch.chdir(tmp_path)
    handoff.run("mid-block", adapters=["vllm", "sglang"]).write("out")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra 'docs'")
    for module in ("myst_parser", "furo"):
        pytest.importorskip(module, reason="needs the extra 'docs'")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run([*build, str(DOCS), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").stat().st_size > 1000


def test_every_kept_report_is_listed_and_has_its_target() -> None:
    reports = ROOT / "reports"
    index = (reports / "README.md").read_text("utf-8")
    pages = {path.name for path in reports.glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w.-]+\.md)\)", index))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"`make (report-\w+)", index):
        assert re.search(rf"^REPORTS := .*\b{target}\b", makefile, re.MULTILINE), target
    assert sum(path.stat().st_size for path in reports.rglob("*") if path.is_file()) < 6 << 20


def test_a_report_without_its_trace_is_skipped_with_a_message() -> None:
    make = [sys.executable, str(ROOT / "reports/make.py"), "speed"]
    done = subprocess.run(make, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped, no trace" in done.stderr
