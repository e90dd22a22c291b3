"""``handoff adapters`` and ``handoff scenarios``: what is there."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Any

from .adapter import Adapter, load, names
from .workload.scenario import Scenario

__all__ = ["adapter_facts", "show_adapter", "show_adapters", "show_scenarios"]

EVIDENCE = {
    "ran": "recorded by running upstream",
    "transcribed": "recorded by running a transcription of upstream",
    "read": "read in upstream's source",
}


def adapter_facts(name: str) -> dict[str, Any]:
    """Everything an adapter states about itself, ready for JSON."""
    adapter = load(name)
    return {
        "name": name,
        "title": adapter.title,
        "upstream": adapter.upstream,
        "evidence": adapter.evidence,
        "left_out": dict(adapter.left_out),
        "options": {
            option: {"default": default, "type": kind, "about": about}
            for option, default, kind, about in _options(adapter)
        },
    }


def _options(adapter: Adapter) -> list[tuple[str, Any, str, str]]:
    schema = adapter.options.model_json_schema().get("properties", {})
    found = []
    for option, field in adapter.options.model_fields.items():
        about = schema.get(option, {})
        kinds = [about, *about.get("anyOf", ())]
        kind = " | ".join(
            dict.fromkeys(
                str(k["type"]) if "type" in k else "/".join(map(str, k["enum"]))
                for k in kinds
                if "type" in k or "enum" in k
            )
        )
        default = field.get_default(call_default_factory=True)
        found.append((option, _plain(default), kind, field.description or ""))
    return found


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _paragraph(text: str, indent: str, first: str = "") -> str:
    width = max(40, min(get_terminal_size().columns, 110))
    return textwrap.fill(
        text,
        width,
        initial_indent=first or indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def show_adapters(*, left_out: bool = False) -> None:
    """One line per installed adapter."""
    rows = [load(name) for name in names()]
    print(f"{'name':14}{'framework':15}{'upstream':22}{'evidence':14}options")
    for adapter, name in zip(rows, names(), strict=True):
        print(
            f"{name:14}{adapter.title:15}{adapter.upstream:22}{adapter.evidence:14}"
            f"{len(adapter.options.model_fields)}"
        )
        if left_out:
            _show_left_out(adapter)
    print("Options, defaults: handoff adapters NAME. Not modelled: handoff adapters --left-out")


def show_adapter(name: str, *, left_out: bool = False) -> None:
    """One adapter: version, evidence, options with defaults; or what it leaves out."""
    adapter = load(name)
    print(f"{adapter.title} {adapter.upstream}: rules {EVIDENCE[adapter.evidence]}")
    if left_out:
        _show_left_out(adapter)
        return
    print(f"Options (--set {name}.OPTION=VALUE), with upstream's defaults:")
    for option, default, kind, about in _options(adapter):
        shown = repr(default)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        print(f"  {option} = {shown}" + (f"  [{kind}]" if kind else ""))
        if about:
            print(_paragraph(about, "      "))
    print(f"Rules: docs/rules/{name}.md. Not modelled: handoff adapters {name} --left-out")


def _show_left_out(adapter: Adapter) -> None:
    if not adapter.left_out:
        print("  nothing is left out by name")
    for what, why in adapter.left_out.items():
        print(_paragraph(f"{what}: {why}", "      ", "  - "))


def show_scenarios(found: Sequence[Scenario]) -> None:
    """One paragraph per built-in scenario."""
    for scenario in found:
        print(f"{scenario.name}  ({len(scenario.requests)} requests)")
        print(_paragraph(scenario.question, "  "))
    print("Run one: handoff run NAME. Run all: handoff run")
