"""Writes ``reference/``: ``python docs/generate.py`` (a test holds it up to date and complete).

Commands, options, schema and columns are read from the code; nothing is typed in twice.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

HERE = Path(__file__).parent
MARK = "<!-- Written by docs/generate.py; do not edit. -->\n"


def pages() -> dict[str, str]:
    """The text of every generated page, by its path below ``docs``."""
    found = {
        "reference/cli.md": commands(),
        "reference/options.md": options(),
        "reference/scenarios.md": scenarios(),
        "reference/classes.md": classes(),
        "reference/ledger.md": ledger(),
    }
    return {path: f"{text.rstrip()}\n" for path, text in found.items()}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def code(value: object) -> str:
    """As code, or nothing."""
    text = str(value)
    return f"`{text}`" if text else ""


def plain(docstring: str) -> str:
    """A docstring as Markdown: RST's double backticks are single ones."""
    return inspect.cleandoc(docstring).replace("``", "`")


# -- commands ------------------------------------------------------------------------------------


def walk() -> Iterable[tuple[str, Callable[..., Any]]]:
    """(name, function) of every command, groups resolved."""
    from handoff.cli import app

    def below(name: str, group: Any) -> Iterable[tuple[str, Callable[..., Any]]]:
        for each in group.registered_commands:
            yield f"{name} {each.name or each.callback.__name__}", each.callback
        for each in group.registered_groups:
            yield from below(f"{name} {each.name}", each.typer_instance)

    yield from below("handoff", app)


def commands() -> str:
    """Every command with its arguments and options."""
    parts = [
        f"# Commands\n\n{MARK}\nExit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."
        " Tables go to standard output, progress and errors to standard error; `NO_COLOR` is kept."
        " `handoff --version` prints the version, `handoff --debug COMMAND` shows tracebacks.\n"
    ]
    for name, function in sorted(walk()):
        hints = get_type_hints(function, include_extras=True)
        rows = [
            _parameter(each.name, hints[each.name], each.default)
            for each in inspect.signature(function).parameters.values()
        ]
        parts.append(f"## {name}\n\n{plain(function.__doc__ or '')}\n")
        parts.append(table(("option", "default", "what it does"), rows))
    return "\n".join(parts)


KINDS = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}


def _parameter(name: str, hint: Any, default: Any) -> tuple[str, str, str]:
    """One parameter of a command's function, whose hint is ``Annotated[type, typer's record]``."""
    kind, info = get_args(hint)[:2]
    kinds = {*get_args(kind), kind}
    given = (info.default, *(info.param_decls or ()))  # inside Annotated the first name is there
    words = [word for word in given if isinstance(word, str) and word.startswith("-")]
    if isinstance(info, ArgumentInfo):
        said = info.metavar or name.upper()
    else:
        said = ", ".join(words or [f"--{name.replace('_', '-')}"])
        if bool not in kinds:
            said += f" {info.metavar or next(KINDS[each] for each in KINDS if each in kinds)}"
    empty = (None, [], False, inspect.Parameter.empty)
    shown = "" if default in empty else code(default)
    return code(said), shown, info.help or ""


# -- adapters ------------------------------------------------------------------------------------


def options() -> str:
    """Options of every built-in adapter, with upstream's defaults, and what is left out."""
    from handoff.adapter import ORDER, load
    from handoff.listing import EVIDENCE, adapter_facts

    parts = [
        f"# Options of the adapters\n\n{MARK}\nNames and defaults are upstream's; set them with"
        " `--set ADAPTER.OPTION=VALUE`, or for one more row with `--row ADAPTER:OPTION=VALUE`.\n"
    ]
    for name in ORDER:
        facts = adapter_facts(name)
        rows = [
            (code(option), code(_short(each["default"])), each["type"], each["about"])
            for option, each in facts["options"].items()
        ]
        parts.append(
            f"## {facts['title']}\n\n`{name}`, pinned to {facts['upstream']}; rules"
            f" {EVIDENCE[facts['evidence']]}: [rule book](../rules/{name}.md).\n"
        )
        parts.append(f"{plain(load(name).options.__doc__ or '')}\n")
        parts.append(table(("option", "default", "type", "meaning"), rows))
        left = [(what, why) for what, why in facts["left_out"].items()]
        parts.append(f"### {facts['title']}: not modelled\n\nAsking for it is an error.\n")
        parts.append(table(("what", "why"), left))
    return "\n".join(parts)


def _short(value: object) -> str:
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- scenarios -----------------------------------------------------------------------------------


