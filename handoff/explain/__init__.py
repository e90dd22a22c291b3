"""``explain``: where each token of a prompt goes in each framework, and why.

The package can be called: ``handoff.explain(...)`` is ``handoff.api.explain``, whatever was
imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .compare import (
    Answer,
    Comparison,
    Outcome,
    WhatIf,
    explain,
    explain_request,
    smallest_of,
    what_if,
)
from .prompts import Prompt, read_prompt, shorthand

if TYPE_CHECKING:
    from handoff.api import Explanation

__all__ = [
    "Answer",
    "Comparison",
    "Outcome",
    "Prompt",
    "WhatIf",
    "explain",
    "explain_request",
    "read_prompt",
    "shorthand",
    "smallest_of",
    "what_if",
]


class _Package(ModuleType):
    """This package, which can be called: ``handoff.explain(shared=1000)`` is the API's function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        from handoff.api import explain as call

        return call(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
