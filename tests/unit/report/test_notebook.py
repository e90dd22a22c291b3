import re

import pandas as pd
import pytest

from handoff.report.info import RunInfo
from handoff.report.notebook import bar_html, rows_html, strip_html
from handoff.report.palette import CLASSES, FLAGS
from handoff.report.strip import Run, strip
from handoff.report.totals import totals

from .test_page import Tags


@pytest.fixture(scope="module")
def shown(chat: pd.DataFrame, info: RunInfo) -> dict[str, str]:
    return {
        "strip": strip_html(strip(chat, "chat", "turn-2")),
        "rows": rows_html(totals(chat), info, "chat"),
    }


def test_it_is_plain_html_that_viewers_keep(shown: dict[str, str]) -> None:
    for text in shown.values():
        tags = Tags(text)
        names = {name for name, _ in tags.tags}
        assert names <= {"div", "table", "tr", "td", "th", "b", "br", "small"}
        assert all("id" not in attrs and "class" not in attrs for _, attrs in tags.tags)
        assert not re.search(r"[;\"]color:|url\(", text)


def test_it_says_what_the_other_forms_say(shown: dict[str, str]) -> None:
    assert "2,048 tokens, 1,867 shared: five hits, from 1,715 to 1,867" in shown["strip"]
    assert "1,840 to 1,856: 16 draft" in shown["strip"]
    assert "DeepInfer: consumer layers compute at most 140 positions" in shown["strip"]
    assert "46.1 % of 4,048 prompt tokens had been computed before" in shown["rows"]
    assert "pool 1,048,576 tokens" in shown["rows"]


def test_every_class_has_a_look() -> None:
    for name in (*CLASSES, *FLAGS):
        assert "style=" in bar_html([Run(name, 0, 5)])
