"""What an adapter declares so that the core can replay its recordings.

A *case* is one line of a recording. The adapter says, per kind of file, which keys are inputs, and
gives a function that turns the inputs into the whole line as its own engine would have recorded it.
The core alone sees the recorded outputs: it strips them before the adapter is called, and compares
leaf by leaf afterwards. A recorded output that the adapter did not produce is a difference, and so
is one that it produced and that was not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from handoff.types import Layout, Step, StepResult

if TYPE_CHECKING:
    from handoff.adapter import Options

__all__ = ["Case", "Kind", "Recordings", "Schema", "Watch", "Watcher"]

Schema = Mapping[str, Any] | Callable[[Any], Any]
"""Which keys are taken: ``{"trace": True, "ops": {"op": True, "o": True}}``.

``True`` takes the whole value. A mapping descends: into a dict by key, into a list item by item.
A list whose items mean something by their place is taken by ``"[0]"``, ``"[-1]"`` ..., the other
items by ``"[]"``. The key ``"*"`` stands for every key that is not named. A key that leads to
``"keys"`` takes only the keys of a dict or the length of a list (the values become ``None``). A
function gets the item and returns the schema for it, for lists whose items differ in kind.
"""


class Watcher(Protocol):
    """Sees every Step and every result of one replayed engine (the tag pass)."""

    def step(self, step: Step) -> None:
        """Called when a Step was planned, in order."""

    def complete(self, result: StepResult) -> None:
        """Called when its result is handed to the engine."""


Watch = Callable[[Layout], Watcher]
"""Makes a watcher for a fresh engine of that layout."""


@dataclass(frozen=True, slots=True)
class Case:
    """The inputs of one line, and what every line of the folder shares.

    ``line`` holds the input keys only; ``followed`` the declared outputs that the driver has to
    follow (same shape). ``config`` is the configuration's entry of ``configs.json`` (``None`` if
    the line brings its own), ``configs`` the whole file, ``workload`` the line of the workloads
    file that ``line["workload"]`` names. A driver that plans Steps makes one watcher per engine
    with ``watch`` (if given) and shows it every Step and result.
    """

    kind: str
    line: Mapping[str, Any]
    followed: Mapping[str, Any]
    configs: Mapping[str, Any]
    config: Mapping[str, Any] | None
    workload: Mapping[str, Any] | None
    watch: Watch | None = None


def _same(line: dict[str, Any]) -> dict[str, Any]:
    return line


def _results(line: Mapping[str, Any]) -> int:
    return len(line.get("results", ())) or 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of recording file (``common``, ``native``, ``hashes`` ...).

    * ``inputs``: the keys a driver may see; everything else is an output.
    * ``replay``: from a ``Case`` to the whole line (inputs may be left out of it). It may raise
      ``Unsupported``: the case is then skipped with that reason, never counted as agreeing.
    * ``followed``: outputs that the driver has to follow; they are not compared.
    * ``canonical``: applied to both sides before comparing, for outputs without an order.
    * ``requests``: number of requests in a recorded line, for the count.
    """

    inputs: Schema
    replay: Callable[[Case], Mapping[str, Any]]
    followed: Schema = field(default_factory=dict)
    canonical: Callable[[dict[str, Any]], dict[str, Any]] = _same
    requests: Callable[[Mapping[str, Any]], int] = _results


@dataclass(frozen=True, slots=True)
class Recordings:
    """An adapter's kinds by file name: the longest kind that starts the name wins.

    ``options(config)`` turns one configuration in the recordings' own words (defaults filled in by
    it; the same keys that field cases use) into the adapter's options; ``Unsupported`` if it is
    left out. ``config_entry(configs, name)`` finds a configuration in the parsed ``configs.json``.
    """

    kinds: Mapping[str, Kind]
    options: Callable[[Mapping[str, Any]], Options]
    config_entry: Callable[[Mapping[str, Any], str], Mapping[str, Any] | None] = (
        lambda configs, name: configs.get(name)
    )
