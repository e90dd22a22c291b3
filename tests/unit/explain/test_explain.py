"""``explain`` on the built-in adapters: numbers, formulas, text at two widths, speed, no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from handoff.errors import BadInput
from handoff.experiment import RowSpec
from handoff.explain import Prompt, explain, explain_request, shorthand, what_if
from handoff.explain.chain import chain, losses, story
from handoff.explain.formula import Formula
from handoff.explain.text import render, render_plain, sentence
from handoff.index.spans import Seq
from handoff.ledger.entries import Ledger

EAGLE = {"speculative_method": "eagle", "num_speculative_tokens": 3}
HYBRID = {
    "groups": [
        {"type": "full", "block_size": 2144},
        {"type": "mamba", "block_size": 2144, "spec_blocks": 3},
    ],
    "speculative_method": "mtp",
    "num_speculative_tokens": 3,
    "max_num_batched_tokens": 8192,
}


def vllm(label: str = "vllm", **values: object) -> RowSpec:
    return RowSpec(label, "vllm", values)


def test_the_chain_leads_from_the_shared_prefix_to_the_start() -> None:
    found = explain(shorthand(1867, 181), [vllm(**EAGLE)])
    answer = found.answers[0]
    links = [(link.reason, link.tokens, link.left) for link in chain(answer.entry)]
    assert links == [("alignment", 11, 1856), ("draft", 16, 1840)]
    assert chain(answer.entry)[1].cited == " (rule 9)"
    assert answer.entry.hit_tokens == 1840 and answer.smallest == 33
    text = " ".join(story(answer.entry))
    for word in ("1,867", "1,856", "1,840", "208", "draft 16", "units of 16"):
        assert word in text


def test_the_formula_an_operator_fitted_by_hand() -> None:
    answer = explain(shorthand(3784, 10), [vllm(**HYBRID)]).answers[0]
    assert answer.formula is not None
    assert answer.formula.general == "max(0, floor(L / 2,144) - 1) x 2,144"
    assert 15008 in answer.formula.checked and answer.smallest == 4288
    assert answer.fits and answer.entry.hit_tokens == 0  # one unit is shared, and dropped


def test_formulas_in_words() -> None:
    plain = Formula(16, 1, 0, ())
    assert plain.general == "floor((L - 1) / 16) x 16"
    assert plain.words(48, 48) == "floor((48 - 1) / 16) x 16 = 32"
    assert plain.words(40, 100) == "floor(40 / 16) x 16 = 32"
    token = Formula(1, 1, 0, ())
    assert token.general == "L - 1" and token.words(47, 100) == "47"
    assert token.words(100, 100) == "100 - 1 = 99"
    assert plain.given(40, 100) == "40 shared tokens"
    assert plain.given(100, 100) == "a prompt of 100 tokens"


def test_the_account_names_rules_units_and_where_numbers_come_from() -> None:
    rows = [RowSpec(name, name, {}) for name in ("vllm", "deepinfer")]
    text = render_plain(explain(shorthand(1000, 16), rows))
    assert re.search(r"DeepInfer +alignment 104 \(rule 9\.3\) +120 +129\n", text)
    assert re.search(r"computed  smallest prompt\n +tokens +tokens +tokens\n", text)
    one_line = re.sub(r"\s+", " ", text)
    assert "here, with 1,000 shared tokens, floor(1,000 / 16) x 16 = 992" in one_line
    assert "Rules: docs/rules/NAME.md (vllm, deepinfer)" in one_line
    assert "Rules: docs/rules/vllm.md" in render_plain(explain(shorthand(1000, 16), rows[:1]))


def test_prompts_that_can_never_hit_are_told() -> None:
    found = explain(shorthand(1000, 100), [vllm(**{**HYBRID, "max_model_len": 2000})])
    assert found.answers[0].smallest is None
    assert "never" in render_plain(found)
    assert "can never hit under these options" in str(found.answers[0].never)


def test_what_ifs_are_run_and_compared() -> None:
    asked = what_if("block_size=64", ["vllm"]) + what_if("vllm.enable_prefix_caching=off", ["vllm"])
    found = explain(shorthand(1867, 181), [vllm()], what_ifs=asked)
    assert [(each.hit, each.change) for each in found.what_ifs] == [(1856, 0), (0, -1856)]
    text = render_plain(found)
    assert "vLLM, block_size 64: 1,856 (+0), smallest prompt 65" in text
    assert "0 (−1,856)" in text
    with pytest.raises(BadInput, match=r"no adapter has an option eagle\. .*eagle_block_drop"):
        what_if("eagle=off", ["vllm"])
    with pytest.raises(BadInput, match="block_size"):
        what_if("vllm.block_sise=1", ["vllm"])
    with pytest.raises(BadInput, match="OPTION=VALUE"):
        what_if("block_size", ["vllm"])


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    found = explain(shorthand(1867, 181), [vllm(), vllm("vllm:eagle", **EAGLE)])
    lines = render_plain(found, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.startswith("prompt-2 shares 1,867 of its 2,048 tokens with prompt-1;")
    assert ("1 who matches" in text) is (width == 120)
    assert "roofline H200: 989 TFLOP/s at 60%" in text.replace("\n  ", " ")
    assert "1,840" in text and "…" not in text


def test_ascii_says_the_same() -> None:
    found = explain(shorthand(40, 9), [vllm()])
    console = Console(width=80, record=True, color_system=None, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        render(console, found, steps=True, ascii_only=True)
        text = console.export_text()
    assert text.isascii() and "alignment 8" in text and "#" in text


def test_sentences_for_one_and_for_equal_hits() -> None:
    one = explain(shorthand(64, 8), [vllm()])
    assert sentence(one)[0] == (
        "prompt-2 shares 64 of its 72 tokens with prompt-1; the hit is 64, the saved compute is"
        f" {100 * one.answers[0].entry.saved_flops / one.answers[0].entry.cold_flops:.1f} %."
    )
    two = explain(shorthand(64, 8), [vllm(), vllm("vllm:32", block_size=32)])
    assert "both hits are 64" in sentence(two)[0]


def test_isolation_keeps_tenants_apart() -> None:
    tokens = Seq.of(range(552))
    tenants = [Prompt("a", tokens, salt="A"), Prompt("b", tokens, salt="B")]
    answer = explain(tenants, [vllm()]).answers[0]
    assert answer.entry.lost == {"isolation": 544, "alignment": 8}
    assert answer.entry.hit_tokens == 0


def test_losses_of_earlier_prompts_are_summed() -> None:
    tokens = Seq.of(range(552))
    tenants = [Prompt(salt, tokens, salt=salt) for salt in "ABC"]
    answer = explain(tenants, [vllm()], probe=False).answers[0]
    said = "vLLM: 2 requests lost tokens; all together isolation 1,088, alignment 16."
    assert answer.to_dict()["story"][-1] == said
    assert losses(answer.entries[:2]) == []


def test_refused_prompts_are_said() -> None:
    found = explain(shorthand(100, 10), [vllm(max_model_len=50)])
    assert not found.answers and "max_model_len" in found.refused["vllm"]
    assert "refused" in render_plain(found)


def test_json_and_past_runs() -> None:
    found = explain(shorthand(100, 10), [vllm()])
    data = json.loads(json.dumps(found.to_dict()))
    assert data["answers"][0]["hit_tokens"] == 96 and data["difference"]["position"] == 100
    ledger = Ledger(found.answers[0].entries)
    again = explain_request(ledger, "prompt-2")
    assert again.answers[0].entry == found.answers[0].entry
    assert "shares 100 of its 110 tokens" in render_plain(again)
    with pytest.raises(BadInput, match="no request"):
        explain_request(ledger, "prompt-9")
    with pytest.raises(BadInput, match="same name"):
        explain([*shorthand(4, 4), *shorthand(4, 4)], [vllm()])


def test_a_hundred_thousand_tokens_take_less_than_a_second() -> None:
    ids = list(range(5, 100_005))
    prompts = [Prompt("a", Seq.of(ids)), Prompt("b", Seq.of([*ids[:60_000], 1, *ids[60_000:-1]]))]
    began = time.process_time()
    found = explain(prompts, [vllm(), vllm("vllm:eagle", **EAGLE)])
    assert time.process_time() - began < 1
    assert found.difference is not None and found.difference.again == 39_999
    assert found.answers[0].entry.hit_tokens == 60_000


def test_torch_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from handoff.explain import explain, shorthand\n"
        "from handoff.experiment import RowSpec\n"
        "print(explain(shorthand(64, 8), [RowSpec('vllm', 'vllm', {})]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the hit is 64" in done.stdout


def test_options_that_belong_together_are_one_what_if() -> None:
    asked = what_if("vllm.speculative_method=eagle,num_speculative_tokens=3", ["vllm"])
    assert asked[0].values == EAGLE
    found = explain(shorthand(1000, 100), [vllm()], what_ifs=asked)
    assert (found.what_ifs[0].hit, found.what_ifs[0].change) == (976, -16)
    both = what_if("speculative_method=eagle,num_speculative_tokens=3", ["vllm", "llamacpp"])
    assert [each.adapter for each in both] == ["vllm"]


def test_pandas_and_matplotlib_are_not_loaded() -> None:
    code = (
        "import sys\n"
        "import handoff.explain.text\n"
        "print(sorted({'pandas', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
