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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .adapter import load, make_options, names
from .errors import BadInput
from .experiment import RowSpec, rows_of
from .explain import Prompt, read_prompt, shorthand, what_if
from .explain import explain as explain_prompts
from .index.spans import Seq
from .results import Explanation, Run, Stairs, Sweep
from .session import RunPlan, execute
from .workload.scenario import Scenario

__all__ = [
    "Explanation",
    "Run",
    "Stairs",
    "Sweep",
    "explain",
    "load_ledger",
    "run",
    "stairs",
    "sweep",
]

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
