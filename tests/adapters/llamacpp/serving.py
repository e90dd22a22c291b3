"""A llama-server in a test: requests one after the other, their answers and admissions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from handoff.adapters.llamacpp.play import Play, Report

from handoff.adapter import load, make_options
from handoff.index.spans import Seq
from handoff.store.tags import TagStore
from handoff.types import Handoff, Request, Step, StepResult
from handoff.types.checks import StepChecker

SMALL = {"n_layer": 2, "kv_bytes_per_token": 128, "n_ctx_train": 8192}
WINDOW = {**SMALL, "memory": "window", "n_swa": 64, "n_layer_swa": 1, "swa_bytes_per_token": 64}
HYBRID = {**SMALL, "memory": "hybrid", "state_bytes": 300}
RECURRENT = {**SMALL, "memory": "recurrent", "state_bytes": 300}
ONE = {"parallel": 1, "cache_ram": 0, "ctx_size": 1024}


def text(stream: int, length: int, start: int = 0) -> list[int]:
    """Tokens ``start .. start + length`` of a stream that shares none with another."""
    return [stream * 10_000 + at for at in range(start, start + length)]


class Server:
    """A server whose Steps run through the checker and the tag pass."""

    def __init__(self, *values: dict[str, Any], **more: Any) -> None:
        merged: dict[str, Any] = {}
        for each in (*values, more):
            merged |= each
        adapter = load("llamacpp")
        self.options = make_options(adapter, merged)
        self.handoffs: dict[str, Handoff] = {}
        self.tainted: dict[str, tuple[str, ...]] = {}
        self.unsound: list[tuple[str, str]] = []
        self.play = Play(self.options, self._watch)
        self.engine = self.play.engine
        self._count = 0

    def _watch(self, layout: Any) -> Server:
        self.tags = TagStore(layout)
        self.checker = StepChecker(layout)
        return self

    def step(self, step: Step) -> None:
        self.checker.step(step)
        self.tags.step(step)
        for handoff in step.handoffs:
            self.handoffs[handoff.request] = handoff
            self.tainted[handoff.request] = self.tags.causes.get(handoff.seq, ())
        for event in step.events:
            if event.kind == "unsound":
                self.unsound.append((event.request or "", event.rule))

    def complete(self, result: StepResult) -> None:
        self.tags.complete(result)

    def request(self, prompt: Sequence[int], outputs: int = 2, /, **options: Any) -> Request:
        """A request whose outputs occur nowhere else."""
        self._count += 1
        name = f"r{self._count}"
        lora = options.pop("lora_name", None)
        said = Seq(text(900 + self._count, outputs))
        return Request(name, Seq(prompt), outputs, said, lora=lora, options=options)

    def serve(self, prompt: Sequence[int], outputs: int = 2, /, **options: Any) -> Report:
        """Serve one request alone."""
        return self.play.serve([self.request(prompt, outputs, **options)])[0]

    def together(self, requests: Iterable[Request]) -> list[Report]:
        """Requests that arrive at once."""
        return self.play.serve(list(requests))

    @property
    def lengths(self) -> list[int]:
        """Tokens every slot holds."""
        return list(self.engine.observe()["slots"])

    def lines(self, *what: str) -> list[tuple[Any, ...]]:
        """Log lines of the last ``serve`` of these kinds: what, slot, numbers."""
        return [
            (line.what, line.slot, *line.numbers) for line in self.play.lines if line.what in what
        ]
