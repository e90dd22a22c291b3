"""``explain``: the same prompts through several engines, and why their answers differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from handoff.adapter import Adapter, Options, known_options, load, make_options
from handoff.errors import BadInput
from handoff.experiment import RowSpec, Stream, run_row
from handoff.ledger.entries import Entry, Ledger
from handoff.ledger.roofline import device as find_device
from handoff.model.presets import load_model
from handoff.types import Request
from handoff.workload.arrivals import Arrival, When
from handoff.workload.document import read_value

from .chain import chain, losses, story
from .formula import Formula, Twice, fit, smallest_prompt
from .prompts import Difference, Prompt, compare

__all__ = [
    "Answer",
    "Comparison",
    "Outcome",
    "WhatIf",
    "explain",
    "explain_request",
    "smallest_of",
    "what_if",
]

LIMIT = 1 << 17
"""Longest prompt that is tried when the smallest one that can hit is looked for."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Option values to try on one adapter; ``words`` is how the user said it."""

    adapter: str
    values: Mapping[str, Any]
    words: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one what-if would change: hit and computed tokens of the last prompt."""

    what: WhatIf
    title: str
    hit: int | None
    computed: int | None
    change: int | None
    smallest: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One framework's account of the last prompt.

    ``entries`` are those of all prompts, in order; ``entry`` is the last prompt's first admission.
    ``formula`` is ``None`` if the engine follows no closed one; ``fits`` tells whether it gives
    this very hit. ``smallest`` is the shortest prompt that can hit, ``None`` if none can.
    """

    entry: Entry
    entries: tuple[Entry, ...]
    formula: Formula | None = None
    smallest: int | None = None
    probed: bool = False

    @property
    def fits(self) -> bool:
        """Whether the formula, put in numbers, is this hit."""
        entry = self.entry
        return (
            self.formula is not None
            and not entry.moved
            and self.formula.hit(entry.shared_tokens, entry.known_tokens) == entry.hit_tokens
        )

    @property
    def never(self) -> str | None:
        """Why no prompt can ever hit under these options, or ``None``."""
        if not self.probed or self.smallest is not None:
            return None
        return (
            "can never hit under these options: no prompt that is accepted gets a hit when repeated"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        entry = self.entry
        return {
            "run": entry.run,
            "adapter": entry.adapter,
            "describe": entry.describe,
            "evidence": entry.evidence,
            "options": dict(entry.options),
            "status": entry.status,
            "prompt_tokens": entry.prompt_tokens,
            "shared_tokens": entry.shared_tokens,
            "raw_tokens": entry.raw_tokens,
            "hit_tokens": entry.hit_tokens,
            "start": entry.start,
            "computed_tokens": entry.computed_tokens,
            "unit": entry.unit,
            "tokens": dict(entry.tokens),
            "saved_ratio": entry.saved_flops / entry.cold_flops if entry.cold_flops else None,
            "ttft_s": entry.ttft_s,
            "cold_ttft_s": entry.cold_ttft_s,
            "counters": dict(entry.counters),
            "runs": [list(run) for run in entry.runs],
            "lanes": {name: [list(run) for run in lane] for name, lane in entry.lanes.items()},
            "chain": [link._asdict() for link in chain(entry)],
            "answers": dict(entry.answers),
            "formula": self.formula.general if self.formula else None,
            "formula_here": self._formula_here() if self.fits else None,
            "smallest_prompt": self.smallest,
            "never": self.never,
            "story": [*story(entry), *losses(self.entries)],
        }

    def _formula_here(self) -> str:
        assert self.formula is not None
        return self.formula.words(self.entry.shared_tokens, self.entry.known_tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several frameworks' accounts of one prompt, with what it has in common with earlier ones.

    ``model`` and ``hardware`` say whose FLOPs are counted and what the times assume.
    """

    name: str
    prompt_tokens: int
    answers: tuple[Answer, ...]
    difference: Difference | None = None
    what_ifs: tuple[Outcome, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    hardware: str = ""

    @property
    def shared_tokens(self) -> int:
        """The longest prefix that any row had seen before."""
        return max((answer.entry.shared_tokens for answer in self.answers), default=0)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what ``handoff explain --json`` prints."""
        return {
            "prompt": self.name,
            "prompt_tokens": self.prompt_tokens,
            "model": self.model,
            "hardware": self.hardware,
            "difference": self.difference._asdict() if self.difference else None,
            "answers": [answer.to_dict() for answer in self.answers],
            "what_ifs": [
                {
                    "adapter": each.what.adapter,
                    "what": each.what.words,
                    "hit_tokens": each.hit,
                    "computed_tokens": each.computed,
                    "change": each.change,
                    "smallest_prompt": each.smallest,
                    "why": each.why,
                }
                for each in self.what_ifs
            ],
            "refused": dict(self.refused),
        }

    def __repr__(self) -> str:
        from .text import render_plain

        return render_plain(self)


def what_if(text: str, adapters: Sequence[str]) -> list[WhatIf]:
    """``[ADAPTER.]OPTION=VALUE[,OPTION=VALUE]...``; without an adapter for each that has them all.

    Values are YAML scalars (``off`` is false). ``BadInput`` names what is unknown.
    """
    values: dict[str, Any] = {}
    adapter, dot, rest = text.partition(".")
    if not dot or "=" in adapter:
        adapter, rest = "", text
    for part in re.split(r",(?=\w+=)", rest):
        option, equals, raw = part.partition("=")
        if not equals or not option:
            raise BadInput(f"--what-if {text}: give OPTION=VALUE or ADAPTER.OPTION=VALUE")
        values[option] = read_value(raw)
    words = rest.replace(",", ", ").replace("=", " ")
    if adapter:
        known_options(load(adapter), values)
        return [WhatIf(adapter, values, words)]
    having = [each for each in adapters if set(values) <= set(load(each).options.model_fields)]
    if not having:
        raise BadInput(
            f"--what-if {text}: no adapter has an option {' and '.join(values)}."
            f"{_alike(values, adapters)}"
        )
    return [WhatIf(each, values, words) for each in having]


def _alike(names: Iterable[str], adapters: Sequence[str]) -> str:
    """Options whose names contain or resemble an unknown one, as a hint."""
    options = [
        f"{adapter}.{option}"
        for adapter in dict.fromkeys(adapters)
        for option in load(adapter).options.model_fields
    ]
    found: list[str] = []
    for name in names:
        inside = [each for each in options if name in each.partition(".")[2]]
        found += inside or difflib.get_close_matches(name, options, 2, 0.5)
    return f" Did you mean {' or '.join(found[:3])}?" if found else ""


def explain(
    prompts: Sequence[Prompt],
    rows: Sequence[RowSpec],
    *,
    what_ifs: Sequence[WhatIf] = (),
    pool_tokens: int | None = None,
    model: str = "llama-3.1-8b",
    device: str = "H200",
    probe: bool = True,
) -> Comparison:
    """Serve ``prompts`` one after the other with every row, and account for the last one.

    ``probe`` also looks for the closed formula and the smallest prompt that can hit. The pool
    holds all prompts if ``pool_tokens`` is not given. Nothing is executed; torch is not needed.
    """
    if not prompts:
        raise BadInput("explain needs a prompt")
    tokens = pool_tokens or _enough(prompts)
    stream = Stream("explain", lambda: _arrivals(prompts))
    last = prompts[-1]
    answers, refused = [], {}

    def served(spec: RowSpec) -> tuple[Entry, tuple[Entry, ...]]:
        work = run_row(
            spec, stream, pool_tokens=tokens, check_tags=False, model=model, device=device
        )
        found = [e for e in work.entries if e.request == last.name and e.attempt == 0]
        return found[0], tuple(work.entries)

    for spec in rows:
        entry, entries = served(spec)
        if entry.status != "done":
            refused[spec.label] = entry.status
            continue
        answers.append(_answer(spec, entry, entries, pool_tokens, probe))
    outcomes = []
    for what, spec in product(what_ifs, rows):
        if spec.adapter == what.adapter:
            changed = RowSpec(spec.label, spec.adapter, {**spec.values, **what.values})
            before = next((a.entry for a in answers if a.entry.run == spec.label), None)
            entry, _ = served(changed)
            outcomes.append(_outcome(what, changed, entry, before, pool_tokens, probe))
    return Comparison(
        last.name,
        len(last.tokens),
        tuple(answers),
        compare(prompts),
        tuple(outcomes),
        refused,
        load_model(model).title,
        find_device(device).assumptions,
    )


def explain_request(ledger: Ledger, request: str, scenario: str | None = None) -> Comparison:
    """One request of a past run, from its ledger; ``BadInput`` names what is not there."""
    found = [
        entry
        for entry in ledger
        if entry.request == request and entry.attempt == 0 and scenario in (None, entry.scenario)
    ]
    scenarios = list(dict.fromkeys(entry.scenario for entry in found))
    if not found:
        raise BadInput(f"the ledger has no request {request!r}")
    if len(scenarios) > 1:
        raise BadInput(
            f"request {request} occurs in several scenarios, choose one: {', '.join(scenarios)}"
        )
    answers = tuple(Answer(entry, (entry,)) for entry in found if entry.status == "done")
    refused = {entry.run: entry.status for entry in found if entry.status != "done"}
    return Comparison(request, found[0].prompt_tokens, answers, refused=refused)


def _enough(prompts: Sequence[Prompt]) -> int:
    """A pool in which nothing need be evicted: twice all prompts and outputs."""
    total = sum(len(prompt.tokens) + prompt.outputs for prompt in prompts)
    return max(16_384, 1 << (2 * total).bit_length())


def _arrivals(prompts: Sequence[Prompt]) -> list[Arrival]:
    names = [prompt.name for prompt in prompts]
    if len(set(names)) < len(names):
        raise BadInput(f"two prompts have the same name: {', '.join(names)}")
    arrivals = []
    for at, prompt in enumerate(prompts):
        request = Request(
            prompt.name, prompt.tokens, prompt.outputs, salt=prompt.salt, lora=prompt.lora
        )
        when = When("after", names[at - 1]) if at else When()
        arrivals.append(Arrival(prompt.name, when, request))
    return arrivals


def _answer(
    spec: RowSpec,
    entry: Entry,
    entries: tuple[Entry, ...],
    pool_tokens: int | None,
    probe: bool,
) -> Answer:
    if not probe:
        return Answer(entry, entries)
    twice = _twice(spec, pool_tokens)
    formula = fit(twice, entry.unit, (entry.prompt_tokens,))
    return Answer(entry, entries, formula, smallest_prompt(twice, LIMIT), probed=True)


def smallest_of(spec: RowSpec, pool_tokens: int | None = None) -> int | None:
    """The shortest prompt that hits when it is sent again; ``None`` if none can. Takes 30 ms."""
    return smallest_prompt(_twice(spec, pool_tokens), LIMIT)


def _twice(spec: RowSpec, pool_tokens: int | None) -> Twice:
    adapter = load(spec.adapter)

    def options(tokens: int) -> Options:
        return _options(adapter, spec.values, pool_tokens or tokens)

    return Twice(adapter, options)


def _options(adapter: Adapter, values: Mapping[str, Any], tokens: int) -> Options:
    budget = adapter.budget(tokens, make_options(adapter, values))
    return make_options(adapter, {**budget, **values})


def _outcome(
    what: WhatIf,
    spec: RowSpec,
    entry: Entry,
    before: Entry | None,
    pool_tokens: int | None,
    probe: bool,
) -> Outcome:
    title = entry.title
    if entry.status != "done":
        return Outcome(what, title, None, None, None, None, entry.status)
    change = entry.hit_tokens - before.hit_tokens if before is not None else None
    smallest = smallest_prompt(_twice(spec, pool_tokens), LIMIT) if probe else None
    return Outcome(what, title, entry.hit_tokens, entry.computed_tokens, change, smallest)
