"""``handoff explain``: where each token of a prompt went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handoff import explain as explaining
from handoff.errors import BadInput
from handoff.experiment import rows_of
from handoff.ledger.entries import read_ledger

__all__ = ["explain_command"]


def explain_command(
    paths: Sequence[Path],
    *,
    shorthand: tuple[int, int] | None,
    request: tuple[str, Path, str | None] | None,
    tokenizer: Path | None,
    adapters: Sequence[str],
    sets: dict[str, dict[str, Any]],
    what_ifs: Sequence[str],
    pool_tokens: int | None,
    model: str,
    device: str,
    six: bool | None,
    steps: bool,
    as_json: bool,
) -> None:
    """Print the account of one prompt; exactly one source of prompts must be given."""
    if sum((bool(paths), shorthand is not None, request is not None)) != 1:
        raise BadInput("explain needs prompts, or --shared N, or --request ID (one of them)")
    if request is not None:
        name, ledger, scenario = request
        found = explaining.explain_request(read_ledger(ledger), name, scenario)
    else:
        prompts = (
            explaining.shorthand(*shorthand)
            if shorthand is not None
            else [explaining.read_prompt(path, tokenizer) for path in paths]
        )
        if not all(len(prompt.tokens) for prompt in prompts):
            raise BadInput("a prompt needs at least one token")
        found = explaining.explain(
            prompts,
            rows_of(None, adapters, sets),
            what_ifs=[each for text in what_ifs for each in explaining.what_if(text, adapters)],
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
