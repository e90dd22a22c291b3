import re
from pathlib import Path

import pandas as pd
import pytest

from handoff.report.content import build
from handoff.report.info import RunInfo
from handoff.report.markdown import markdown, table
from handoff.report.page import page, write_report


@pytest.fixture(scope="module")
def text(both: pd.DataFrame, info: RunInfo) -> str:
    return markdown(build(both, info))


def test_it_has_the_pages_sections_and_sentences(
    both: pd.DataFrame, info: RunInfo, text: str
) -> None:
    content = build(both, info)
    html = page(content)
    headings = re.findall(r"^## (.+)$", text, re.M)
    questions = [heading for heading in headings if heading.endswith("?")]
    assert len(questions) == 8
    for question in questions:
        assert f"<h2>{question}</h2>" in html
    for sentence in (content.whole.sentence, content.fall_title, *content.trust_words):
        assert sentence in text and sentence in html


def test_tables_are_whole(text: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


def test_strips_are_characters_in_a_code_block(text: str) -> None:
    block = text.split("```text\n")[1].split("```")[0].splitlines()
    assert block[1].startswith("vLLM") and "█" in block[1]
    assert max(len(line) for line in block) <= 100


def test_pictures_are_files_beside_it(both: pd.DataFrame, info: RunInfo, tmp_path: Path) -> None:
    *_, path = write_report(both, info, tmp_path, ("md",))
    found = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", path.read_text("utf-8"))
    assert len(found) >= 3
    for alt, name in found:
        assert len(alt) > 20
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_cells_cannot_break_a_table() -> None:
    assert table(("a",), [("x|y\nz<i>`",)])[2] == "| x\\|y z\\<i>\\` |"
