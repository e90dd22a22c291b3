"""Taking lines apart by schema and comparing them leaf by leaf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .recording import Schema

__all__ = ["ABSENT", "Difference", "count_kept", "count_left", "difference", "keep", "without"]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()
"""Stands for a value that one side does not have."""


Taken = Schema | bool | str | None
"""A schema or a part of one: what is taken of a value."""


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


def keep(value: Any, schema: Taken) -> Any:
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


def _left(value: Any, schemas: Sequence[Taken]) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Every place of a container: where, what, and the parts of the schemas that go on there."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield at, item, [_of_item(schema, at, len(value), item) for schema in schemas]
        return
    resolved = [schema(value) if callable(schema) else schema for schema in schemas]
    for key, item in value.items():
        found = (s.get(key, s.get("*")) for s in resolved if isinstance(s, Mapping))
        yield key, item, [part for part in found if part is not None]


def without(value: Any, *schemas: Taken) -> Any:
    """``value`` less what any of the schemas takes whole; lists keep their length."""
    if isinstance(value, list):
        return [
            None if True in parts else without(item, *parts)
            for _, item, parts in _left(value, schemas)
        ]
    if isinstance(value, dict):
        return {
            key: without(item, *parts)
            for key, item, parts in _left(value, schemas)
            if True not in parts
        }
    return value


def count_left(value: Any, *schemas: Taken) -> int:
    """Number of leaves of ``value`` that ``without`` leaves to be compared.

    An empty container is a leaf; one from which the schemas took everything is none, nor is the
    gap that a taken item leaves in a list.
    """
    if not isinstance(value, (dict, list)) or not value:
        return 1
    return sum(
        count_left(item, *parts) for _, item, parts in _left(value, schemas) if True not in parts
    )


def difference(expected: Any, got: Any, path: str = "") -> Difference | None:
    """The first difference in the order of the recording, or ``None``.

    Numbers compare by value, but ``True`` is not ``1``; tuples count as lists.
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


def count_kept(value: Any, counts: Counter[str], name: str = "") -> None:
    """Adds the leaves that ``keep`` took to ``counts``, by the key nearest above each.

    Items of a list of which nothing was taken are left out.
    """
    if isinstance(value, dict) and value:
        for key, item in value.items():
            count_kept(item, counts, key)
    elif isinstance(value, list) and value:
        for item in value:
            if item not in (None, {}, []):
                count_kept(item, counts, name)
    else:
        counts[name] += 1
