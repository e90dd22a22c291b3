"""The micro-batch scheduler: which of the fitting requests run now, and how much prompt each.

(RULES 10; PyMicroBatchScheduler) The token budget counts what the *estimate* leaves to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .request import LlmRequest

__all__ = ["MicroBatch", "MicroBatchScheduler", "chunk_cost", "plan_chunks"]


class MicroBatch(NamedTuple):
    """Context requests, chunks that do not end a prompt first; decoding ones; tokens charged."""

    context: list[LlmRequest]
    decoding: list[LlmRequest]
    charged: int


def chunk_cost(request: LlmRequest, chunk: int) -> int:
    """Tokens a chunk is charged: reuse counts where the chunk reaches the end of the prompt."""
    estimate = request.estimate if request.first_chunk else 0
    remaining = request.remaining
    if estimate <= 0 or estimate + chunk < remaining:
        return chunk
    return max(0, remaining - estimate)


class MicroBatchScheduler(NamedTuple):
    """Limits of an iteration; ``policy`` is ``None`` without chunked prefill."""

    max_num_tokens: int
    max_batch_size: int
    policy: str | None
    chunk_unit: int

    def schedule(self, requests: Sequence[LlmRequest]) -> MicroBatch:
        """Picks requests in order until a limit stops the loop; sets their chunks."""
        context: list[LlmRequest] = []
        decoding: list[LlmRequest] = []
        used = waiting = 0
        all_fit = True
        for request in requests:
            if not request.in_context:
                if decoding and request.beam_width != decoding[0].beam_width:
                    continue
                tokens = request.beam_width + request.drafts
                if used + tokens > self.max_num_tokens:
                    break
                used += tokens
                decoding.append(request)
            elif self.policy is None:
                tokens = max(1, chunk_cost(request, request.prompt_len) + request.drafts)
                if used + tokens > self.max_num_tokens:
                    break
                used += tokens
                request.chunk = request.prompt_len
                context.append(request)
            else:
                request.chunk = request.remaining
                tokens = chunk_cost(request, request.chunk) + _drafts(request)
                if tokens > self.max_num_tokens:
                    tokens, all_fit = self.max_num_tokens, False
                waiting += tokens
                context.append(request)
            if len(context) + len(decoding) >= self.max_batch_size:
                break
        if self.policy is not None:
            if not all_fit or waiting > self.max_num_tokens - used:
                capacity = self.max_num_tokens - used
                plan_chunks(context, self.policy, self.chunk_unit, capacity, self.max_num_tokens)
                context = [request for request in context if request.chunk]
                context.sort(key=_place)
            used += sum(chunk_cost(r, r.chunk) + _drafts(r) for r in context)
        return MicroBatch(context, decoding, used)


def _drafts(request: LlmRequest) -> int:
    return request.drafts if request.last_chunk else 0


def _place(request: LlmRequest) -> tuple[bool, int]:
    lora = request.extra.lora
    return request.last_chunk, -1 if lora is None else lora


def plan_chunks(
    requests: Sequence[LlmRequest],
    policy: str,
    unit: int,
    capacity: int | None,
    max_length: int | None,
) -> None:
    """Sets the chunks of ``requests`` so that their cost fits ``capacity`` tokens.

    A chunk that does not end a prompt is a multiple of ``unit``, none is longer than
    ``max_length``; ``None`` is no limit. Chunks may be 0.
    """
    room = float("inf") if capacity is None else capacity
    longest = float("inf") if max_length is None else max_length
    for request in requests:
        request.chunk = 0
    plan: Callable[[Sequence[LlmRequest], int, float, float], None] = (
        _equal_progress if policy == "EQUAL_PROGRESS" else _first_come_first_served
    )
    plan(requests, unit, room, longest)
    _trim_drafts(requests, unit, room, longest)


def _first_come_first_served(
    requests: Sequence[LlmRequest], unit: int, room: float, longest: float
) -> None:
    for request in requests:
        remaining = chunk = request.remaining
        if chunk_cost(request, remaining) > room:
            chunk = int(room)
        if chunk_cost(request, chunk) > longest:
            chunk = min(int(longest), remaining)
        if chunk < remaining:
            chunk = chunk // unit * unit
        request.chunk = chunk
        room -= chunk_cost(request, chunk)


def _equal_progress(requests: Sequence[LlmRequest], unit: int, room: float, longest: float) -> None:
    used = 0
    progress = True
    while progress and used < room:
        progress = False
        for request in requests:
            chunk = min(request.chunk + unit, request.remaining)
            delta = chunk_cost(request, chunk) - (
                chunk_cost(request, request.chunk) if request.chunk else 0
            )
            if chunk == request.chunk or used + delta > room or chunk > longest:
                continue
            request.chunk = chunk
            used += delta
            progress = True


def _trim_drafts(requests: Sequence[LlmRequest], unit: int, room: float, longest: float) -> None:
    """Drafts of last chunks keep to the free room of the chunk's last unit and of the limits."""
    used = sum(chunk_cost(request, request.chunk) for request in requests)
    for request in requests:
        if request.drafts and request.chunk and request.last_chunk:
            space = min(-request.chunk % unit, longest - request.chunk, room - used)
            request.drafts = min(request.drafts, max(0, int(space)))
            used += request.drafts
