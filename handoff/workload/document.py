"""YAML files as users (or strangers) write them: read once, safely, with the line of every part."""

from __future__ import annotations

from typing import Any

import yaml

from handoff.errors import BadInput

__all__ = ["Document", "read_document", "read_value"]

MOST = 1_000_000
"""Values that a file may hold once its aliases are written out; a bomb holds billions."""


class Document:
    """The parsed value, and where in the file each part of it stands."""

    def __init__(self, value: Any, root: yaml.Node | None) -> None:
        self.value = value
        self._root = root

    def line(self, path: tuple[int | str, ...]) -> int | None:
        """Line of the innermost part of ``path`` that exists; ``None`` for an empty file."""
        node = self._root
        line = _line(node) if node is not None else None
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pairs = [(k, v) for k, v in node.value if k.value == str(part)]
                if not pairs:
                    break
                line, node = _line(pairs[0][0]), pairs[0][1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                if part >= len(node.value):
                    break
                node = node.value[part]
                line = _line(node)
            else:
                break
        return line


def read_document(text: str, file: object) -> Document:
    """One YAML document of plain values; ``BadInput`` names file and line of what is wrong.

    Refused are keys that occur twice (YAML would keep the last), aliases inside what they stand
    for, and aliases that multiply to more than a million values.
    """
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            _check(root, file)
        value = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as error:
        raise BadInput(f"is not YAML: {_problem(error)}", file=file, line=_place(error)) from None
    except ValueError as error:  # a date or a number of that form which does not exist
        raise BadInput(f"is not YAML: {error}", file=file) from None
    except RecursionError:
        raise BadInput("is nested too deeply", file=file) from None
    finally:
        if loader is not None:
            loader.dispose()
    return Document(value, root)


def read_value(text: str) -> Any:
    """A value from the command line: YAML where it is some, else the text itself."""
    try:
        return read_document(text, "").value
    except BadInput:
        return text


def _check(root: yaml.Node, file: object) -> None:
    """Walks the tree with its aliases written out."""
    seen = 0
    around: set[int] = set()

    def walk(node: yaml.Node) -> None:
        nonlocal seen
        seen += 1
        if seen > MOST:
            raise BadInput(f"holds more than {MOST:,} values", file=file, line=_line(node))
        if id(node) in around:
            raise BadInput("holds an alias of itself", file=file, line=_line(node))
        if isinstance(node, yaml.ScalarNode):
            return
        around.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _distinct(node, file)
            for key, value in node.value:
                walk(key)
                walk(value)
        else:
            for item in node.value:
                walk(item)
        around.discard(id(node))

    walk(root)


def _distinct(node: yaml.MappingNode, file: object) -> None:
    keys: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in keys:
                raise BadInput("occurs twice", file=file, line=_line(key), field=key.value)
            keys.add(key.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def _place(error: yaml.YAMLError) -> int | None:
    mark = getattr(error, "problem_mark", None)
    return mark.line + 1 if mark else None
