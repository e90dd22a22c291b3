"""What an adapter is: a name, options, an engine, and a way to replay recordings.

Adapters are plugins: an entry point of the group ``handoff.adapters`` names an object that
satisfies ``Adapter``. A third party's package shows up beside the built-in ones without a change
here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import BadInput, HandoffError
from .types import Handoff, Layout, Match, Request, Step, StepResult

if TYPE_CHECKING:
    from .conformance.recording import Recordings

__all__ = [
    "ORDER",
    "Adapter",
    "Cites",
    "Counts",
    "Engine",
    "Evidence",
    "Isolates",
    "Options",
    "check_asked",
    "known_options",
    "load",
    "make_options",
    "names",
    "register",
]

GROUP = "handoff.adapters"
ORDER = ("vllm", "sglang", "llamacpp", "tensorrt_llm", "deepinfer")
"""Order of rows and columns everywhere; other adapters follow by name."""

Asked = TypeVar("Asked", bound=BaseModel)
Evidence = Literal["ran", "transcribed", "read"]
"""How the rules were established: upstream ran, was transcribed and ran, or was only read."""


class Options(BaseModel):
    """Base of an adapter's options: upstream's names and defaults, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@runtime_checkable
class Engine(Protocol):
    """A pure planner: it decides in the framework's own order and emits Steps.

    It touches no tensor, reads no clock and no random source. ``now`` is in seconds of the runner's
    virtual clock. Same calls, same Steps.
    """

    layout: Layout
    depth: int
    """Steps that may be in flight: 1 synchronous, 2 when upstream schedules one step ahead."""
    num_drafts: int
    """Drafts wanted from the drafter after each sampled token (0 = no speculation)."""

    def submit(self, request: Request, now: float) -> None:
        """Queue a request. Raises ``Refused`` if upstream would never serve it."""

    def abort(self, request_id: str, now: float) -> None:
        """Drop a request wherever it is; unknown ids are ignored."""

    def step(self, now: float) -> Step | None:
        """Plan the next Step, or ``None`` if nothing can be done before a result or an arrival.

        A Step without rows is legal (idle decode steps, trailing operations).
        """

    def complete(self, result: StepResult, now: float) -> None:
        """Take the answer to the oldest Step in flight: move on, make findable, release."""

    def probe(self, request: Request) -> Match:
        """What a look-up would find now; changes nothing that another call can see."""

    def next_event(self) -> float | None:
        """When something happens without a Step or an arrival (retention expiry), or ``None``."""

    def drain(self) -> Step | None:
        """A last Step without rows for operations still owed (or ``None``).

        It is completed like any other Step, with a result without rows.
        """

    def observe(self) -> Mapping[str, Any]:
        """Free queues, keys, trees, reference counts: for tests and curiosity, never for logic."""


@runtime_checkable
class Adapter(Protocol):
    """One framework. Built-in ones are the modules' ``ADAPTER`` objects."""

    name: str
    """Identifier on the command line (``vllm``)."""
    title: str
    """The framework's own spelling (``vLLM``)."""
    upstream: str
    """Pinned upstream version."""
    evidence: Evidence
    left_out: Mapping[str, str]
    """What is not modelled: name -> why. Asking for it raises ``Unsupported``."""
    options: type[Options]

    def engine(self, options: Options) -> Engine:
        """A fresh engine with empty caches."""

    def budget(self, pool_tokens: int, options: Options) -> Mapping[str, Any]:
        """Option values that give the engine a pool of ``pool_tokens`` tokens."""

    def describe(self, options: Options) -> str:
        """The options that shape a hit, in a few words ("block 16, EAGLE")."""

    def recordings(self) -> Recordings | None:
        """How its conformance recordings are replayed, or ``None`` if it has none."""


@runtime_checkable
class Counts(Protocol):
    """Adapters that know how the framework itself counts an admission; optional."""

    def counters(self, handoff: Handoff) -> Mapping[str, float]:
        """What this admission adds to the framework's own counters, under their own names."""


@runtime_checkable
class Cites(Protocol):
    """Adapters that cite the rules behind losses which no Handoff deducts; optional."""

    rules: Mapping[str, str]
    """Reason -> section of the rule book: alignment, evicted, not_stored, isolation ..."""


@runtime_checkable
class Isolates(Protocol):
    """Adapters that say which keys of a request keep cached text apart; optional.

    Without it both do. An image needs no key: its placeholder positions have ids of their own.
    """

    isolation_keys: tuple[Literal["salt", "lora"], ...]
    """A key that upstream ignores is left out; text computed under another one is then no loss."""


def known_options(adapter: Adapter, names: Iterable[str]) -> None:
    """Refuses a name that is none of the adapter's options, with a suggestion."""
    known = adapter.options.model_fields
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = (
                f" Did you mean {close[0]} (default {known[close[0]].default!r})?" if close else ""
            )
            raise BadInput(
                f"{adapter.title} has no option {name}.{hint}"
                f" All options: handoff adapters {adapter.name}"
            )


def make_options(adapter: Adapter, values: Mapping[str, Any]) -> Options:
    """Options from raw values; a wrong name or value is one ``BadInput`` line with a suggestion."""
    known_options(adapter, values)
    try:
        return adapter.options(**values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "options"
        raise BadInput(
            f"{adapter.title} option {place}: {first['msg']} (got {first.get('input')!r})"
        ) from None


def check_asked(known: type[Asked], values: Mapping[str, Any], who: str) -> Asked:
    """Request or action options as ``known`` types them; else one ``BadInput`` that names ``who``.

    ``known`` types the options that an adapter reads; it decides whether others are ignored.
    """
    try:
        return known.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "options"
        raise BadInput(
            f"{who}: option {place}: {first['msg']} (got {first.get('input')!r})"
        ) from None


@cache
def _entry_points() -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, point)
    return found


def names() -> list[str]:
    """Installed adapters: the built-in five in their order, then others by name."""
    found = _entry_points()
    known = [name for name in ORDER if name in found]
    return known + sorted({*found, *_REGISTERED} - {*ORDER})


_REGISTERED: dict[str, Adapter] = {}


def register(adapter: Adapter) -> None:
    """Make an adapter known to this process, as if its package were installed.

    For notebooks and tests. Registering a name again replaces it; a name that is installed is
    refused.
    """
    if adapter.name in _entry_points():
        raise BadInput(f"adapter {adapter.name!r} is installed; choose another name")
    if not isinstance(adapter, Adapter):
        raise BadInput(f"{adapter!r} lacks parts of the protocol of an adapter")
    _REGISTERED[adapter.name] = adapter


def load(name: str) -> Adapter:
    """The adapter of that name: registered, or installed.

    Raises ``BadInput`` that lists what is installed, or ``HandoffError`` that names a plugin which
    cannot be imported.
    """
    return _REGISTERED[name] if name in _REGISTERED else _installed(name)


@cache
def _installed(name: str) -> Adapter:
    found = _entry_points()
    if name not in found:
        close = difflib.get_close_matches(name, found, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise BadInput(f"no adapter {name!r}.{hint} Installed: {', '.join(names()) or 'none'}")
    try:
        adapter = found[name].load()
    except HandoffError:
        raise
    except Exception as error:
        raise HandoffError(
            f"adapter {name} ({found[name].value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(adapter, Adapter):
        raise HandoffError(f"adapter {name} ({found[name].value}) lacks parts of the protocol")
    return adapter
