"""Taking lines apart by schema and comparing them leaf by leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from .recording import Schema

__all__ = ["ABSENT", "Difference", "count_leaves", "difference", "keep", "without"]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()
"""Stands for a value that one side does not have."""


class Difference(NamedTuple):
    """The first place where a line disagrees: ``path`` like ``results[3].hit_tokens``."""

    path: str
    expected: Any
    got: Any


def _of_item(schema: Any, index: int, size: int, item: Any) -> Any:
    """The part of a list's schema that belongs to one item: by its place, else that of all.

    A function found by place is asked about the item at once, so that items may be lists.
    """
    if not isinstance(schema, Mapping) or not any(key.startswith("[") for key in schema):
        return None if schema is True else schema
    part = schema.get(f"[{index}]", schema.get(f"[{index - size}]", schema.get("[]")))
    return part(item) if callable(part) else part


def keep(value: Any, schema: Schema | bool | str | None) -> Any:
    """The part of ``value`` that ``schema`` takes; lists keep their length."""
    if schema is True:
        return value
    if schema == "keys":
        if isinstance(value, dict):
            return dict.fromkeys(value)
        return [None] * len(value) if isinstance(value, list) else None
    if schema is None:
        return None
    if isinstance(value, list):
        size = len(value)
        return [keep(item, _of_item(schema, at, size, item)) for at, item in enumerate(value)]
    if callable(schema):
        return keep(value, schema(value))
    assert isinstance(schema, Mapping)
    if not isinstance(value, dict):
        return None
    out = {}
    for key, item in value.items():
        part = schema.get(key, schema.get("*"))
        if part is not None:
            out[key] = keep(item, part)
    return out


def without(value: Any, *schemas: Schema | bool | str | None) -> Any:
    """``value`` less what any of the schemas takes whole; lists keep their length."""
    if isinstance(value, list):
        items = []
        for at, item in enumerate(value):
            parts = [_of_item(schema, at, len(value), item) for schema in schemas]
            items.append(None if True in parts else without(item, *parts))
        return items
    if not isinstance(value, dict):
        return value
    out = {}
    resolved = [schema(value) if callable(schema) else schema for schema in schemas]
    for key, item in value.items():
        parts = [
            part
            for schema in resolved
            if isinstance(schema, Mapping)
            and (part := schema.get(key, schema.get("*"))) is not None
        ]
        if True in parts:
            continue
        if parts and isinstance(item, (dict, list)):
            out[key] = without(item, *parts)
        else:
            out[key] = item
    return out


def difference(expected: Any, got: Any, path: str = "") -> Difference | None:
    """The first difference in the order of the recording, or ``None``.

    Numbers compare by value and type (``1`` is not ``True``); tuples count as lists.
    """
    if isinstance(expected, dict):
        if not isinstance(got, Mapping):
            return Difference(path, expected, got)
        for key, item in expected.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in got:
                return Difference(where, item, ABSENT)
            found = difference(item, got[key], where)
            if found:
                return found
        for key, item in got.items():
            if key not in expected:
                return Difference(f"{path}.{key}" if path else str(key), ABSENT, item)
        return None
    if isinstance(expected, list):
        if not isinstance(got, (list, tuple)):
            return Difference(path, expected, got)
        for index, item in enumerate(expected):
            if index >= len(got):
                return Difference(f"{path}[{index}]", item, ABSENT)
            found = difference(item, got[index], f"{path}[{index}]")
            if found:
                return found
        if len(got) > len(expected):
            return Difference(f"{path}[{len(expected)}]", ABSENT, got[len(expected)])
        return None
    if isinstance(expected, bool) is not isinstance(got, bool) or expected != got:
        return Difference(path, expected, got)
    return None


def count_leaves(value: Any, counts: Counter[str] | None = None, name: str = "") -> int:
    """Number of leaf values (empty containers count once); ``counts`` collects them by key.

    With ``counts``, places of a list of which ``keep`` took nothing are left out.
    """
    if isinstance(value, dict) and value:
        return sum(count_leaves(item, counts, key) for key, item in value.items())
    if isinstance(value, list) and value:
        taken = value if counts is None else [item for item in value if item not in (None, {}, [])]
        return sum(count_leaves(item, counts, name) for item in taken)
    if counts is not None:
        counts[name] += 1
    return 1
