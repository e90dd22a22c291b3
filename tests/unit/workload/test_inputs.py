from __future__ import annotations

import gzip
import io
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, common
from handoff.workload.arrivals import When
from handoff.workload.document import read_value
from handoff.workload.mooncake import read_mooncake
from handoff.workload.scenario import builtin, load_scenario

LINE = {"timestamp": 1500, "input_length": 700, "output_length": 3, "hash_ids": [4, 9]}


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(x if isinstance(x, str) else json.dumps(x) + "\n" for x in lines))
    return path


def test_mooncake_blocks_are_virtual_runs(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.write(json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "hash_ids": [4, 5]}) + "\n")
    first, second = read_mooncake(path)
    assert (len(first.prompt), first.arrival, first.max_tokens) == (700, 1.5, 3)
    assert first.prompt[0] == VIRTUAL + 2048 and first.prompt[512] == VIRTUAL + 9 * 512
    assert second.prompt.num_pieces == 1  # blocks 4 and 5 continue each other
    assert common(first.prompt, 0, second.prompt, 0, 999) == 512
    assert first.outputs is not None and second.outputs is not None
    assert common(first.outputs, 0, second.outputs, 0, 3) == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hash_ids": [1]}, "hash_ids"),
        ({"hash_ids": "x"}, "hash_ids"),
        ({"input_length": 0}, "input_length"),
        ({"output_length": True}, "output_length"),
        ({"timestamp": "soon"}, "timestamp"),
        ({"timestamp": float("nan")}, "timestamp"),
        ({"timestamp": 10**400}, "timestamp"),
        ({"timestamp": 1e300}, "timestamp"),
        ({"hash_ids": [True, False]}, "hash_ids"),
        ({"hash_ids": [4, 1 << 52]}, "hash_ids"),
        ({"block_size": 350}, "block_size"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, change: dict[str, object], field: str) -> None:
    path = write(tmp_path / "t.jsonl", LINE, {**LINE, **change})
    with pytest.raises(BadInput, match=f"line 2, field {field}"):
        list(read_mooncake(path))
    skipped: list[str] = []
    assert len(list(read_mooncake(path, skip_bad=skipped))) == 1 and len(skipped) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf%s\n%s",
        b"%s\r\n\r\n%s\r\n",
        b"\n%s\n   \n%s",
        '{"note": "\u2028\x85\U0001f600", %s\n%s'.encode(),
    ],
)
def test_line_ends_marks_and_separators_change_nothing(tmp_path: Path, content: bytes) -> None:
    line = json.dumps(LINE).encode()
    first = line[1:] if content.startswith(b"{") else line
    path = tmp_path / "t.jsonl"
    path.write_bytes(content % (first, line))
    assert [(len(r.prompt), r.max_tokens) for r in read_mooncake(path)] == [(700, 3)] * 2


def test_standard_input_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({**LINE, "note": "\u00e9"}, ensure_ascii=False)
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", stream)
    assert len(list(read_mooncake(Path("-")))) == 1
    assert list(read_mooncake(Path("-"))) == []  # read to its end, still open


def test_a_line_that_is_no_text_is_one_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = json.dumps(LINE).encode() + b"\n"
    path.write_bytes(line * 500 + b'{"\xff": 1}\n' + line)
    with pytest.raises(BadInput, match="line 501: is not UTF-8 text"):
        list(read_mooncake(path))
    skipped: list[str] = []
    assert len(list(read_mooncake(path, skip_bad=skipped))) == 501 and len(skipped) == 1


@pytest.mark.parametrize("name", ["a\0b.jsonl", ".", "x" * 300])
def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        list(read_mooncake(tmp_path / name))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1]\n", b"{\n"])
def test_unreadable_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"t\.jsonl, line 1"):
        list(read_mooncake(path))
    broken = tmp_path / "t.jsonl.gz"
    broken.write_bytes(gzip.compress(b"{}" * 999)[:20])
    with pytest.raises(BadInput, match="cannot be read"):
        list(read_mooncake(broken))


def test_when_conditions() -> None:
    assert When.parse("during_decode:a@3") == When("during_decode", "a", 3)
    assert When.parse("after:a:b") == When("after", "a:b")
    for wrong in ("later", "after:", "during_decode:a@0", "start:x"):
        with pytest.raises(BadInput):
            When.parse(wrong)


