"""Public questions about prefix-cache hits as token-level cases: replayed and checked.

One line is a case with its variants; each of them runs on a fresh engine of the frameworks it
names. Numbers are compared exactly, reasons by name among the classes of a request's positions,
and every number that an explanation must say is looked for in its text. What is not covered by the
pinned rules is skipped and counted with its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from handoff.adapter import Counts, load
from handoff.errors import BadInput, Unsupported
from handoff.experiment import label_of
from handoff.explain.chain import losses, story
from handoff.explain.prompts import Prompt, compare
from handoff.index.spans import VIRTUAL
from handoff.ledger.attribution import Accountant
from handoff.lines import read_objects
from handoff.runner import run
from handoff.types import Group, Handoff, Step, StepResult
from handoff.types.checks import StepChecker
from handoff.workload.arrivals import Arrival
from handoff.workload.scenario import RequestSpec, build_arrivals

from .conform import Outcome
from .field_checks import Played, check, numbers_in

__all__ = ["FieldCase", "FieldOutcome", "cases_of", "field_cases", "play"]

SLACK = 8
"""Tokens a request may still generate when its stop token comes."""
BEHIND_STOP = VIRTUAL + (1 << 60)
"""First number of what it would generate then."""


@dataclass(frozen=True, slots=True)
class FieldCase:
    """One run to make: a case or a variant of it on one framework."""

    label: str
    framework: str
    config: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    expected: Mapping[str, Any]
    skip: str | None = None


@dataclass(slots=True)
class FieldOutcome(Outcome):
    """Counts; a case is a line of the file, a run is a case or variant on one framework."""

    adapter: str = "field_cases"
    runs: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    differences: list[dict[str, Any]] = field(default_factory=list)
    judge: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: that of recordings, and what a reader has to judge."""
        return {
            **Outcome.as_dict(self),
            "runs": dict(sorted(self.runs.items())),
            "unchecked": dict(sorted(self.unchecked.items())),
            "differences": self.differences,
            "judge": self.judge,
        }


def field_cases(path: Path, *, adapters: Sequence[str] | None = None) -> FieldOutcome:
    """Run every case of a file; only those of ``adapters`` if given."""
    outcome = FieldOutcome()
    for number, line in read_objects(path):
        if "id" not in line or "requests" not in line:
            raise BadInput("is no field case: it needs id and requests", file=path, line=number)
        _one(outcome, path, number, line, adapters)
    return outcome


def _one(
    outcome: FieldOutcome,
    path: Path,
    number: int,
    line: Mapping[str, Any],
    adapters: Sequence[str] | None,
) -> None:
    text: list[str] = []
    counts: Counter[str] = Counter()
    for case in cases_of(line):
        if adapters is not None and case.framework not in adapters:
            continue
        try:
            if case.skip is not None:
                raise Unsupported(case.skip)
            played = play(case)
        except Unsupported as error:
            counts["skipped"] += 1
            outcome.skipped_reasons[str(error)] += 1
            continue
        except BadInput as error:
            raise BadInput(f"{case.label}: {error}", file=path, line=number) from None
        except Exception as error:  # a crash is a difference, with its place
            counts["differ"] += 1
            crash = f"{type(error).__name__}: {error}"
            _differs(outcome, path, number, case.label, "(crash)", None, crash)
            continue
        text += played.story
        checked = check(case.expected, played)
        counts["differ" if checked.differences else "agree"] += 1
        outcome.requests += len(case.requests)
        outcome.fields += checked.fields
        outcome.unchecked.update(checked.unchecked)
        for where, expected, got in checked.differences:
            _differs(outcome, path, number, case.label, where, expected, got)
    said = line.get("expectation", {}).get("must_say", "")
    if said and (counts["agree"] or counts["differ"]):
        outcome.judge.append({"case": line["id"], "must_say": said, "text": text})
        wanted, found = numbers_in(said), numbers_in(" ".join(text))
        outcome.fields += len(wanted)
        for word in (word for word in wanted if word not in found):
            counts["unsaid"] += 1
            _differs(outcome, path, number, line["id"], "must_say", word, "not in the text")
    outcome.runs.update({kind: counts[kind] for kind in ("agree", "differ", "skipped")})
    if counts["differ"] or counts["unsaid"]:
        outcome.differ += 1
    elif counts["agree"]:
        outcome.agree += 1
    elif counts["skipped"]:
        outcome.skipped += 1
    else:
        return
    outcome.cases += 1


