"""Prompts are read with clear errors, and what two have in common is found exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.errors import BadInput
from handoff.explain.prompts import GRAIN, Prompt, compare, read_prompt, shorthand, told_apart
from handoff.index.spans import Seq


def prompts(*texts: list[int]) -> list[Prompt]:
    return [Prompt(f"p{at}", Seq.of(text)) for at, text in enumerate(texts)]


def test_a_longer_clock_moves_the_rest() -> None:
    head, body = list(range(100, 147)), list(range(1000, 2941))
    found = compare(prompts([*head, 1, 2, 3, *body], [*head, 4, 5, 6, 7, 8, *body]))
    assert found is not None
    assert (found.position, found.before, found.after) == (47, 1, 4)
    assert (found.again, found.shift) == (1941, 2)
    assert found.words(1993) == (
        "First difference at position 47 (token 1 became 4). 1,941 later tokens are equal again,"
        " moved by +2."
    )


def test_documents_in_another_order_are_found_again() -> None:
    a, b, c = list(range(100, 130)), list(range(200, 230)), list(range(300, 330))
    found = compare(prompts([*a, *b, *c], [*b, *a, *c]))
    assert found is not None and found.position == 0 and found.again == 90


def test_the_earlier_prompt_that_shares_most_is_named() -> None:
    found = compare(prompts([1, 2, 3], [1, 2, 9], [1, 2, 3, 4]))
    assert found is not None and found.other == "p0" and found.position == 3
    assert found.words(4) == "First difference at position 3 (where p0 ends)."
    same = compare(prompts([1, 2, 3, 4], [1, 2, 3]))
    assert same is not None
    assert same.words(3) == "All of it stands at the beginning of p0."
    assert compare(prompts([1])) is None


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_equal_again_is_never_more_than_there_is(a: list[int], b: list[int]) -> None:
    found = compare(prompts([9, *a], [9, *b]))
    assert found is not None
    assert 0 <= found.again <= len(b) + 1 - found.position
    assert found.again == 0 or found.again >= GRAIN


def test_shorthand_shares_the_head_and_nothing_else() -> None:
    found = compare(shorthand(1000, 37, 3))
    assert found is not None and (found.position, found.again) == (1000, 0)
    assert (found.before, found.after) == (None, None)
    assert found.words(1037) == "First difference at position 1,000."


def test_files_of_ids_and_text(tmp_path: Path) -> None:
    path = tmp_path / "turn.json"
    path.write_text(json.dumps([5, 6, 7]))
    assert read_prompt(path).tokens.tokens() == [5, 6, 7]
    path.write_text(json.dumps({"token_ids": [8]}))
    assert read_prompt(path).name == "turn" and len(read_prompt(path).tokens) == 1
    for bad in ("[]", "[1, -2]", "[true]", '"text"', "[1,"):
        path.write_text(bad)
        with pytest.raises(BadInput, match=r"turn\.json"):
            read_prompt(path)
    text = tmp_path / "turn.txt"
    text.write_text("hello")
    with pytest.raises(BadInput, match="--tokenizer"):
        read_prompt(text)
    with pytest.raises(BadInput, match="cannot be read"):
        read_prompt(tmp_path / "none.json")


def test_text_needs_a_tokenizer_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    built = tokenizers.Tokenizer(model)
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    built.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "turn.txt"
    text.write_text("a b c")
    found = read_prompt(text, tmp_path / "tokenizer.json")
    assert found.tokens.tokens() == [0, 1, 2]
    text.write_text("")
    with pytest.raises(BadInput, match="empty"):
        read_prompt(text, tmp_path / "tokenizer.json")
    with pytest.raises(BadInput, match="no tokenizer file"):
        read_prompt(text, text)


@pytest.mark.parametrize("content", ["[" * 100_000, "[1e400]", "[true]", '{"ids": [1]}', "\ufeff"])
def test_files_that_are_no_token_ids_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"p\.json"):
        read_prompt(path)


def test_prompts_of_one_file_name_are_told_apart() -> None:
    given = [Prompt("p", Seq.of([1])), Prompt("p", Seq.of([1]))]
    found = told_apart(given, [Path("a/p.json"), Path("b/p.json")])
    assert [each.name for each in found] == ["a/p.json", "b/p.json"]
    same = told_apart(given, [Path("p.json"), Path("p.json")])
    assert [each.name for each in same] == ["p.json (1)", "p.json (2)"]
    assert told_apart(given[:1], [Path("p.json")])[0].name == "p"


def test_shorthand_keeps_to_its_numbers() -> None:
    for shared, tail in ((1 << 32, 1), (1, 1 << 32), (10**30, 1), (-1, 1)):
        with pytest.raises(BadInput, match="each part"):
            shorthand(shared, tail)
