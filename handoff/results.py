"""What the Python API returns: objects that show, draw and write themselves.

Nothing here computes; everything is read from a finished run, comparison or table of points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .experiment import RowSpec
from .explain import Comparison, explain_request
from .ledger.entries import Ledger
from .plots import Plots
from .session import Result

if TYPE_CHECKING:
    import pandas as pd

    from .optimum import Optimum
    from .report.info import RunInfo
    from .report.totals import Total

__all__ = ["Explanation", "Run", "Stairs", "Sweep"]


class Run:
    """A finished run: its ledger, the facts about it, and ways to look at them."""

    def __init__(self, result: Result) -> None:
        if result.stopped is not None:
            raise result.stopped
        self._result = result

    @property
    def ledger(self) -> Ledger:
        """One entry per admission."""
        return self._result.ledger

    @property
    def info(self) -> RunInfo:
        """Where every number came from."""
        return self._result.info

    @property
    def steps(self) -> pd.DataFrame | None:
        """One line a row of a Step, for streams of at most 200 requests; else ``None``."""
        return self._result.steps

    @property
    def fine(self) -> bool:
        """Whether every executed row equals its cold recompute and every expectation is met."""
        return self._result.fine

    @cached_property
    def _frame(self) -> pd.DataFrame:
        return self.ledger.to_pandas()

    def to_pandas(self) -> pd.DataFrame:
        """The ledger as a DataFrame, one row an admission."""
        return self._frame.copy()

    @property
    def totals(self) -> list[Total]:
        """One ``Total`` per row, over the scenarios that can be summed."""
        from .report.totals import common, totals

        return totals(common(self._frame))

    @cached_property
    def plot(self) -> Plots:
        """The figures."""
        return Plots(self.info, lambda: self._frame, self.steps)

    def explain(self, request: str, scenario: str | None = None) -> Explanation:
        """The account of one request of this run."""
        return Explanation(explain_request(self.ledger, request, scenario))

    def write(self, folder: str | Path) -> list[Path]:
        """Ledger, facts, log of Steps, page and Markdown into ``folder``; the main files' paths."""
        from .saved import save

        return save(self._result, Path(folder))

    def __repr__(self) -> str:
        from .report.tables import render_run

        return _text(lambda console: render_run(console, self._frame, self.info))

    def _repr_html_(self) -> str:
        from .report.content import build
        from .report.notebook import rows_html, strip_html

        content = build(self._frame, self.info)
        parts = content.parts or (content.whole,)
        name = content.title if not content.parts else ""
        shown = [rows_html(part.rows, self.info, part.name or name) for part in parts]
        if len(parts) <= 3:
            shown += [strip_html(part.strip) for part in parts if part.strip is not None]
        return "".join(map(str, shown))


class Explanation:
    """The accounts of one prompt in several frameworks, with what it shares with earlier ones."""

    def __init__(self, comparison: Comparison, rows: Sequence[RowSpec] = ()) -> None:
        self.comparison = comparison
        self._rows = tuple(rows)
        self.answers = comparison.answers
        self.difference = comparison.difference
        self.what_ifs = comparison.what_ifs
        self.refused = comparison.refused

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; what ``handoff explain --json`` prints."""
        return self.comparison.to_dict()

    def to_pandas(self) -> pd.DataFrame:
        """The ledger of all prompts in all rows."""
        return Ledger(entry for each in self.answers for entry in each.entries).to_pandas()

    @cached_property
    def plot(self) -> Plots:
        """The figures; ``staircase`` goes up to four times the longest smallest prompt."""
        return Plots(None, self.to_pandas, stairs=self._stairs if self._rows else None)

    def _stairs(self) -> pd.DataFrame:
        from .curves import lengths_to, stair_points

        longest = max((each.smallest or 0 for each in self.answers), default=0)
        return stair_points(self._rows, lengths_to(max(64, 4 * longest)))

    def write(self, folder: str | Path) -> list[Path]:
        """``explain.json``, ``explain.txt`` and the strip as ``strip.svg`` into ``folder``."""
        import json

        from .saved import write_file

        out = Path(folder)
        said = json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False)
        texts = {"explain.json": f"{said}\n", "explain.txt": f"{self!r}\n"}
        if self.answers:
            texts["strip.svg"] = self.plot.strip(self.comparison.name).svg()

        def kept(name: str, text: str) -> Path:
            return write_file(out / name, lambda: (out / name).write_text(text, "utf-8"))

        return [kept(name, text) for name, text in texts.items()]

    def __repr__(self) -> str:
        return repr(self.comparison)

    def _repr_html_(self) -> str:
        from markupsafe import escape

        from .explain.text import sentence, strip_of
        from .report.notebook import strip_html

        said = escape(" ".join(sentence(self.comparison)))
        shown = strip_html(strip_of(self.comparison)) if self.answers else ""
        reasons = [escape(f"{run}: {why}") for run, why in self.refused.items()]
        refused = "".join(f"<div>{reason}</div>" for reason in reasons)
        return f"<div>{said}</div>{refused}{shown}"


class _Points:
    """A table of points with one figure."""

    def __init__(self, points: pd.DataFrame) -> None:
        self._points = points

    def to_pandas(self) -> pd.DataFrame:
        """The points, one row each."""
        return self._points.copy()

    def __repr__(self) -> str:
        return str(self._points.to_string(index=False))

    def _repr_html_(self) -> str:
        return str(self._points.to_html(index=False))


class Sweep(_Points):
    """One run for each pool size, with what no pool and no order of eviction could beat.

    ``runs`` are in order of size; ``best`` is what a cache that knows the future would hit at each
    size, ``ceiling`` the same with an unlimited pool (see ``handoff.optimum``).
    """

    def __init__(self, points: pd.DataFrame, runs: Sequence[Run], best: Sequence[Optimum]) -> None:
        super().__init__(points)
        self.runs = list(runs)
        self.best = {each.pool_tokens: each for each in best if each.pool_tokens is not None}
        self.ceiling = next(each for each in best if each.pool_tokens is None)

    @cached_property
    def plot(self) -> Plots:
        """``pool_curve()``; the other figures are those of one of ``runs``."""
        best = {size: each.hit_ratio for size, each in self.best.items()}
        info = self.runs[0].info
        return Plots(info, pools=self._points, ceiling=self.ceiling.hit_ratio, best=best)

    def write(self, folder: str | Path) -> list[Path]:
        """``sweep.csv`` and ``pool_curve.svg`` into ``folder``."""
        return _write_points(self, Path(folder), "sweep", "pool_curve", self.plot.pool_curve)


class Stairs(_Points):
    """Hit tokens of a prompt that is sent twice, by its length."""

    @cached_property
    def plot(self) -> Plots:
        """``staircase()``."""
        return Plots(stairs=lambda: self._points)

    def write(self, folder: str | Path) -> list[Path]:
        """``stairs.csv`` and ``staircase.svg`` into ``folder``."""
        return _write_points(self, Path(folder), "stairs", "staircase", self.plot.staircase)


def _write_points(
    points: _Points, out: Path, name: str, figure: str, draw: Callable[[], Any]
) -> list[Path]:
    from .saved import write_file

    table, picture = out / f"{name}.csv", out / f"{figure}.svg"
    drawn = draw()
    return [
        write_file(table, lambda: points.to_pandas().to_csv(table, index=False)),
        write_file(picture, lambda: drawn.save(picture)),
    ]


def _text(render: Callable[[Any], None], width: int = 100) -> str:
    """What ``render`` prints on a console without colour."""
    from rich.console import Console

    stream = StringIO()
    render(Console(file=stream, width=width, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
