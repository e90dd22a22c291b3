import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from handoff.errors import BadInput
from handoff.report.content import MAX_REQUESTS, build
from handoff.report.grids import rules
from handoff.report.info import Expectation, RunInfo, ScenarioInfo
from handoff.report.page import page, write_report
from handoff.types import Deduction

from . import ledgers


class Tags(HTMLParser):
    """All start tags with their attributes, and whether every element was closed in order."""

    VOID = frozenset({"meta", "input", "img", "source", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def text(both: pd.DataFrame, info: RunInfo) -> str:
    return page(build(both, info))


@pytest.fixture(scope="module")
def tags(text: str) -> Tags:
    return Tags(text)


def test_nothing_is_fetched_from_anywhere(text: str, tags: Tags) -> None:
    assert re.findall(r"https?:|//[a-z]+\.", text) == []
    for _, attrs in tags.tags:
        for name in ("src", "href", "srcset", "action"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:image/svg+xml;base64,"))
    assert not tags.named("link") and not tags.named("iframe")


def test_the_policy_allows_this_style_and_this_script_only(text: str, tags: Tags) -> None:
    policy = next(
        meta["content"]
        for meta in tags.named("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for element, rule in (("style", "style-src"), ("script", "script-src")):
        bodies = re.findall(f"<{element}>(.*?)</{element}>", text, re.S)
        assert len(bodies) == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert all("style" not in attrs for _, attrs in tags.tags)
    assert all(not name.startswith("on") for _, attrs in tags.tags for name in attrs)


def test_one_heading_five_rows_and_every_anchor(text: str, tags: Tags) -> None:
    assert len(tags.named("h1")) == 1
    answer = text.split('<section id="answer">')[1].split("</section>")[0]
    body = answer.split("<tbody>")[1].split("</tbody>")[0]
    assert re.findall(r'<th scope="row">([^<]+) <small>', body) == [
        "vLLM",
        "SGLang",
        "llama.cpp †",
        "TensorRT-LLM",
        "DeepInfer",
    ]
    ids = [attrs["id"] for _, attrs in tags.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    anchors = {link["href"] for link in tags.named("a")}
    assert {f"#{name}" for name in ("why", "requests", "ratio", "pool", "trust", "from")} < anchors
    assert {str(anchor)[1:] for anchor in anchors} <= set(ids)


def test_sections_come_in_the_order_of_the_design(text: str) -> None:
    sections = re.findall(r'<(?:section|footer) id="([a-z]+)">', text)
    order = ["answer", "scenarios", "six", "why", "requests", "ratio", "pool", "scheduler"]
    assert sections == [*order, "trust", "from"]


def test_every_drawing_has_words(tags: Tags) -> None:
    strips = [svg for svg in tags.named("svg") if svg.get("role") == "img"]
    assert len(strips) >= 15
    assert all(svg.get("aria-label") for svg in strips)
    others = [svg for svg in tags.named("svg") if svg.get("class") and svg not in strips]
    assert all(svg.get("aria-hidden") == "true" for svg in others)


def test_all_used_classes_are_defined(text: str, tags: Tags) -> None:
    used = {
        name
        for _, attrs in tags.tags
        for name in (attrs.get("class") or "").split()
        if name.startswith("k-")
    }
    assert {"k-reused", "k-moved", "k-draft", "k-unneeded"} <= used
    assert all(f".{name}{{" in text for name in used)
    for pattern in re.findall(r"url\(#([^)]+)\)", text):
        assert f'<pattern id="{pattern}"' in text


def test_text_from_users_is_escaped() -> None:
    name = '<b onload="x">&'
    frame = ledgers.frame([ledgers.entry("vllm", ledgers.SHORT["vllm"], request=name)])
    text = page(build(frame, ledgers.info()))
    assert name not in text
    assert "&lt;b onload=&#34;x&#34;&gt;&amp;" in text


def test_evidence_stands_on_every_table_of_numbers(text: str) -> None:
    for section in ("ratio", "pool", "scheduler"):
        body = text.split(f'<section id="{section}">')[1].split("</section>")[0]
        assert "TensorRT-LLM (transcribed)" in body


def test_a_long_run_is_cut_and_says_so(info: RunInfo) -> None:
    entries = [
        ledgers.entry("vllm", [("reused", 16), ("evicted", at), ("fresh", 4)], request=f"r{at}")
        for at in range(1, MAX_REQUESTS + 101)
    ]
    text = page(build(ledgers.frame(entries), info))
    assert "The 500 of 600 with the largest losses; the ledger file has all." in text
    rows = text.split('id="list"')[1].split("</tbody>")[0]
    assert rows.count("<tr data-f=") == MAX_REQUESTS
    assert "<summary>r600</summary>" in rows and "<summary>r1</summary>" not in rows
    assert len(text.encode()) < 3_000_000


def test_scenarios_with_rows_of_their_own_are_shown_but_not_summed(info: RunInfo) -> None:
    own = ledgers.entry("vllm", [("fresh", 9)], run="vllm:block_size=32", scenario="sizes")
    content = build(ledgers.frame([*ledgers.chat(), own]), info)
    text = page(content)
    assert text.count("Not summed, since its rows differ: sizes.") == 1
    assert "Not summed" in text.split('<section id="scenarios">')[1].split("</section>")[0]
    assert [row.run for row in content.whole.rows] == list(ledgers.FRAMEWORKS)
    assert "vLLM block_size=32" in text.split('id="scenarios"')[1]


def test_rows_that_served_fewer_requests_have_paler_bars(info: RunInfo) -> None:
    entries = [*ledgers.chat(), ledgers.entry("vllm", [("fresh", 900)], request="huge")]
    text = page(
        build(ledgers.frame([*entries, ledgers.refused("sglang", "huge", 900, "no")]), info)
    )
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    assert "SGLang * <small>0.5.23 · 2 of 3 requests</small>" in body
    assert body.count('class="bar pale"') == 4 and body.count('class="bar"') == 1


def test_requests_that_lost_nothing_are_not_among_those_that_lose_most(info: RunInfo) -> None:
    whole = ledgers.entry("vllm", [("reused", 16), ("fresh", 4)])
    text = page(build(ledgers.frame([whole]), info))
    assert "No request lost a token that had been computed before." in text
    assert 'id="list"' not in text
    lost = ledgers.entry("sglang", [("alignment", 16), ("fresh", 4)])
    content = build(ledgers.frame([whole, lost]), info)
    assert [(each.label, each.lost) for each in content.requests] == [("SGLang", 16)]
    assert content.num_requests == 1


def test_what_is_left_out_is_said_once_an_adapter(info: RunInfo) -> None:
    again = ledgers.entry("vllm", [("fresh", 4)], run="vllm:block_size=32", request="turn-1")
    content = build(ledgers.frame([*ledgers.chat(), again]), info)
    assert [name for name, _ in content.left_out] == [t for t, *_ in ledgers.FRAMEWORKS.values()]
    assert page(content).count("<summary>vLLM: 1</summary>") == 1
    assert content.trust.head == (
        "framework", "upstream", "evidence", "largest logit error", "tag faults", "tainted tokens"
    )  # fmt: skip


def test_columns_without_anything_are_left_out() -> None:
    runs = [("reused", 16), ("alignment", 8), ("fresh", 4)]
    bare = ledgers.entry("vllm", runs)
    assert rules(ledgers.frame([bare])).head == ()
    said = ledgers.entry("vllm", runs, deductions=(Deduction("alignment", 16, 24, "5"),))
    assert rules(ledgers.frame([said])).head == ("framework", "reason", "rule", "times", "tokens")


def test_unmet_expectations_are_shown(chat: pd.DataFrame, info: RunInfo) -> None:
    unmet = ScenarioInfo(name="chat", expectations=(Expectation(words="hit 7", ok=False),))
    text = page(build(chat, info.model_copy(update={"scenarios": (unmet,)})))
    assert '<p class="bad">Expected, but not so: hit 7</p>' in text


def test_a_run_without_any_hit_or_request_has_a_page(info: RunInfo) -> None:
    cold = ledgers.frame([ledgers.entry("vllm", [("fresh", 40)])])
    assert "None of" not in page(build(cold, info))  # one scenario: its name comes first
    assert "chat: none of 40 prompt tokens" in page(build(cold, info))
    gone = ledgers.frame([ledgers.entry("vllm", [("fresh", 40)], status="aborted")])
    assert "chat: no request finished" in page(build(gone, info))


def test_two_runs_write_the_same_bytes(both: pd.DataFrame, info: RunInfo, tmp_path: Path) -> None:
    first, second = (
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in write_report(both, info, tmp_path / name)
        }
        for name in ("a", "b")
    )
    assert first == second
    names = {str(path) for path in first}
    assert {"index.html", "report.md", "figures/strip.png", "figures/waterfall.png"} <= names
    assert len(first[Path("index.html")]) < 3_000_000


def test_the_facts_survive_a_file(both: pd.DataFrame, info: RunInfo) -> None:
    again = RunInfo.model_validate_json(info.model_dump_json())
    assert page(build(both, again)) == page(build(both, info))


def test_an_empty_ledger_is_bad_input(info: RunInfo, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to report"):
        write_report(ledgers.frame([]), info, tmp_path)


def test_unknown_formats_are_refused(chat: pd.DataFrame, info: RunInfo, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown report format pdf"):
        write_report(chat, info, tmp_path, ("pdf",))