def _differs(
    outcome: FieldOutcome,
    path: Path,
    number: int,
    label: str,
    where: str,
    expected: Any,
    got: Any,
) -> None:
    found = {
        "file": str(path),
        "line": number,
        "case": label,
        "path": where,
        "expected": expected,
        "got": got,
    }
    outcome.differences.append(found)
    if outcome.first_difference is None:
        outcome.first_difference = found


# -- what to run -------------------------------------------------------------------------------


def cases_of(line: Mapping[str, Any]) -> Iterator[FieldCase]:
    """The runs of one line: the case itself, then its variants, each on its frameworks."""
    expectation = line.get("expectation", {})
    frameworks = line["framework"]
    several = isinstance(frameworks, list)
    for framework in frameworks if several else [frameworks]:
        yield _case(line, framework, several, {}, expectation)
    for variant in expectation.get("variants", ()):
        chosen = variant.get("framework")
        for framework in [chosen] if chosen else frameworks if several else [frameworks]:
            yield _case(line, framework, several, variant, variant)


def _case(
    line: Mapping[str, Any],
    framework: str,
    several: bool,
    variant: Mapping[str, Any],
    expected: Mapping[str, Any],
) -> FieldCase:
    config = line["config"][framework] if several else line["config"]
    if "config" in variant:
        config = variant["config"]
    config = {**config, **variant.get("set", {})}
    config = {key: value for key, value in config.items() if value is not None or key in _NULLS}
    requests = variant.get("requests", line["requests"])
    if isinstance(requests, Mapping):
        requests = requests[framework]
    label = line["id"] + (f"/{variant['name']}" if variant else "")
    status = variant.get("status", line["status"])
    skip = f"not covered by the pinned rules: {label}" if status == "not_covered" else None
    keyed = line["framework"] if several and not variant.get("framework") else ()
    return FieldCase(
        f"{label}/{framework}" if several else label,
        framework,
        config,
        requests,
        {key: _of(value, framework, keyed) for key, value in expected.items()},
        skip,
    )


_NULLS = frozenset({"retention"})
"""Configuration keys in which ``null`` is a value (dense retention), not "absent"."""


def _of(value: Any, framework: str, keyed: Sequence[str]) -> Any:
    """The part of an expectation for ``framework``, if it is keyed by frameworks."""
    if keyed and isinstance(value, Mapping) and value and set(value) <= set(keyed):
        return value.get(framework, {})
    return value


# -- running -----------------------------------------------------------------------------------


class _Watch:
    """A sink for what the ledger does not keep: chunks, passes, first steps."""

    def __init__(self) -> None:
        self.handoffs: dict[str, Handoff] = {}
        self.chunks: dict[str, list[tuple[int, int]]] = {}
        self.first_step: dict[str, int] = {}
        self.passes: list[list[str]] = []
        self.corrected: tuple[int, int] | None = None
        self._of_seq: dict[int, Handoff] = {}
        self._iterations: list[int] = []

    def step(self, step: Step) -> None:
        if step.rows and step.iteration not in self._iterations[-1:]:
            self._iterations.append(step.iteration)
        for handoff in step.handoffs:
            self._of_seq[handoff.seq] = handoff
            self.handoffs.setdefault(handoff.request, handoff)
            self.first_step.setdefault(handoff.request, len(self._iterations))
        needed = sum(h.known_tokens - h.hit_tokens for h in step.handoffs)
        tokens = sum(len(row.tokens) for row in step.rows)
        if needed > tokens and len(step.handoffs) > 1 and self.corrected is None:
            self.corrected = needed, tokens
        filling = []
        for row in step.rows:
            found = self._of_seq.get(row.seq)
            if found is None or found.attempt or row.start >= found.prompt_tokens:
                continue
            length = min(row.stop, found.prompt_tokens) - row.start
            self.chunks.setdefault(found.request, []).append((row.start, length))
            filling.append(found.request)
        if filling:
            self.passes.append(filling)

    def complete(self, result: StepResult) -> None:
        """Nothing to keep."""


