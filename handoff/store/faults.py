"""What the tag pass raises."""

from __future__ import annotations

__all__ = ["TagFault"]


class TagFault(Exception):
    """A Step that would read, write or move the wrong content; names where and what.

    ``rule`` is a short fixed name of the violated rule. The rest is ``None`` where it has no
    meaning: an operation without a sequence, a fault without a slot.
    """

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        step: int | None = None,
        seq: int | None = None,
        request: str | None = None,
        group: str | None = None,
        position: int | None = None,
        slot: int | None = None,
        expected: object = None,
        found: object = None,
    ) -> None:
        self.rule = rule
        self.step = step
        self.seq = seq
        self.request = request
        self.group = group
        self.position = position
        self.slot = slot
        self.expected = expected
        self.found = found
        places = (
            ("step", step),
            ("sequence", seq),
            ("request", request),
            ("group", group),
            ("position", position),
            ("slot", slot),
            ("expected", expected),
            ("found", found),
        )
        named = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        super().__init__(f"{rule}: {message} ({named})" if named else f"{rule}: {message}")
