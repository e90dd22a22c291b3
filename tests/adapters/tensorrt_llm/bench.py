"""A block manager and an engine in miniature: blocks of 4 tokens, prompts spelled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handoff.adapters.tensorrt_llm.engine import Engine
from handoff.adapters.tensorrt_llm.estimate import Estimator
from handoff.adapters.tensorrt_llm.journal import Fact, Journal
from handoff.adapters.tensorrt_llm.manager import Admission, KVCacheManager
from handoff.adapters.tensorrt_llm.options import Options
from handoff.adapters.tensorrt_llm.request import LlmRequest

from handoff.index.spans import Seq
from handoff.types import Handoff, Request, RowResult, Step, StepResult


def options(**values: Any) -> Options:
    """Blocks of 4, sequences of at most 64 tokens, 16 blocks."""
    small = {"tokens_per_block": 4, "max_seq_len": 64, "blocks_in_primary_pool": 16}
    return Options(**{**small, **values})


class Bench:
    """A block manager that is driven by hand."""

    def __init__(self, **values: Any) -> None:
        self.options = options(**values)
        self.journal = Journal()
        self.journal.keeps_facts = True
        self.manager = KVCacheManager(self.options, self.journal)
        self.estimator = Estimator(self.manager, self.options.max_num_tokens)
        self._seq = 0

    @property
    def window(self) -> Any:
        """The largest window's manager."""
        return self.manager.windows[0]

    def request(self, prompt: Sequence[int], max_new: int = 4, **values: Any) -> LlmRequest:
        beams = values.get("beam_width", 1)
        seqs = tuple(range(self._seq, self._seq + beams))
        self._seq += beams
        return LlmRequest(
            f"r{seqs[0]}",
            Seq.of(prompt),
            max_new,
            self.options.tokens_per_block,
            seqs=seqs,
            **values,
        )

    def add(self, *requests: LlmRequest) -> list[Admission]:
        return self.manager.add_sequence_batch(requests)

    def prefill(self, request: LlmRequest, token: int = 99) -> None:
        request.position = request.prompt_len
        request.tokens.append(token)
        self.manager.store_context(request)

    def serve(
        self, prompt: Sequence[int], outputs: Sequence[int] = (99,), **values: Any
    ) -> LlmRequest:
        """One request from its match to its end."""
        request = self.request(prompt, len(outputs), **values)
        self.add(request)
        self.prefill(request, outputs[0])
        for token in outputs[1:]:
            self.manager.add_token(request)
            request.tokens.append(token)
        self.manager.remove_sequence(request)
        return request

    def ids(self, request: LlmRequest, window: int = 0) -> list[int]:
        """The block ids upstream reports for beam 0."""
        found: list[int] = self.manager.sequence(request)[window].tables(1)[0]
        return found

    def facts(self, kind: str) -> list[tuple[int, ...]]:
        """Facts of one kind since the last call (of any kind)."""
        return [fact.data for fact in self.take() if fact.kind == kind]

    def take(self) -> list[Fact]:
        return self.journal.take_facts()


def run_all(
    engine: Engine, requests: Mapping[str, tuple[Sequence[int], int]], **values: Any
) -> dict[str, Handoff]:
    """Submits everything at once, answers every Step with tokens 1000, 1001 ...; the Handoffs."""
    for name, (prompt, max_tokens) in requests.items():
        engine.submit(Request(name, Seq.of(prompt), max_tokens, **values), 0.0)
    found: dict[str, Handoff] = {}
    token = 1000
    while True:
        step = engine.step(0.0)
        if step is None:
            return found
        found |= {handoff.request: handoff for handoff in step.handoffs}
        token = answer(engine, step, token)


def answer(engine: Engine, step: Step, token: int = 1000) -> int:
    """One token for every row that wants any; returns the next unused one."""
    rows = []
    for row in step.rows:
        rows.append(RowResult(row.seq, (token,) if row.emits else ()))
        token += bool(row.emits)
    engine.complete(StepResult(step.number, tuple(rows)), 0.0)
    return token
