"""Mooncake-format traces: one JSON request a line, prefix-block ids instead of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handoff.errors import BadInput
from handoff.index.spans import VIRTUAL, Seq
from handoff.lines import parse_object, read_lines, shown
from handoff.types import Request

__all__ = ["OUTPUTS", "read_mooncake"]

BLOCK = 512
OUTPUTS = VIRTUAL + (1 << 60)
"""First virtual number of generated tokens; trace blocks stay below."""
LATEST = 1 << 53
"""Milliseconds that a clock still tells apart; later ones are no times."""


def read_mooncake(
    path: Path, limit: int | None = None, *, skip_bad: list[str] | None = None
) -> Iterator[Request]:
    """Requests of a ``.jsonl`` or ``.jsonl.gz`` file in file order; O(blocks) each.

    ``timestamp`` (ms) becomes ``arrival`` seconds. Block id h stands for the ``block_size`` (512)
    virtual numbers from ``VIRTUAL + block_size * h``; the last block is cut to ``input_length``.
    Ids of two block sizes in one file would name the same content, so there is one size a file.
    Outputs are virtual and never repeat. A line that cannot be read raises ``BadInput`` with file,
    line and field, or is appended as text to ``skip_bad`` if that list is given.
    """
    produced = 0
    outputs = OUTPUTS
    size: int | None = None
    for number, raw in read_lines(path):
        try:
            line = parse_object(raw, path, number)
            block = _block_size(line, path, number, size)
            request = _request(line, path, number, f"r{produced}", outputs, block)
        except BadInput as error:
            if skip_bad is None:
                raise
            skip_bad.append(str(error))
            continue
        size = block
        produced += 1
        outputs += request.max_tokens + 1  # a gap, so that two outputs never continue each other
        yield request
        if produced == limit:
            return


def _block_size(line: dict[str, Any], path: Path, number: int, before: int | None) -> int:
    block = BLOCK
    if "block_size" in line:
        block = _count(line, "block_size", path, number, least=1)
    if before not in (None, block):
        raise BadInput(
            f"is {block:,}, the requests before have {before:,}",
            file=path,
            line=number,
            field="block_size",
        )
    return block


def _request(
    line: dict[str, Any], path: Path, number: int, name: str, outputs: int, block: int
) -> Request:
    length = _count(line, "input_length", path, number, least=1)
    max_tokens = _count(line, "output_length", path, number, least=0)
    arrival = line.get("timestamp", 0)
    if type(arrival) not in (int, float) or not 0 <= arrival < LATEST:
        raise BadInput(
            f"needs milliseconds >= 0 and < 2^53, got {shown(arrival)}",
            file=path,
            line=number,
            field="timestamp",
        )
    ids = line.get("hash_ids")
    most = (OUTPUTS - VIRTUAL) // block
    if not isinstance(ids, list) or not all(type(h) is int and 0 <= h < most for h in ids):
        raise BadInput(
            f"needs a list of block ids, integers from 0 to {most - 1:,}",
            file=path,
            line=number,
            field="hash_ids",
        )
    need = -(-length // block)
    if len(ids) != need:
        raise BadInput(
            f"input_length {length:,} needs {need:,} hash_ids, the line has {len(ids):,}",
            file=path,
            line=number,
            field="hash_ids",
        )
    prompt = Seq()
    for h in ids[:-1]:
        prompt.add_run(VIRTUAL + block * h, block)
    prompt.add_run(VIRTUAL + block * ids[-1], length - block * (need - 1))
    return Request(
        id=name,
        prompt=prompt,
        max_tokens=max_tokens,
        outputs=Seq.virtual(outputs, max_tokens),
        arrival=arrival / 1000,
    )


def _count(line: dict[str, Any], field: str, path: Path, number: int, *, least: int) -> int:
    value = line.get(field)
    if type(value) is not int or not least <= value < 1 << 40:
        raise BadInput(
            f"needs an integer >= {least} and < 2^40, got {shown(value)}",
            file=path,
            line=number,
            field=field,
        )
    return value
