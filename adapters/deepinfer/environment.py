"""What the recorder played: sampler and drafter whose outputs follow from a name and an index."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from handoff.conformance.recording import Watcher
from handoff.types import RowResult, Step, StepResult

from .engine import DeepInferEngine

__all__ = ["WRONG", "Environment", "Output"]

WRONG = -7
"""A guess that no output equals."""

Output = Callable[[str, int], int]
"""Token number ``index`` that a request generates."""


class Environment:
    """Answers the Steps of one engine, with a watcher beside it.

    The guess for output i of ``name`` is right iff i is an output at all and
    ``crc32("prefix/name/i") % 10 < 6``; guesses behind a prefill are padding, hence wrong.
    """

    def __init__(
        self, engine: DeepInferEngine, prefix: str, output: Output, watcher: Watcher | None
    ) -> None:
        self.engine = engine
        self.prefix = prefix
        self.output = output
        self.watcher = watcher
        self.confidences: dict[str, tuple[float, ...]] = {}
        """Given for the next answer, by sequence."""

    def plan(self, step: Step) -> None:
        """Show a Step to the watcher."""
        if self.watcher is not None:
            self.watcher.step(step)

    def complete(self, step: Step) -> list[int]:
        """Answer the oldest Step; returns how many tokens each decode row gave."""
        flight = self.engine.oldest
        rows = []
        for row, scheduled in zip(step.rows, flight.rows):
            seq = scheduled.seq
            if row.emits == 0 or seq.status.finished or seq.seq != row.seq:
                rows.append(RowResult(row.seq, ()))
                continue
            first, wanted = seq.num_outputs, seq.max_tokens - seq.num_outputs
            guesses = seq.drafts[: row.drafts] if flight.kind == "decode" else ()
            tokens = self._outputs(seq.id, first, wanted, guesses)
            if scheduled.forced is not None and scheduled.forced >= 0 and tokens:
                tokens[0] = scheduled.forced
            drafts = self._guesses(seq.id, first + len(tokens), seq.max_tokens)
            rows.append(RowResult(row.seq, tuple(tokens), drafts, self.confidences.get(seq.id, ())))
        self.confidences = {}
        result = StepResult(step.number, tuple(rows))
        if self.watcher is not None:
            self.watcher.complete(result)
        self.engine.complete(result, 0.0)
        return [len(row.tokens) for row in rows]

    def _outputs(self, name: str, first: int, wanted: int, guesses: tuple[int, ...]) -> list[int]:
        """Accepted guesses and one token more, at most what is wanted."""
        tokens: list[int] = []
        while len(tokens) < wanted:
            at = len(tokens)
            tokens.append(self.output(name, first + at))
            if at >= len(guesses) or guesses[at] != tokens[at]:
                break
        return tokens

    def _guesses(self, name: str, index: int, limit: int) -> tuple[int, ...]:
        return tuple(
            self.output(name, i)
            if i < limit and crc32(f"{self.prefix}/{name}/{i}".encode()) % 10 < 6
            else WRONG
            for i in range(index, index + self.engine.num_drafts)
        )
