"""The Python API: run, explain, sweep, and the objects that show what came out.

    >>> import handoff
    >>> found = handoff.run("mid-block", adapters=["vllm", "sglang"])
    >>> [(row.label, row.hit) for row in found.totals]
    [('vLLM', 32), ('SGLang', 34)]

Every object has ``to_pandas()``, ``.plot`` with the figures that its data allow, ``write(folder)``
and shows itself: the terminal's text in a console, a table in a notebook. Nothing is executed
unless ``execute=True``; then torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapter import load, make_options, names
from .errors import BadInput
from .experiment import RowSpec, rows_of
from .explain import Comparison, Prompt, explain_request, read_prompt, shorthand, what_if
from .explain import explain as explain_prompts
from .index.spans import Seq
from .ledger.entries import Ledger
from .plots import Plots
from .session import Result, RunPlan, execute
from .workload.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from .report.info import RunInfo
    from .report.totals import Total

__all__ = ["Explanation", "Run", "Stairs", "Sweep", "explain", "load_ledger", "run"]
__all__ += ["stairs", "sweep"]

MODEL, DEVICE = "llama-3.1-8b", "H200"
Values = Mapping[str, Mapping[str, Any]]
RowLike = RowSpec | str
PromptLike = Prompt | Seq | str | Path | Sequence[int]


def run(
    *sources: str | Path | Scenario,
    adapters: Sequence[str] | None = None,
    options: Values | None = None,
    rows: Sequence[RowLike] = (),
    pool_tokens: int | None = None,
    execute: bool = False,
    limit: int | None = None,
    model: str = MODEL,
    device: str = DEVICE,
    seed: int = 0,
    date: str | None = None,
) -> Run:
    """Serve scenarios or traces with several frameworks; what ``handoff run`` does.

    * ``sources``: built-in scenarios by name (all, if none is given), ``Scenario`` objects, YAML
      files, Mooncake-format traces.
    * ``adapters``: all installed ones if not given; ``options``: their values, by adapter.
    * ``rows``: further rows, ``"vllm:block_size=32"`` or a server's command line
      (``"vllm serve MODEL --block-size 32"``).
    * ``pool_tokens``: one memory budget for all rows; ``limit``: only so many requests of a trace.
    * ``execute``: execute every Step and compare with a cold recompute.
    * ``model``, ``device``: whose FLOPs and seconds are counted; ``date``: the one that reports
      print (today).

    >>> import handoff
    >>> found = handoff.run("mid-block", adapters=["vllm"], rows=["vllm:block_size=2"])
    >>> list(found.to_pandas().groupby("run").hit_tokens.sum().items())
    [('vllm', 32), ('vllm:block_size=2', 34)]

    Raises ``HandoffError`` for unknown names, files that cannot be read, options out of range.
    """
    plan = RunPlan(
        sources=[each if isinstance(each, Scenario) else str(each) for each in sources],
        adapters=_adapters(adapters),
        command=_call(
            "run",
            [each.name if isinstance(each, Scenario) else str(each) for each in sources],
            adapters=adapters,
            options=options,
            rows=[_said(each) for each in rows],
            pool_tokens=pool_tokens,
            execute=execute,
            limit=limit,
            model=model if model != MODEL else None,
            device=device if device != DEVICE else None,
            seed=seed,
        ),
        sets=_options(options),
        extra=[_row(each) for each in rows],
        pool_tokens=pool_tokens,
        execute=execute,
        limit=limit,
        model=model,
        device=device,
        seed=seed,
        today=date,
    )
    return _run(plan)


def load_ledger(*paths: str | Path) -> Run:
    """A run as it was written; each path is a ``ledger.parquet`` or the folder it is in.

    >>> import handoff, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = handoff.run("mid-block", adapters=["vllm"]).write(folder)
    >>> handoff.load_ledger(folder).totals[0].hit
    32
    """
    from .saved import read

    return Run(read([Path(path) for path in paths]))


def explain(
    prompts: Sequence[PromptLike] | None = None,
    *,
    shared: int | None = None,
    tail: int = 16,
    tokenizer: str | Path | None = None,
    adapters: Sequence[str] | None = None,
    options: Values | None = None,
    rows: Sequence[RowLike] = (),
    what_ifs: Sequence[str] = (),
    pool_tokens: int | None = None,
    model: str = MODEL,
    device: str = DEVICE,
) -> Explanation:
    """Where each token of the last prompt went, in each framework, and why.

    ``prompts`` are served in their order: token ids, ``Seq``, ``Prompt``, or paths of JSON or (with
    ``tokenizer``) text files. Instead of them, ``shared`` and ``tail`` make two prompts that share
    their first ``shared`` tokens and end in ``tail`` private ones each.

    >>> import handoff
    >>> why = handoff.explain(shared=34, tail=6, adapters=["vllm", "sglang"])
    >>> {answer.entry.adapter: answer.entry.hit_tokens for answer in why.answers}
    {'vllm': 32, 'sglang': 34}
    >>> why.answers[0].smallest
    17
    """
    if (prompts is None) == (shared is None):
        raise BadInput("explain needs either prompts or shared=N")
    given = shorthand(shared, tail) if shared is not None else _prompts(prompts or (), tokenizer)
    if not given or not all(len(prompt.tokens) for prompt in given):
        raise BadInput("explain needs at least one prompt, and each needs a token")
    chosen = _adapters(adapters)
    specs = rows_of(None, chosen, _options(options), [_row(each) for each in rows])
    found = explain_prompts(
        given,
        specs,
        what_ifs=[each for text in what_ifs for each in what_if(text, chosen)],
        pool_tokens=pool_tokens,
        model=model,
        device=device,
    )
    return Explanation(found, specs)


def sweep(
    source: str | Path,
    pools: Sequence[int],
    *,
    adapters: Sequence[str] | None = None,
    options: Values | None = None,
    rows: Sequence[RowLike] = (),
    limit: int | None = None,
    model: str = MODEL,
    device: str = DEVICE,
) -> Sweep:
    """The same requests with several pools; ``.plot.pool_curve()`` shows what memory buys.

    >>> import handoff
    >>> curve = handoff.sweep("small-pool", [512, 4096], adapters=["vllm"])
    >>> curve.to_pandas().hit_tokens.tolist(), curve.best[512].hit_tokens
    ([256, 400], 420)
    >>> curve.ceiling.hit_tokens
    420
    """
    from .curves import requests_of, sweep_points
    from .optimum import optimum

    plan = RunPlan(
        sources=[str(source)],
        adapters=_adapters(adapters),
        command=_call("sweep", [str(source), list(pools)], adapters=adapters, limit=limit),
        sets=_options(options),
        extra=[_row(each) for each in rows],
        limit=limit,
        model=model,
        device=device,
    )
    points, runs = sweep_points(plan, pools)
    best = optimum(requests_of(str(source), limit), [*sorted(set(pools)), None])
    return Sweep(points, [Run(each) for each in runs], best)


def stairs(
    longest: int = 200,
    *,
    lengths: Sequence[int] | None = None,
    adapters: Sequence[str] | None = None,
    options: Values | None = None,
    rows: Sequence[RowLike] = (),
) -> Stairs:
    """What a prompt of each length hits when it is sent twice; at most six rows can be drawn.

    The lengths where the hit jumps are added to those given.

    >>> import handoff
    >>> steps = handoff.stairs(lengths=[16, 17, 33], adapters=["vllm"])
    >>> steps.to_pandas().query("hit_tokens > 0").groupby("run").prompt_tokens.min().to_dict()
    {'vllm': 17}
    """
    from .curves import lengths_to, stair_points

    specs = rows_of(None, _adapters(adapters), _options(options), [_row(each) for each in rows])
    return Stairs(stair_points(specs, list(lengths or lengths_to(longest))))


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

    def __init__(self, points: pd.DataFrame, runs: Sequence[Run], best: Sequence[Any]) -> None:
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


# -- what callers give ---------------------------------------------------------------------------


def _run(plan: RunPlan) -> Run:
    return Run(execute(plan))


def _adapters(given: Sequence[str] | None) -> list[str]:
    if isinstance(given, str):
        raise BadInput(f"adapters is a list of names: give [{given!r}]")
    chosen = list(names() if given is None else given)
    for name in chosen:
        load(name)
    return list(dict.fromkeys(chosen))


def _options(given: Values | None) -> dict[str, dict[str, Any]]:
    found = {name: dict(values) for name, values in (given or {}).items()}
    for name, values in found.items():
        make_options(load(name), values)
    return found


def _row(given: RowLike) -> RowSpec:
    from .commandline import parse_row, parse_server

    if isinstance(given, RowSpec):
        return given
    return parse_server(given).row if " " in given.strip() else parse_row(given)


def _said(given: RowLike) -> str:
    return given.label if isinstance(given, RowSpec) else given


def _prompts(given: Sequence[PromptLike], tokenizer: str | Path | None) -> list[Prompt]:
    found = []
    for number, prompt in enumerate(given, 1):
        if isinstance(prompt, Prompt):
            found.append(prompt)
        elif isinstance(prompt, Seq):
            found.append(Prompt(f"prompt-{number}", prompt))
        elif isinstance(prompt, (str, Path)):
            found.append(read_prompt(Path(prompt), Path(tokenizer) if tokenizer else None))
        else:
            found.append(Prompt(f"prompt-{number}", Seq(int(token) for token in prompt)))
    return found


def _call(name: str, values: Sequence[Any], **more: Any) -> str:
    """The call as a reader could type it, for a report's footer."""
    words = [repr(value) for value in values]
    words += [f"{key}={value!r}" for key, value in more.items() if value]
    return f"handoff.{name}({', '.join(words)})"


def _text(render: Callable[[Any], None], width: int = 100) -> str:
    """What ``render`` prints on a console without colour."""
    from rich.console import Console

    stream = StringIO()
    render(Console(file=stream, width=width, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
