"""What a report must say about a run beside its ledger: where every number came from.

The records are pydantic models, so ``RunInfo.model_dump_json`` beside the ledger file is all that
``handoff report`` needs to write the same page again, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Conformance", "Expectation", "RowInfo", "RunInfo", "ScenarioInfo", "Tags", "Truth"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Truth(_Record):
    """Executed logits of one row against a cold recompute under the same rules.

    ``max_error`` is the largest ``max|difference| / max|logit|`` over ``rows`` compared rows. Rows
    that descend from an approximation are no part of ``ok``: ``approximate_max_error`` is their
    largest difference from the untruncated model.
    """

    ok: bool
    max_error: float
    tolerance: float
    rows: int
    dtype: str = "float32"
    approximate_rows: int = 0
    approximate_max_error: float = 0.0


class Tags(_Record):
    """The content-tag pass of one row: ``faults`` are reads or writes of wrong content."""

    steps: int
    faults: int = 0
    tainted: int = 0


class Conformance(_Record):
    """Recordings of upstream compared with this adapter."""

    cases: int
    agree: int
    differ: int
    requests: int = 0


class Expectation(_Record):
    """One expectation of a scenario, in words, and whether the run met it."""

    words: str
    ok: bool


class RowInfo(_Record):
    """One row of the tables: a framework with one set of options.

    ``run`` is the ledger's label. ``pool`` says the budget in the framework's own units
    ("65,537 blocks of 16"), ``derived`` are option values that the engine set by itself (the
    ledger has those that were asked for).
    """

    run: str
    pool: str = ""
    pool_tokens: int | None = None
    derived: Mapping[str, Any] = {}
    left_out: Mapping[str, str] = {}
    truth: Truth | None = None
    tags: Tags | None = None
    conformance: Conformance | None = None
    smallest_prompt: int | None = None


class ScenarioInfo(_Record):
    """What a scenario asks, what a reader should notice, and what its input was.

    ``pool_tokens`` and ``pools`` (row label to words) are given where a scenario sets budgets of
    its own; otherwise those of the rows hold.
    """

    name: str
    question: str = ""
    notice: str = ""
    source: str = ""
    pool_tokens: int | None = None
    pools: Mapping[str, str] = {}
    expectations: tuple[Expectation, ...] = ()


class RunInfo(_Record):
    """Provenance of one run; ``date`` is the only date a report ever prints.

    ``model`` names the model whose FLOPs and bytes are counted, ``hardware`` the one of the
    roofline, ``kv_bytes_per_token`` its KV size. ``window`` says which requests are counted.
    ``files`` maps a file's name to its sha256. ``planted`` is (caught, planted) faults.
    """

    title: str = ""
    command: str
    date: str
    seed: int | None = None
    versions: Mapping[str, str] = {}
    model: str = ""
    hardware: str = ""
    kv_bytes_per_token: int | None = None
    window: str = "all requests"
    rows: tuple[RowInfo, ...] = ()
    scenarios: tuple[ScenarioInfo, ...] = ()
    files: Mapping[str, str] = {}
    executed: bool = False
    planted: tuple[int, int] | None = None
    seconds: float | None = None

    def row(self, run: str) -> RowInfo:
        """The facts of the row labelled ``run``; an empty record if none were given."""
        return next((row for row in self.rows if row.run == run), RowInfo(run=run))

    def scenario(self, name: str) -> ScenarioInfo:
        """The facts of scenario ``name``; an empty record if none were given."""
        return next((each for each in self.scenarios if each.name == name), ScenarioInfo(name=name))
