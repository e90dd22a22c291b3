"""Progress goes to standard error, so that tables and JSON can be piped."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(text: str) -> None:
    """One line on standard error."""
    print(text, file=sys.stderr, flush=True)
