"""The page in a real browser: nothing leaves, nothing overflows, everything can be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from handoff.report.page import write_report
from tests.unit.report import ledgers

from . import chromium

EXECUTABLE = chromium.find()
pytestmark = [
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium found: page not tried in a browser"),
    pytest.mark.slow,
]

VIEWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    frame = ledgers.frame([*ledgers.chat(), *ledgers.short()])
    return write_report(frame, ledgers.info(), folder, ("html",))[0]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Tab]:
    assert EXECUTABLE is not None
    with chromium.browser(EXECUTABLE, tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def messages(tab: chromium.Tab, method: str) -> list[dict[str, Any]]:
    return [event["params"] for event in tab.events if event.get("method") == method]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_it_loads_without_error_or_request(
    tab: chromium.Tab, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    tab.open(report, width, scheme=scheme)
    tab.screenshot(tmp_path / f"page-{width}-{scheme}.png")
    assert messages(tab, "Log.entryAdded") == []
    assert messages(tab, "Runtime.exceptionThrown") == []
    asked = [sent["request"]["url"] for sent in messages(tab, "Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_nothing_overflows_and_every_picture_has_a_size(
    tab: chromium.Tab, report: Path, width: int, scheme: str
) -> None:
    tab.open(report, width, scheme=scheme)
    assert tab.run("document.documentElement.scrollWidth") <= width
    empty = tab.run(
        "[...document.querySelectorAll('svg[role=img], figure img')].filter(e => {"
        "const b = e.getBoundingClientRect(); return !(b.width > 20 && b.height > 5) ||"
        " (e.complete === false) || (e.naturalWidth === 0)}).length"
    )
    assert empty == 0
    assert tab.run("document.querySelectorAll('svg.strip').length") >= 10
    assert tab.run("document.querySelectorAll('figure img').length") >= 1


def test_the_answer_is_on_the_first_screen(tab: chromium.Tab, report: Path) -> None:
    tab.open(report, 1280)
    last = "document.querySelector('#answer .srow:last-of-type').getBoundingClientRect().bottom"
    assert tab.run(last) <= 1000
    tab.open(report, 390)
    rows = "document.querySelector('#answer .answer tbody tr:last-child')"
    assert tab.run(f"{rows}.getBoundingClientRect().bottom") <= 1000


def test_sorting_goes_both_ways_and_says_so(tab: chromium.Tab, report: Path) -> None:
    tab.open(report, 1280)
    column = "[...document.querySelector('#list').tBodies[0].rows].map(r => +r.cells[{}].dataset.v)"
    button = (
        "[...document.querySelectorAll('#list thead button')].find(b => b.textContent == 'hit')"
    )
    index = tab.run(f"{button}.parentNode.cellIndex")
    tab.run(f"{button}.click()")
    falling = tab.run(column.format(index))
    assert falling == sorted(falling, reverse=True) and len(set(falling)) > 2
    assert tab.run(f"{button}.parentNode.getAttribute('aria-sort')") == "descending"
    tab.run(f"{button}.click()")
    rising = tab.run(column.format(index))
    assert rising == sorted(falling)
    assert tab.run(f"{button}.parentNode.getAttribute('aria-sort')") == "ascending"


def test_filters_hide_rows_and_count_them(tab: chromium.Tab, report: Path) -> None:
    tab.open(report, 1280)
    shown = "[...document.querySelector('#list').tBodies[0].rows].filter(r => !r.hidden).length"
    every = tab.run(shown)
    tab.run(
        "const q = document.getElementById('words'); q.value = 'SLOT_choice 152';"
        " q.dispatchEvent(new Event('input'))"
    )
    assert tab.run(shown) == 1
    assert tab.run("document.getElementById('shown').textContent") == "1 rows"
    tab.run(
        "document.getElementById('words').value = '';"
        " const w = document.getElementById('which'); w.value = 'SGLang';"
        " w.dispatchEvent(new Event('change'))"
    )
    assert 0 < tab.run(shown) < every


def test_details_open_by_keyboard(tab: chromium.Tab, report: Path) -> None:
    tab.open(report, 1280)
    tab.run("document.querySelector('#list summary').focus()")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        tab.call("Input.dispatchKeyEvent", type=kind, **key)
    assert tab.run("document.querySelector('#list details').open") is True
    assert tab.run("document.querySelectorAll('#list details[open] li').length") == 6


NAMELESS = """
[...document.querySelectorAll('img,svg,input,select,button,a,table,[role=region]')].filter(e => {
  if (e.closest('svg[aria-hidden=true]') || e.getAttribute('aria-hidden') === 'true') return false;
  if (e.tagName === 'svg') return e.parentNode.tagName !== 'svg' && !e.getAttribute('aria-label');
  if (e.tagName === 'IMG') return !e.alt;
  if (['INPUT', 'SELECT'].includes(e.tagName)) return !e.labels.length;
  if (e.tagName === 'TABLE')
    return !e.caption && !(e.closest('[role=region]') || e).getAttribute('aria-label');
  if (e.getAttribute('role') === 'region') return !e.getAttribute('aria-label') || e.tabIndex !== 0;
  return !e.textContent.trim();
}).map(e => e.outerHTML.slice(0, 120))
"""

CONTRAST = """
(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 :
    ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
      continue;
    const box = e.getBoundingClientRect();
    if (!box.width || box.right < 0) continue;
    const style = getComputedStyle(e);
    if (parseFloat(style.fontSize) === 0) continue;
    const [a, b] = [light(parse(style.color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push(e.tagName + ' ' + e.textContent.slice(0, 40));
  }
  return bad;
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_names_and_contrast(tab: chromium.Tab, report: Path, scheme: str) -> None:
    tab.open(report, 1280, scheme=scheme)
    assert tab.run(NAMELESS) == []
    assert tab.run(CONTRAST) == []
    assert tab.run("document.documentElement.lang") == "en"
    levels = tab.run("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_it_reads_without_scripts(tab: chromium.Tab, report: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(report, 1280)
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert tab.run("document.querySelectorAll('#answer .answer tbody tr').length") == 5
    assert tab.run("document.querySelectorAll('#list tbody tr').length") == 6


def test_these_checks_can_fail(tab: chromium.Tab, tmp_path: Path, report: Path) -> None:
    text = report.read_text("utf-8")
    bad = tmp_path / "bad.html"
    planted = '<p style="color:#999">pale</p><img src="https://example.invalid/x.png"><main>'
    bad.write_text(text.replace("<main>", planted, 1), "utf-8")
    tab.open(bad, 390)
    said = " ".join(entry["entry"]["text"] for entry in messages(tab, "Log.entryAdded"))
    assert "style" in said and "example.invalid" in said
    assert any("example.invalid" in name for name in tab.run(NAMELESS))
    loose = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", bad.read_text("utf-8"))
    bad.write_text(loose.replace("<h2>", '<h2 style="width:2000px;color:#bbb">', 1), "utf-8")
    tab.open(bad, 390)
    asked = [sent["request"]["url"] for sent in messages(tab, "Network.requestWillBeSent")]
    assert "https://example.invalid/x.png" in asked
    assert tab.run("document.documentElement.scrollWidth") > 390
    assert tab.run(CONTRAST) != []