def scenarios() -> str:
    """The YAML schema, and the built-in scenarios with their questions."""
    from handoff.workload import scenario as module
    from handoff.workload.scenario import Scenario, builtin, load_scenario

    parts = [
        f"# Scenarios\n\n{MARK}\nA scenario is a YAML file: a question, requests, and what must"
        " come out. Fields without a default are required; unknown ones are errors with their"
        " line.\n"
    ]
    for model in (Scenario, module.RequestSpec, module.Span, module.Row, module.Expectation):
        parts.append(f"## {model.__name__}\n\n{plain(model.__doc__ or '')}\n")
        rows = [
            (code(name), code(_type(field.annotation)), _default(field))
            for name, field in model.model_fields.items()
        ]
        parts.append(table(("field", "type", "default"), rows))
    parts.append(f"## When a request arrives\n\n{plain(module.When.__doc__ or '')}\n")
    parts.append("## Built-in scenarios\n")
    found = [load_scenario(name) for name in builtin()]
    rows = [
        (code(each.name), len(each.requests), " ".join(each.question.split())) for each in found
    ]
    parts.append(table(("name", "requests", "question"), rows))
    return "\n".join(parts)


def _type(annotation: Any) -> str:
    text = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    if getattr(annotation, "__args__", None):
        text = str(annotation)
    text = re.sub(r"Annotated\[(\w+), FieldInfo\(.*?\]\)\]", r"\1", text)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    return code(repr(field.get_default(call_default_factory=True)))


# -- ledger --------------------------------------------------------------------------------------


def classes() -> str:
    """Every class a prompt position can have, in the order of all tables."""
    from handoff.ledger.entries import CLASSES
    from handoff.report.palette import CLASSES as LOOKS

    rows = [
        (code(name), code(LOOKS[name].char), code(LOOKS[name].colour), meaning(name))
        for name in CLASSES
    ]
    return (
        f"# Classes and reasons\n\n{MARK}\nEvery prompt position has exactly one class; the classes"
        " sum to the prompt. Hit tokens, as the framework reports them, are reused + moved +"
        " replay. [Hit length is not savings](../savings.md) shows what they cost.\n\n"
        + table(("class", "character", "colour", "meaning"), rows)
    )


MEANINGS: Mapping[str, str] = {
    "reused": "served from cached KV in every layer that needs it, nothing computed",
    "moved": "reused although it is no prefix (a chunk that was shifted); an approximation",
    "fresh": "beyond the longest prefix that was ever computed; no loss",
    "isolation": "cached under another salt, LoRA or image",
    "disabled": "caching is off, or the request skips it",
    "not_stored": "computed, but never made findable (still in flight, retention, unstored tail)",
    "evicted": "was findable, and given up for something else",
    "slot_choice": "held by a slot that was not chosen",
    "alignment": "no whole block, page or unit covers it, given where the shared prefix ends",
    "last_token": "the last token of a prompt is always computed",
    "draft": "given up for the draft model (EAGLE, MTP)",
    "group": "a window, recurrent or hybrid group could not go along",
    "replay": "granted, reported as hit, and computed again",
    "budget": "promised by an estimate, not there in truth",
    "tier": "an external tier refused or came too late",
}


def meaning(name: str) -> str:
    """What a class means; every class must have one."""
    return MEANINGS[name]


def ledger() -> str:
    """The columns of ``ledger.parquet`` in their order."""
    from handoff.ledger.entries import Entry, Ledger

    frame = Ledger().to_pandas()
    types = {field.name: _type_name(field.type) for field in dataclasses.fields(Entry)}
    words = plain(Entry.__doc__ or "")
    rows = [(code(name), code(types.get(name, "int"))) for name in frame.columns]
    return (
        f"# Columns of the ledger\n\n{MARK}\n`ledger.parquet`, `Run.to_pandas()`: one row per"
        " admission of a request in one row of a run. Nested values are JSON text; the columns"
        " of the classes hold prompt tokens.\n\n"
        f"{words}\n\n" + table(("column", "type"), rows)
    )


def _type_name(annotation: Any) -> str:
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(annotation))


def main() -> int:
    """Write all pages; with ``--check`` only say which are not up to date."""
    stale = []
    for path, text in pages().items():
        target = HERE / path
        if not target.exists() or target.read_text("utf-8") != text:
            stale.append(path)
            if "--check" not in sys.argv:
                target.parent.mkdir(exist_ok=True)
                target.write_text(text, "utf-8")
    for path in stale:
        print(path)
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
