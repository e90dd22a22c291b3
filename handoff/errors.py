"""The errors a caller of handoff may catch."""

from __future__ import annotations

__all__ = ["BadInput", "HandoffError", "Refused", "Unsupported"]


class HandoffError(Exception):
    """Base of every error that is the user's to mend; shown as one line, exit code 2."""


class BadInput(HandoffError):
    """A file, option or line that cannot be read.

    ``where`` parts (file, line, field) are joined in front of the message, so that one line names
    all three.
    """

    def __init__(
        self,
        message: str,
        *,
        file: object | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        parts = []
        if file is not None:
            parts.append(str(file))
        if line is not None:
            parts.append(f"line {line:,}")
        if field is not None:
            parts.append(f"field {field}")
        super().__init__(f"{', '.join(parts)}: {message}" if parts else message)


class Unsupported(HandoffError):
    """Something an adapter leaves out by name; never answered by an approximation."""


class Refused(HandoffError):
    """A request the framework itself would refuse (too long, larger than the pool).

    The runner counts it; it is no crash.
    """
