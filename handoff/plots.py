"""``.plot`` of everything the Python API returns: the figures that its data allow.

Each method gives a ``Picture`` (shown by a notebook, saved by ``.save("x.svg")`` or ``.png``) or
raises ``HandoffError`` that says what is missing and how to get it. matplotlib is imported by the
first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from .errors import HandoffError
from .report.info import RunInfo

if TYPE_CHECKING:
    import pandas as pd

    from .report.canvas import Picture

__all__ = ["Plots"]

Theme = Literal["light", "dark", "print"]


@dataclass(frozen=True)
class Plots:
    """Figures of one run, explanation, sweep or staircase.

    ``ledger`` gives the entries, ``steps`` the log of Steps, ``pools`` the points of a pool curve,
    ``stairs`` those of a staircase; what is ``None`` was not made, and its figures say so.
    """

    info: RunInfo | None = None
    ledger: Callable[[], pd.DataFrame] | None = None
    steps: pd.DataFrame | None = None
    pools: pd.DataFrame | None = None
    ceiling: float | None = None
    best: Mapping[int, float] = field(default_factory=dict)
    stairs: Callable[[], pd.DataFrame] | None = None

    @cached_property
    def _frame(self) -> pd.DataFrame:
        if self.ledger is None:
            raise HandoffError("this has no ledger: the figure is one of handoff.run(...)")
        frame = self.ledger()
        if frame.empty:
            raise HandoffError("the ledger has no entry: there is nothing to draw")
        return frame

    def strip(
        self, request: str | None = None, scenario: str | None = None, theme: Theme = "light"
    ) -> Picture:
        """Where each token of one request went; by default of the one with the median loss."""
        from .report.figures import strip

        frame = self._frame
        if request is not None:
            frame = self._of(request, scenario)
        return _drawn(strip, frame, scenario, request, theme)

    def waterfall(self, theme: Theme = "light") -> Picture:
        """From the shared prefix to the saved compute, a column a row."""
        from .report import findings
        from .report.figures import waterfall
        from .report.totals import common, totals

        info = self.info
        words = findings.window(totals(common(self._frame)), info) if info is not None else ""
        return _drawn(waterfall, self._frame, theme, words)

    def hit_vs_saved(self, theme: Theme = "light") -> Picture:
        """Hit ratio against saved ratio of every request."""
        from .report.figures import hit_vs_saved

        return _drawn(hit_vs_saved, self._frame, theme)

    def block_map(
        self,
        request: str | None = None,
        run: str | None = None,
        scenario: str | None = None,
        theme: Theme = "light",
    ) -> Picture:
        """Which blocks a request shares, copies and owns; by default the last one, first row."""
        from .report.figures import block_map

        frame = self._frame if request is None else self._of(request, scenario)
        served = frame[(frame["status"] == "done") & (frame["attempt"] == 0)]
        if run is not None:
            served = served[served["run"] == run]
        if scenario is not None:
            served = served[served["scenario"] == scenario]
        if served.empty:
            rows = ", ".join(map(str, self._frame["run"].unique()))
            raise HandoffError(f"no such request was served; rows: {rows}")
        place = served[served["run"] == served["run"].iloc[0]].iloc[-1]
        names = (str(place[column]) for column in ("scenario", "run", "request"))
        return _drawn(block_map, self._frame, *names, theme)

    def timeline(
        self,
        run: str | None = None,
        scenario: str | None = None,
        first: int | None = None,
        theme: Theme = "light",
    ) -> Picture:
        """What the scheduler did step by step, from step ``first`` on; needs the log of Steps."""
        from .report.figures import timeline

        if self.steps is None:
            raise HandoffError(
                "no log of Steps was kept: that takes a run (not an explanation) of a few hundred"
                " requests; give limit=200 or fewer requests"
            )
        mine = self.steps
        for column, wanted in (("run", run), ("scenario", scenario)):
            chosen = mine["run" if column == "run" else "scenario"]
            mine = mine[chosen == (chosen.iloc[0] if wanted is None else wanted)]
            if mine.empty:
                known = ", ".join(map(str, self.steps[column].unique()))
                raise HandoffError(f"no steps of {column} {wanted!r}; there are {known}")
        title = f"{mine['run'].iloc[0]}, {mine['scenario'].iloc[0]}"
        return _drawn(timeline, mine, theme, first=first, title=title)

    def pool_curve(self, theme: Theme = "light") -> Picture:
        """Hit ratio against pool size, with the ceiling and the best possible eviction."""
        from .report.figures import pool_curve

        if self.pools is None:
            raise HandoffError(
                "one run has one pool; a pool curve needs several:"
                " handoff.sweep(source, pools=[...]).plot.pool_curve()"
            )
        size = self.info.kv_bytes_per_token if self.info is not None else None
        more = {"ceiling": self.ceiling, "best": self.best, "bytes_per_token": size}
        return _drawn(pool_curve, self.pools, theme, **more)

    def staircase(
        self,
        theme: Theme = "light",
        formulas: Mapping[str, str] | None = None,
        measured: Sequence[tuple[int, int]] = (),
    ) -> Picture:
        """Hit tokens against the length of a prompt that is sent twice."""
        from .report.figures import staircase

        if self.stairs is None:
            raise HandoffError(
                "a staircase needs a prompt of every length:"
                " handoff.stairs(longest=200).plot.staircase()"
            )
        return _drawn(staircase, self.stairs(), theme, formulas=formulas, measured=measured)

    def _of(self, request: str, scenario: str | None) -> pd.DataFrame:
        """The entries of one request; an error that names others if there are none."""
        frame = self._frame
        mine = frame[frame["request"] == request]
        if scenario is not None:
            mine = mine[mine["scenario"] == scenario]
        if mine.empty:
            known = ", ".join(map(str, frame["request"].unique()[:5]))
            raise HandoffError(f"no request {request!r}; there are {known} ...")
        return mine


def _drawn(draw: Callable[..., Picture], *args: Any, **more: Any) -> Picture:
    """The figure, or its reason why there is none, as an error a user may catch."""
    try:
        return draw(*args, **more)
    except ValueError as error:
        raise HandoffError(str(error)) from None
