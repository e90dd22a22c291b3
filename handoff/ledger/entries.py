"""What the ledger keeps: one ``Entry`` per admission, a ``Ledger`` of them, and its parquet form.

An entry says for every prompt position where it went: ``runs`` is a partition of the prompt into
classes, all token columns are counted from it, and a wrong sum cannot be built. Nothing here asks
an engine; pandas and pyarrow are imported only by the methods that need them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from handoff.errors import BadInput
from handoff.types import REASONS, Deduction

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLASSES", "Entry", "Ledger", "Run", "read_frame", "read_ledger"]

CLASSES = ("reused", "moved", "fresh", *REASONS)
"""Every class a prompt position can have: two gains, one that is no loss, and the reasons."""

LANE_FLAGS = ("unneeded", "recomputed")
"""What a lane may say besides a class: not computed in any case, computed again by this group."""


class Run(NamedTuple):
    """Prompt positions ``[start, stop)`` of one class (or lane flag)."""

    kind: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One admission of one request in one row of a run; the ledger's schema, in column order.

    Which row: ``run`` is its label (the adapter's name, or ``vllm:block_size=32`` when there are
    several option sets), ``options`` the values that are not upstream's default, ``describe`` the
    same in words, ``evidence`` how the rules were established.

    Tokens: ``known_tokens`` is the prompt plus the outputs known at admission, ``shared_tokens``
    the longest prefix of the prompt ever computed under any isolation key, ``raw_tokens`` what the
    framework's index held, ``hit_tokens`` what it reports, ``start`` the first position computed,
    ``unit`` the grain of a hit. ``computed_tokens`` are prompt positions computed for the first
    time, ``recomputed_tokens`` positions computed again after a preemption, ``overhead_tokens``
    positions that belong to no content (rejected drafts, padding), ``tainted_tokens`` reused ones
    that descend from an approximation.

    Cost: FLOPs of the prompt with the logits of its last position, cold and really spent;
    ``token_weights_flops`` is what saved FLOPs differ from the reused and moved tokens' share of
    the cold ones (early tokens attend to less). KV traffic in bytes, times in seconds.

    ``runs`` partitions ``[0, prompt_tokens)``; ``lanes`` does it per group where groups differ.
    ``status`` is ``done``, ``aborted`` or ``refused: why``; the last has no runs.
    """

    run: str
    adapter: str
    title: str
    upstream: str
    evidence: str
    options: Mapping[str, Any]
    describe: str
    scenario: str
    request: str
    attempt: int
    arrival_s: float
    prompt_tokens: int
    known_tokens: int
    shared_tokens: int
    raw_tokens: int
    hit_tokens: int
    start: int
    unit: int
    runs: tuple[Run, ...]
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    overhead_tokens: int = 0
    output_tokens: int = 0
    estimate_tokens: int | None = None
    budget_tokens: int | None = None
    tainted_tokens: int = 0
    cold_flops: int = 0
    spent_flops: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    kv_copied_bytes: int = 0
    kv_loaded_bytes: int = 0
    ttft_s: float | None = None
    cold_ttft_s: float | None = None
    queue_s: float | None = None
    lanes: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    deductions: tuple[Deduction, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    unsound: tuple[str, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    status: str = "done"
    tokens: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Prompt tokens of each class that occurs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", _count(self.runs))
        if self.status.startswith("refused"):
            assert not self.runs, f"{self.request}: a refused request has no classes"
            return
        for lane in (self.runs, *self.lanes.values()):
            _check_partition(self.request, lane, self.prompt_tokens)
        assert set(self.tokens) <= set(CLASSES), f"{self.request}: {set(self.tokens)}"
        if self.attempt == 0:
            served = self.reused + self.moved + self.count("replay")
            assert served == self.hit_tokens, (
                f"{self.request}: hit {self.hit_tokens} is not reused + moved + replay {served}"
            )

    def count(self, kind: str) -> int:
        """Prompt tokens of one class of ``CLASSES``."""
        return self.tokens.get(kind, 0)

    @property
    def reused(self) -> int:
        """Prompt tokens served from cached KV, nothing of them computed."""
        return self.count("reused")

    @property
    def moved(self) -> int:
        """Prompt tokens reused although they are no prefix."""
        return self.count("moved")

    @property
    def fresh(self) -> int:
        """Prompt tokens beyond everything that was ever computed."""
        return self.count("fresh")

    @property
    def lost(self) -> dict[str, int]:
        """Tokens by reason, in the order of ``REASONS``; only reasons that occur."""
        return {reason: self.tokens[reason] for reason in REASONS if reason in self.tokens}

    @property
    def saved_flops(self) -> int:
        """FLOPs that the hit made unnecessary."""
        return self.cold_flops - self.spent_flops

    @property
    def token_weights_flops(self) -> int:
        """Saved FLOPs less the reused and moved tokens' share of the cold FLOPs (signed)."""
        gained = self.cold_flops * (self.reused + self.moved) // max(self.prompt_tokens, 1)
        return self.saved_flops - gained

    @property
    def counted(self) -> bool:
        """Whether the entry belongs into ratios: a first attempt that was served."""
        return self.attempt == 0 and self.status == "done"

    def columns(self) -> dict[str, Any]:
        """The flat form: the schema's columns in order, nested values as JSON text."""
        return {name: read(self) for name, read in _COLUMNS.items()}


def _count(runs: Iterable[Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for kind, start, stop in runs:
        counts[kind] = counts.get(kind, 0) + stop - start
    return counts


def _check_partition(request: str, runs: tuple[Run, ...], length: int) -> None:
    edge = 0
    for run in runs:
        assert run.start == edge < run.stop, f"{request}: runs must adjoin: {runs}"
        edge = run.stop
    assert edge == length, f"{request}: runs end at {edge}, the prompt at {length}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=isinstance(value, dict))


_NESTED: dict[str, type] = {
    "options": dict,
    "runs": list,
    "lanes": dict,
    "deductions": list,
    "answers": dict,
    "unsound": list,
    "counters": dict,
}
"""Columns of JSON text, and what the text holds."""
_KINDS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float)}
_PLAIN = {s.name: _KINDS[str(s.type)] for s in fields(Entry) if str(s.type) in _KINDS}
"""Columns of one value that is always there."""
_DERIVED_COST = ("saved_flops", "token_weights_flops")


def _columns() -> dict[str, Callable[[Entry], Any]]:
    """Column name -> how to read it from an entry, in the order of the schema."""
    names = [spec.name for spec in fields(Entry) if spec.name not in ("tokens", "runs")]
    names.insert(names.index("lanes"), "runs")
    readers: dict[str, Callable[[Entry], Any]] = {}
    for name in names:
        readers[name] = _nested(name) if name in _NESTED else attrgetter(name)
        if name == "unit":
            readers |= {kind: methodcaller("count", kind) for kind in CLASSES}
        if name == "spent_flops":
            readers |= {derived: attrgetter(derived) for derived in _DERIVED_COST}
    return readers


def _nested(name: str) -> Callable[[Entry], str]:
    return lambda entry: json.dumps(_plain(getattr(entry, name)), separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


_COLUMNS = _columns()
_DERIVED = (*CLASSES, *_DERIVED_COST)
_OPTIONAL_INTS = ("estimate_tokens", "budget_tokens")
_OPTIONAL_FLOATS = ("ttft_s", "cold_ttft_s", "queue_s")


class Ledger:
    """Entries in the order in which they were written; it only ever grows.

    >>> ledger = Ledger(); len(ledger)
    0
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries: list[Entry] = list(entries)

    def append(self, entry: Entry) -> None:
        """Add one entry at the end."""
        self._entries.append(entry)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add entries at the end, in order."""
        self._entries.extend(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> Entry:
        return self._entries[index]

    def select(self, *, run: str | None = None, scenario: str | None = None) -> Ledger:
        """The entries of one row, of one scenario, or of both."""
        return Ledger(
            entry
            for entry in self._entries
            if run in (None, entry.run) and scenario in (None, entry.scenario)
        )

    @property
    def runs(self) -> list[str]:
        """Labels of the rows, in the order in which they appear."""
        return list(dict.fromkeys(entry.run for entry in self._entries))

    @property
    def scenarios(self) -> list[str]:
        """Names of the scenarios, in the order in which they appear."""
        return list(dict.fromkeys(entry.scenario for entry in self._entries))

    def __repr__(self) -> str:
        return (
            f"Ledger({len(self):,} entries, rows {', '.join(self.runs) or 'none'},"
            f" scenarios {', '.join(self.scenarios) or 'none'})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row an entry, the schema's columns in order (also when there is no entry)."""
        import pandas as pd

        rows = [entry.columns() for entry in self._entries]
        frame = pd.DataFrame(rows, columns=list(_COLUMNS))
        for name in _OPTIONAL_INTS:
            frame[name] = frame[name].astype("Int64")
        for name in _OPTIONAL_FLOATS:
            frame[name] = frame[name].astype("float64")
        return frame

    def write_parquet(self, path: str | Path) -> None:
        """Write the frame of ``to_pandas`` as one parquet file."""
        self.to_pandas().to_parquet(path, index=False)


def read_frame(path: str | Path, columns: Iterable[str], what: str) -> pd.DataFrame:
    """A parquet file with at least these columns; ``BadInput`` says what it lacks as a ``what``."""
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise BadInput(f"cannot be read as parquet: {error}", file=path) from None
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise BadInput(f"is no {what}, it lacks {', '.join(missing)}", file=path)
    return frame


def read_ledger(path: str | Path) -> Ledger:
    """The ledger that ``write_parquet`` wrote; ``BadInput`` names file, row and column if not."""
    frame = read_frame(path, _COLUMNS, "ledger")
    return Ledger(_read(row, at, path) for at, row in enumerate(frame.to_dict("records"), 1))


def _read(row: Mapping[Any, Any], at: int, path: str | Path) -> Entry:
    """The entry of row ``at`` (from 1)."""
    for name, kind in _PLAIN.items():
        if not isinstance(row[name], kind) or isinstance(row[name], bool):
            raise BadInput(f"row {at:,} holds {row[name]!r}", file=path, field=name)
    for name in _NESTED:
        try:
            whole = isinstance(json.loads(row[name]), _NESTED[name])
        except (TypeError, ValueError, RecursionError):
            whole = False
        if not whole:
            raise BadInput(f"row {at:,} is damaged", file=path, field=name)
    try:
        return _entry(row)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"row {at:,} is no entry: {error}", file=path) from None


def _entry(row: Mapping[Any, Any]) -> Entry:
    values = {name: row[name] for name in _COLUMNS if name not in _DERIVED}
    for name in _NESTED:
        values[name] = json.loads(values[name])
    for name in (*_OPTIONAL_INTS, *_OPTIONAL_FLOATS):
        value = values[name]
        missing = value is None or value != value  # pandas reads a hole as NaN or NA
        values[name] = None if missing else int(value) if name in _OPTIONAL_INTS else float(value)
    values["runs"] = tuple(Run(*run) for run in values["runs"])
    values["lanes"] = {
        group: tuple(Run(*run) for run in lane) for group, lane in values["lanes"].items()
    }
    values["deductions"] = tuple(Deduction(*deduction) for deduction in values["deductions"])
    values["unsound"] = tuple(values["unsound"])
    return Entry(**values)
