"""Every rule that is cited can be found in its framework's rule book, and every loss cites one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from handoff.adapter import ORDER, Cites, load
from handoff.experiment import rows_of, run_row, stream_of
from handoff.workload.scenario import builtin, load_scenario

ROOT = Path(__file__).parents[2]
NUMBER = r"\d+[a-z]?(?:\.\d+)*[a-z]?(?: [a-c]\b)?"
CITATION = re.compile(rf"\b[Rr](?:ULES|ules?) ({NUMBER}(?:(?:,| and| to) {NUMBER})*)")
DRAWN = {"alignment", "disabled", "evicted", "isolation", "not_stored"}
"""Losses that the ledger finds itself; llama.cpp counts single tokens and chooses among slots."""


@cache
def book(name: str) -> str:
    return (ROOT / f"docs/rules/{name}.md").read_text("utf-8")


def findable(name: str, rule: str) -> bool:
    """Whether a search for the number leads to the rule, and a link to its anchor."""
    text = re.escape(rule)
    shown = re.search(rf"^##+ {text}[. ]|\*\*{text}\*\*", book(name), re.MULTILINE)
    return bool(shown) and f'<a id="rule-{rule}"></a>' in book(name)


@pytest.mark.parametrize("name", ORDER)
def test_anchors_are_unique(name: str) -> None:
    found = re.findall(r'<a id="rule-([^"]+)"></a>', book(name))
    assert len(found) == len(set(found)) > 10


@pytest.mark.parametrize("name", ORDER)
def test_losses_that_no_handoff_deducts_have_a_rule(name: str) -> None:
    adapter = load(name)
    assert isinstance(adapter, Cites)
    wanted = DRAWN ^ {"alignment", "slot_choice"} if name == "llamacpp" else DRAWN
    assert wanted <= set(adapter.rules)
    missing = {rule for rule in adapter.rules.values() if not findable(name, rule)}
    assert not missing


@pytest.mark.parametrize("name", ORDER)
def test_rules_that_the_code_cites_exist(name: str) -> None:
    cited: dict[str, str] = {}
    for path in sorted((ROOT / "adapters" / name).rglob("*.py")):
        for listed in CITATION.findall(path.read_text("utf-8")):
            for rule in re.split(r", | and | to ", listed):
                cited.setdefault(rule.replace(" ", ""), path.name)
    missing = {rule: path for rule, path in cited.items() if not findable(name, rule)}
    assert cited and not missing


def test_every_deduction_of_the_scenarios_cites_a_rule_and_says_why() -> None:
    cited: dict[tuple[str, str], str] = {}
    for scenario in map(load_scenario, builtin()):
        stream = stream_of(scenario)
        for spec in rows_of(scenario, ORDER, {}):
            for entry in run_row(spec, stream, check_tags=False).entries:
                where = f"{scenario.name}, {spec.label}, {entry.request}"
                for reason, _, _, rule, _, note in entry.deductions:
                    assert rule, f"{where}: {reason} cites no rule"
                    assert note, f"{where}: {reason} has no note"
                    cited[spec.adapter, rule] = where
                cited.update({(spec.adapter, rule): where for rule in entry.unsound})
    missing = {key: where for key, where in cited.items() if not findable(*key)}
    assert len(cited) > 20 and not missing
