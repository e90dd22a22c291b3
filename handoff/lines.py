"""Reading text files line by line, plain or gzip, with one clear error for what is unreadable."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import BadInput

__all__ = ["parse_object", "read_json", "read_lines", "read_objects", "read_text"]


def _open(path: Path) -> IO[str]:
    if str(path) == "-":
        return sys.stdin
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read_text(path: Path) -> str:
    """The whole file; ``BadInput`` if it cannot be read."""
    return "".join(text for _, text in _numbered(path))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Non-empty lines with their numbers from 1; ``-`` is standard input.

    ``BadInput`` names the file (and line) that cannot be read.
    """
    return ((number, text) for number, text in _numbered(path) if text.strip())


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """All lines with their numbers from 1.

    ``BadInput`` names the file (and line) that cannot be read.
    """
    number = 0
    try:
        with _open(path) as stream:
            for number, text in enumerate(stream, 1):
                yield number, text
    except UnicodeDecodeError:
        raise BadInput("is not UTF-8 text", file=path, line=number + 1) from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be read: {reason}", file=path) from None


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """JSON objects, one a line, with their line numbers; ``BadInput`` for anything else."""
    for number, text in read_lines(path):
        yield number, parse_object(text, path, number)


def parse_object(text: str, path: Path, number: int) -> dict[str, Any]:
    """The JSON object of one line; ``BadInput`` names file and line if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", file=path, line=number) from None
    if not isinstance(value, dict):
        raise BadInput("is not a JSON object", file=path, line=number)
    return value


def read_json(path: Path) -> Any:
    """One JSON document; ``BadInput`` if it is none."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", file=path) from None