@pytest.mark.parametrize("name", sorted(builtin()))
def test_built_in_scenarios_load(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name and scenario.question.endswith("?") and scenario.notice
    for arrival in scenario.arrivals():
        assert arrival.action or (arrival.request is not None and len(arrival.request.prompt) > 0)


SCENARIO = """\
name: x
question: Why?
requests:
  - {id: a, spans: [{shared: s, len: 3}]}
  - {id: b, when: "after:a", spans: [{output_of: a, len: 1}, {shared: s, len: 2}]}
"""


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("name: x", "nam: x", "line"),
        ("len: 3", "len: 0", "line 4, field requests.0.spans.0.len"),
        ("after:a", "after:z", "waits for z"),
        ("shared: s, len: 2", "shared: s, unique: t, len: 2", "line 5, field requests.1.spans.1"),
        ("{id: b", "{id: a", "occurs twice"),
        ("question: Why?", "question: [", "line"),
        ("len: 3", "len: true", "line 4, field requests.0.spans.0.len"),
        ("len: 3", "len: '3'", "line 4, field requests.0.spans.0.len"),
        ("{id: a", "{id: a, at: .inf", "line 4, field requests.0.at"),
        ("{id: a", "{id: a, at: 1e300", "line 4, field requests.0.at"),
        ("{id: a", "{id: a, tokens: [-1]", "line 4, field requests.0.tokens.0"),
        ("{id: a", "{id: a, tokens: [1099511627776]", "line 4, field requests.0.tokens.0"),
        ("{id: a", "{id: ''", "line 4, field requests.0.id"),
        ("{id: a", "{id: a, lora: {name: [1]}", "line 4, field requests.0: request a: lora needs"),
        ("{id: a", "{id: a, lora: {path: /a}", "request a: lora needs a name"),
        ("after:a", "during_decode:a@\u00b2", "request b: when"),
        ("name: x", "name: x\npool_tokens: 1000000000000", "line 2, field pool_tokens"),
        ("name: x", "name: x\nquestion: y", "line 3, field question: occurs twice"),
        ("name: x", "name: x\nnotice: '\0'", "special characters are not allowed"),
        ("name: x", "name: 2024-13-45", "is not YAML: month must be"),
        ("name: x", "name: x\noptions: &o {vllm: *o}", "line 2: holds an alias of itself"),
    ],
)
def test_a_bad_scenario_names_line_and_field(
    tmp_path: Path, old: str, new: str, where: str
) -> None:
    assert old in SCENARIO
    path = write(tmp_path / "s.yaml", SCENARIO.replace(old, new))
    with pytest.raises(BadInput, match=where):
        load_scenario(str(path))


def test_aliases_may_not_multiply_without_end(tmp_path: Path) -> None:
    names = "abcdefghi"
    bomb = "".join(f"  {n}: &{n} [{', '.join([f'*{m}'] * 10)}]\n" for m, n in pairwise(names))
    text = SCENARIO + "options:\n  a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + bomb
    with pytest.raises(BadInput, match="holds more than 1,000,000 values"):
        load_scenario(str(write(tmp_path / "s.yaml", text)))
    shared = SCENARIO.replace("[{shared: s, len: 3}]", "&s [{shared: s, len: 3}]")
    twice = shared + "  - {id: c, spans: *s}\n"
    assert len(load_scenario(str(write(tmp_path / "s.yaml", twice))).requests) == 3


def test_spans_quote_streams(tmp_path: Path) -> None:
    a, b = load_scenario(str(write(tmp_path / "s.yaml", SCENARIO))).arrivals()
    assert a.request is not None and b.request is not None and a.request.outputs is not None
    assert b.request.prompt[0] == a.request.outputs[0]
    assert b.request.prompt.tokens(1) == a.request.prompt.tokens(0, 2)


def test_an_unknown_scenario_gets_a_suggestion() -> None:
    with pytest.raises(BadInput, match="Did you mean mid-block"):
        load_scenario("mid-blok")


@pytest.mark.parametrize(
    "text", ["[1", "2024-13-45", "9" * 5000, "[" * 3000, "&a [*a]", "{a: 1, a: 2}"]
)
def test_a_value_that_is_no_yaml_is_text(text: str) -> None:
    assert read_value(text) == text
    assert read_value("[1, {a: off}]") == [1, {"a": False}]
