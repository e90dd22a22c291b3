"""What the engine itself says about hits: the closed formula and the smallest prompt that can hit.

Nothing is assumed about a framework. A prompt is sent twice to a fresh engine at chosen lengths;
the formula ``max(0, floor((L - a) / unit) - d) x unit`` is fitted to what comes out and kept only
if it holds at every further length that is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from handoff.adapter import Adapter, Engine, Options
from handoff.errors import HandoffError
from handoff.index.spans import VIRTUAL, Seq
from handoff.runner import run
from handoff.types import Handoff, Request, Step, StepResult
from handoff.workload.arrivals import Arrival, When

__all__ = ["Formula", "Twice", "fit", "smallest_prompt"]

MakeOptions = Callable[[int], Options]
"""Options with a pool of so many tokens."""


@dataclass(frozen=True, slots=True)
class Formula:
    """``max(0, floor((length - kept) / unit) - dropped) x unit`` tokens of a repeated prompt hit.

    ``kept`` tokens at the end are never part of a hit; ``dropped`` whole units are given up.
    ``checked`` are the lengths at which the engine agreed.
    """

    unit: int
    kept: int
    dropped: int
    checked: tuple[int, ...] = field(compare=False)

    def hit(self, shared: int, length: int) -> int:
        """The hit of a prompt of ``length`` tokens, ``shared`` of which are findable."""
        usable = min(shared, length - self.kept)
        return max(0, usable // self.unit - self.dropped) * self.unit

    def words(self, shared: int, length: int) -> str:
        """The formula with numbers put in."""
        form = self._form(f"{length:,}", self.kept)
        if shared < length - self.kept:
            form = self._form(f"{shared:,}")
        hit = f"{self.hit(shared, length):,}"
        return form if form == hit else f"{form} = {hit}"

    def given(self, shared: int, length: int) -> str:
        """Which number is put in: the shared tokens, or the prompt's if its end limits the hit."""
        if shared < length - self.kept:
            return f"{shared:,} shared tokens"
        return f"a prompt of {length:,} tokens"

    @property
    def general(self) -> str:
        """The formula for a prompt of length L that was sent before."""
        return self._form("L", self.kept)

    def _form(self, length: str, kept: int = 0) -> str:
        usable = f"{length} - {kept}" if kept else length
        if self.unit == 1 and not self.dropped:
            return usable
        floor = f"floor({f'({usable})' if kept else usable} / {self.unit:,})"
        if self.dropped:
            floor = f"max(0, {floor} - {self.dropped})"
        return f"{floor} x {self.unit:,}"


class _Answers:
    """A sink that keeps the first Handoff of every request."""

    def __init__(self) -> None:
        self.of: dict[str, Handoff] = {}

    def step(self, step: Step) -> None:
        for handoff in step.handoffs:
            self.of.setdefault(handoff.request, handoff)

    def complete(self, result: StepResult) -> None:
        """Nothing to keep."""


class Twice:
    """Sends one prompt twice to a fresh engine and remembers what the second one got."""

    def __init__(self, adapter: Adapter, options: MakeOptions) -> None:
        self._adapter = adapter
        self._options = options
        self._known: dict[int, Handoff | None] = {}

    def __call__(self, length: int) -> Handoff | None:
        """The second admission of a prompt of ``length`` tokens; ``None`` if it is refused."""
        if length not in self._known:
            self._known[length] = self._ask(length)
        return self._known[length]

    def hit(self, length: int) -> int | None:
        """Hit tokens of the second one; ``None`` if it is refused."""
        found = self(length)
        return None if found is None else found.hit_tokens

    def _ask(self, length: int) -> Handoff | None:
        answers = _Answers()
        requests = [Request(name, Seq.virtual(VIRTUAL, length), 1) for name in ("first", "again")]
        arrivals = [
            Arrival("first", When(), requests[0]),
            Arrival("again", When("after", "first"), requests[1]),
        ]
        try:
            engine: Engine = self._adapter.engine(self._options(4 * length + 16_384))
            run(engine, arrivals, sinks=(answers,))
        except HandoffError:
            return None
        return answers.of.get("again")


def smallest_prompt(twice: Twice, limit: int) -> int | None:
    """The shortest prompt that hits when it is sent again; ``None`` if none up to ``limit`` does.

    Looks at doubling lengths, then halves the gap: exact where longer prompts hit whenever shorter
    ones do. Lengths that the engine refuses end the search.
    """
    low, high = 0, 2
    while not twice.hit(high):
        if twice(high) is None:
            longest = _border(low, high, lambda length: twice(length) is None) - 1
            if not longest or not twice.hit(longest):
                return None
            high = longest
            break
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    return _border(low, high, lambda length: bool(twice.hit(length)))


def _border(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number in ``(low, high]`` at which ``holds``, given that it does at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def fit(twice: Twice, unit: int, lengths: tuple[int, ...]) -> Formula | None:
    """The closed formula, if the engine follows one; checked at ``lengths`` and around the unit."""
    far = 7 * unit
    kept = _kept(twice, unit, far)
    if kept is None:
        return None
    hit = twice.hit(far + kept)
    if hit is None or hit % unit:
        return None
    formula = Formula(unit, kept, (far - hit) // unit, ())
    tried = {
        1,
        unit - 1,
        unit,
        unit + 1,
        2 * unit,
        2 * unit + 1,
        3 * unit + unit // 2,
        far,
        *lengths,
    }
    checked = []
    for length in sorted(each for each in tried if each > 0):
        found = twice.hit(length)
        if found is None:
            continue
        if found != formula.hit(length, length):
            return None
        checked.append(length)
    return Formula(unit, kept, formula.dropped, tuple(checked))


def _kept(twice: Twice, unit: int, far: int) -> int | None:
    """Tokens beyond ``far`` that it takes for the hit to step up to the unit that ends there."""
    below = twice.hit(far - 1)
    if unit == 1:
        return None if below is None else far - 1 - below
    for kept in (0, 1, 2):
        found = twice.hit(far + kept)
        if found is not None and below is not None and found > below:
            return kept
    return None