def play(case: FieldCase) -> Played:
    """Run one case on a fresh engine; ``Unsupported`` if the adapter leaves it out."""
    adapter = load(case.framework)
    recordings = adapter.recordings()
    if recordings is None:
        raise Unsupported(f"{adapter.title} reads no recorded configurations")
    options = recordings.options(case.config)
    engine = adapter.engine(options)
    label = label_of(adapter, options, run=adapter.name, scenario=case.label)
    counters = adapter.counters if isinstance(adapter, Counts) else None
    accountant = Accountant(engine.layout, label, counters=counters)
    watch = _Watch()
    arrivals = _arrivals(case)
    run(
        engine,
        arrivals,
        sinks=(StepChecker(engine.layout), accountant, watch),
        acceptance=0.0,
        on_submit=accountant.submit,
        on_refused=accountant.refused,
    )
    entries = accountant.finish()
    return Played(
        entries={entry.request: entry for entry in entries if entry.attempt == 0},
        again={entry.request: entry for entry in reversed(entries) if entry.attempt == 1},
        handoffs=watch.handoffs,
        chunks=watch.chunks,
        first_step=watch.first_step,
        passes=watch.passes,
        corrected=watch.corrected,
        called={group.name: _called(group) for group in engine.layout.groups},
        story=[
            *(line for entry in entries for line in story(entry)),
            *_differences(arrivals),
            *losses(entries),
        ],
    )


def _called(group: Group) -> list[str]:
    """A group's type and sizes, as field cases name it: ``swa``, ``mamba``, ``4096``."""
    words = re.findall(r"[a-z]+|\d+", group.name)
    if group.kind == "state":
        words.append("mamba")
    if group.window is not None:
        words += ["swa", str(group.window)]
    return words


def _differences(arrivals: Sequence[Arrival]) -> list[str]:
    """Where each prompt leaves the earlier one it shares most with."""
    prompts = [Prompt(a.id, a.request.prompt) for a in arrivals if a.request is not None]
    found = [(p, compare(prompts[: at + 1])) for at, p in enumerate(prompts)]
    return [
        f"{prompt.name} against {each.other}: {each.words(len(prompt.tokens))}"
        for prompt, each in found
        if each is not None and each.position
    ]


def _arrivals(case: FieldCase) -> list[Arrival]:
    specs = []
    for raw in case.requests:
        values = {key: value for key, value in raw.items() if key in RequestSpec.model_fields}
        options = dict(raw.get("options", {}))
        if not raw.get("spans"):
            values["action"] = options.pop("action")
            values.pop("spans", None)
        else:
            options |= case.config.get("per_request", {})
        specs.append(RequestSpec(**{**values, "options": options}))
    arrivals = build_arrivals(tuple(specs))
    return [_stopped(each) for each in arrivals] if case.config.get("stop") == "eos" else arrivals


def _stopped(arrival: Arrival) -> Arrival:
    """The same arrival, its answer ended by a stop token instead of the length limit."""
    request = arrival.request
    if request is None or not request.outputs:
        return arrival
    outputs = request.outputs.slice(0, len(request.outputs))
    outputs.add_run(BEHIND_STOP, SLACK)
    options = {**request.options, "stop_token_ids": [request.outputs[-1]]}
    stopped = replace(
        request, max_tokens=request.max_tokens + SLACK, outputs=outputs, options=options
    )
    return replace(arrival, request=stopped)
