"""``handoff explain``: where each token of a prompt went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from handoff.errors import BadInput
from handoff.experiment import RowSpec, rows_of
from handoff.explain import explain, explain_request, read_prompt, shorthand, what_if
from handoff.explain.prompts import told_apart
from handoff.ledger.entries import read_ledger

__all__ = ["explain_command"]


def explain_command(
    paths: Sequence[Path],
    *,
    pair: tuple[int, int] | None,
    request: tuple[str, Path, str | None] | None,
    tokenizer: Path | None,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    extra: Sequence[RowSpec],
    what_ifs: Sequence[str],
    pool_tokens: int | None,
    model: str,
    device: str,
    six: bool | None,
    steps: bool,
    as_json: bool,
) -> None:
    """Print the account of one prompt; exactly one source of prompts must be given."""
    if sum((bool(paths), pair is not None, request is not None)) != 1:
        raise BadInput("explain needs prompts, or --shared N, or --request ID (one of them)")
    if request is not None:
        if sets or what_ifs or extra:
            raise BadInput(
                "--request shows a past run as it was: --set, --what-if, --row and --from need"
                " prompts"
            )
        name, ledger, scenario = request
        found = explain_request(read_ledger(ledger), name, scenario)
        kept = tuple(each for each in found.answers if each.entry.adapter in adapters)
        if not kept and found.answers:
            raise BadInput(f"request {name} has no row of {', '.join(adapters)}")
        found = replace(found, answers=kept)
    else:
        prompts = (
            shorthand(*pair)
            if pair is not None
            else told_apart([read_prompt(path, tokenizer) for path in paths], paths)
        )
        if not all(len(prompt.tokens) for prompt in prompts):
            raise BadInput("a prompt needs at least one token")
        found = explain(
            prompts,
            rows_of(None, adapters, sets, extra),
            what_ifs=[each for text in what_ifs for each in what_if(text, adapters)],
            pool_tokens=pool_tokens,
            model=model,
            device=device,
        )
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, sort_keys=True, ensure_ascii=False))
        return
    from rich.console import Console

    from handoff.explain.text import render

    render(Console(), found, six=six, steps=steps)
