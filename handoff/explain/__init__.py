"""``explain``: where each token of a prompt goes in each framework, and why."""

from .compare import Answer, Comparison, Outcome, WhatIf, explain, explain_request, what_if
from .prompts import Prompt, read_prompt, shorthand

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
    "what_if",
]
