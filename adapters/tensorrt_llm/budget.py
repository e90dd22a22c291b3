"""The correction after the truth is known: chunks shrink until the batch fits the token budget.

(RULES 11; fit_token_budget) Nothing is dropped: a shortened prompt goes on in the next iteration,
its blocks stay allocated.
"""

from __future__ import annotations

from collections.abc import Sequence

from .request import LlmRequest

__all__ = ["fit_token_budget", "forward_tokens"]


def forward_tokens(context: Sequence[LlmRequest], decoding: Sequence[LlmRequest]) -> int:
    """Tokens of the forward pass as planned now."""
    prompts = sum(
        min(request.chunk, request.remaining) + (request.drafts if request.last_chunk else 0)
        for request in context
    )
    return prompts + sum(request.beam_width * (1 + request.drafts) for request in decoding)


def fit_token_budget(
    context: Sequence[LlmRequest],
    decoding: Sequence[LlmRequest],
    max_num_tokens: int,
    block_size: int,
    chunked: bool,
) -> int:
    """Shortens chunks from the last request on; returns the tokens shed.

    A chunk keeps at least the rest of its block and ends on a block boundary. Without chunked
    prefill nothing can be done (upstream warns).
    """
    excess = forward_tokens(context, decoding) - max_num_tokens
    if not context or excess <= 0 or not chunked:
        return 0
    shed = 0
    for request in reversed(context):
        if shed >= excess:
            break
        position, chunk = request.position, request.chunk
        floor = block_size - position % block_size
        target = (position + chunk - (excess - shed)) // block_size * block_size
        shorter = max(floor, target - position)
        if shorter < chunk:
            request.chunk = shorter
            shed += chunk - shorter
    return shed
