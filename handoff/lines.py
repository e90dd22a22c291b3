"""Reading text files line by line, plain or gzip, with one clear error for what is unreadable."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from .errors import BadInput

__all__ = ["parse_object", "read_json", "read_lines", "read_objects", "read_text", "shown"]

LONGEST = 60
"""Characters of a wrong value that a message quotes."""
_MARK = b"\xef\xbb\xbf"
"""Byte order mark that some editors put before UTF-8 text."""


def _open(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if str(path) == "-":
        if sys.stdin is None:
            raise OSError("standard input is closed")
        return nullcontext(sys.stdin.buffer)
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def read_text(path: Path) -> str:
    """The whole file; ``BadInput`` if it cannot be read."""
    return "".join(_decoded(raw, path, number) for number, raw in _numbered(path))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-empty lines with their numbers from 1; ``-`` is standard input.

    ``BadInput`` names the file that cannot be read. Lines are bytes, so that one that is no text
    is a mistake of that line only (``parse_object``).
    """
    return ((number, raw) for number, raw in _numbered(path) if raw.strip(_MARK + b" \t\r\n"))


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """JSON objects, one a line, with their line numbers; ``BadInput`` for anything else."""
    for number, raw in read_lines(path):
        yield number, parse_object(raw, path, number)


def parse_object(raw: bytes, path: Path, number: int) -> dict[str, Any]:
    """The JSON object of one line; ``BadInput`` names file and line if it is none."""
    try:
        value = json.loads(_decoded(raw, path, number))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", file=path, line=number) from None
    if not isinstance(value, dict):
        raise BadInput("is not a JSON object", file=path, line=number)
    return value


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """All lines with their numbers from 1; ``BadInput`` names the file that cannot be read."""
    try:
        with _open(path) as stream:
            yield from enumerate(stream, 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:  # a NUL in a path is a ValueError
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be read: {reason}", file=path) from None


def _decoded(raw: bytes, path: Path, number: int) -> str:
    """One line as text, whatever the locale; a byte order mark before the first is dropped."""
    try:
        return raw.removeprefix(_MARK if number == 1 else b"").decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput("is not UTF-8 text", file=path, line=number) from None


def read_json(path: Path) -> Any:
    """One JSON document; ``BadInput`` if it is none."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", file=path) from None


def shown(value: object) -> str:
    """A value from a file as an error message quotes it: as JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
