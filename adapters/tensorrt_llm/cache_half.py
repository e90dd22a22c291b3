"""The cache half on its own: recordings that fix every admission drive it operation by operation.

Each forward pass the recordings speak of becomes a Step, so that the tag pass sees them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.conformance.recording import Case
from handoff.index.spans import LATE
from handoff.types import Row, RowResult, Step, StepResult

from .engine import layout_of
from .estimate import Estimator
from .intake import FIRST_SALT
from .journal import Fact, Journal
from .manager import Admission, KVCacheManager
from .options import from_recorded
from .recorded import SALTS, Notation, read_request
from .request import LlmRequest

__all__ = ["CacheHalf"]


class CacheHalf:
    """A manager with an estimator, the requests by id, and a watcher if there is one."""

    def __init__(self, case: Case, config: Mapping[str, Any]) -> None:
        options = from_recorded(config)
        self.options = options
        self.journal = Journal()
        self.journal.keeps_facts = True
        self.manager = KVCacheManager(options, self.journal)
        self.estimator = Estimator(self.manager, int(config["chunk_size"]))
        self.notation = Notation(self.manager)
        self.requests: dict[str, LlmRequest] = {}
        self._salts = {salt: FIRST_SALT + at for at, salt in enumerate(SALTS)}
        self._watcher = case.watch(layout_of(options)) if case.watch else None
        self._next_seq = 0
        self._number = 0

    def request(self, entry: Mapping[str, Any]) -> LlmRequest:
        """A fresh request, not added yet."""
        made = read_request(entry, self.options.tokens_per_block, self._next_seq, self._salts)
        self._next_seq += made.beam_width
        return made

    def add(self, requests: Sequence[LlmRequest]) -> list[Admission]:
        """Adds a batch of first chunks, whole prompts."""
        for request in requests:
            self.requests[request.id] = request
        admissions = self.manager.add_sequence_batch(requests)
        self.manager.refresh_blocks()
        return admissions

    def prefill(self, request: LlmRequest, token: int) -> None:
        """Computes the rest of the prompt, samples ``token``, stores the context."""
        self._compute_prompt(request, token)
        request.position = request.prompt_len
        request.tokens.append(token)
        self.manager.store_context(request)

    def decode(self, request: LlmRequest, token: int) -> None:
        """One decode step."""
        self.manager.add_token(request)
        self._compute_last(request, 0, (token,))
        request.tokens.append(token)

    def speculate(self, request: LlmRequest, drafts: int, tokens: Sequence[int]) -> None:
        """One step with drafts, all but the last of ``tokens`` of which were accepted."""
        for _ in range(drafts + 1):
            self.manager.add_token(request)
        self._compute_last(request, drafts, tokens)
        self.manager.rewind(request, drafts - (len(tokens) - 1))
        for token in tokens:
            request.tokens.append(token)

    def finish(self, request: LlmRequest) -> None:
        """Removes a sequence and stores it.

        A prompt that nobody computed is stored all the same (upstream's fallback for its unit
        tests, RULES 11b); the tag pass gets a forward pass for it.
        """
        if request.position == 0 and request.in_context and request.beam_width == 1:
            self._compute_prompt(request, LATE)
        self.manager.remove_sequence(request)
        del self.requests[request.id]

    def facts(self) -> list[Fact]:
        """What happened since the last call."""
        return self.journal.take_facts()

    def _compute_prompt(self, request: LlmRequest, token: int) -> None:
        rows = []
        size = self.options.tokens_per_block
        for beam, seq in enumerate(request.seqs):
            start = request.position
            if beam:  # the shared columns are beam 0's work
                start = max(start, (request.prompt_len - 1) // size * size)
            tokens = request.tokens.slice(start, request.prompt_len)
            rows.append(Row(seq, start, tokens, emits=0 if token == LATE else 1))
        self._pass(rows, () if token == LATE else (token,))

    def _compute_last(self, request: LlmRequest, drafts: int, tokens: Sequence[int]) -> None:
        start = len(request.tokens) - 1
        content = request.tokens.slice(start, start + 1)
        accepted = tokens[:-1]
        for at in range(drafts):
            content.append(accepted[at] if at < len(accepted) else LATE)
        rows = [Row(seq, start, content, drafts, 1 + drafts) for seq in request.seqs]
        self._pass(rows, tokens)

    def _pass(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        """Shows the watcher a Step with what is owed, and its result."""
        ops, events = self.journal.take()
        if self._watcher is None:
            return
        number = self._number
        self._number += 1
        self._watcher.step(Step(number, number, number - 1, ops, tuple(rows), (), events))
        results = tuple(RowResult(row.seq, tuple(tokens)) for row in rows)
        self._watcher.complete(StepResult(number, results))
