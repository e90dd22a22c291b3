"""The ``handoff`` command: thin commands over the library, one line for every mistake.

Exit codes: 0 fine, 1 a check failed, 2 bad input, 130 interrupted. Tables go to standard output,
progress and errors to standard error.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .errors import BadInput, HandoffError

if TYPE_CHECKING:
    from .experiment import RowSpec

__all__ = ["app", "main"]

app = typer.Typer(
    name="handoff",
    help="What five LLM inference frameworks do after a prefix-cache hit, and what it saves.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(help="Speed: the planner on a public trace, kernels against baselines.")
app.add_typer(bench_app, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="ADAPTER.OPTION=VALUE", help="An option value; repeatable."),
]
Adapters = Annotated[
    list[str],
    typer.Option("--adapters", "--adapter", metavar="NAME[,NAME]", help="Only these adapters."),
]
Rows = Annotated[
    list[str],
    typer.Option(
        "--row", metavar="ADAPTER:OPTION=VALUE,...", help="One more row with options of its own."
    ),
]
Pasted = Annotated[
    list[str],
    typer.Option(
        "--from", metavar="COMMAND", help="One more row from a server's command line, quoted."
    ),
]
PoolTokens = Annotated[
    int | None,
    typer.Option("--pool-tokens", min=1, help="One memory budget for all rows, in tokens."),
]


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; every user error is one line and exit code 2.

    A broken invariant of our own is one line and exit code 1: a check that failed.
    """
    for stream in (sys.stdout, sys.stderr):  # a locale without our characters costs only them
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = app(args=argv, prog_name="handoff", standalone_mode=False)
    except SystemExit:  # how click ends when nobody reads on (head -1): no failure
        sys.exit(0)
    except HandoffError as error:
        if "--debug" in (argv or sys.argv):
            raise
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:  # a path that cannot be used and that nobody named before
        _fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except Exception as error:  # usage errors: their class moved between versions of typer
        message = getattr(error, "format_message", None)
        if message is None:
            if "--debug" in (argv or sys.argv):
                raise
            _internal(error)
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            sys.exit(2)
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "handoff"
        said = message().rstrip(".")
        _fail(f"{said}{'' if said.endswith('?') else '.'} See: {path} --help")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"error {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _internal(error: Exception) -> NoReturn:
    """A check of our own failed: what, where, and how to see more."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    place = f"{Path(last.filename).name}, line {last.lineno:,}"
    print(
        f"internal error {what} ({place}). A bug; handoff --debug ... shows where", file=sys.stderr
    )
    sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"handoff {version('handoff')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options that all commands share."""


# -- what is there ---------------------------------------------------------------------------


@app.command()
def adapters(
    name: Annotated[str | None, typer.Argument(help="Show one adapter with its options.")] = None,
    left_out: Annotated[
        bool, typer.Option("--left-out", help="Show what is not modelled, and why.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List adapters: pinned version, evidence, options with upstream's defaults."""
    from .listing import adapter_facts, show_adapter, show_adapters

    if as_json:
        from .adapter import names

        chosen = names() if name is None else [name]
        _print_json([adapter_facts(each) for each in chosen])
    elif name is not None:
        show_adapter(name, left_out=left_out)
    else:
        show_adapters(left_out=left_out)


@app.command()
def scenarios(as_json: Json = False) -> None:
    """List the built-in scenarios and the question each of them asks."""
    from .workload.scenario import builtin, load_scenario

    found = [load_scenario(name) for name in builtin()]
    if as_json:
        _print_json(
            [
                {"name": s.name, "question": s.question, "notice": s.notice.strip()}
                | {"requests": len(s.requests)}
                for s in found
            ]
        )
        return
    from .listing import show_scenarios

    show_scenarios(found)


# -- runs --------------------------------------------------------------------------------------


@app.command("run")
def run_command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO|FILE]...",
            help="Built-in scenarios, YAML files or Mooncake-format .jsonl[.gz]; default: all.",
        ),
    ] = None,
    adapters: Adapters = [],  # noqa: B006
    execute: Annotated[
        bool | None,
        typer.Option(
            "--execute/--plan-only",
            help="Execute every Step and compare with a cold recompute (default for scenarios).",
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006
    rows: Rows = [],  # noqa: B006
    pasted: Pasted = [],  # noqa: B006
    pool_tokens: PoolTokens = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N requests of a trace.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model preset or config.json whose FLOPs are counted.")
    ] = "llama-3.1-8b",
    device: Annotated[str, typer.Option(help="Device of the roofline times.")] = "H200",
    seed: Annotated[int, typer.Option(help="Seed of weights, sampler and drafter.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of ledger and report.")] = Path("out"),
    bad_lines: Annotated[
        str, typer.Option(help="Unreadable trace lines: stop, or skip (and count).")
    ] = "stop",
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a Perfetto / Chrome trace.")
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write counters as Prometheus text.")
    ] = None,
    day: Annotated[
        str | None,
        typer.Option("--date", metavar="YYYY-MM-DD", help="Date of the report; default: today."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what an interrupted run finished in --out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve scenarios or a trace with every adapter; tables, ledger and report."""
    from .commands.run import run_command as serve
    from .session import RunPlan

    if bad_lines not in ("stop", "skip"):
        raise BadInput(f"--bad-lines is stop or skip, not {bad_lines!r}")
    plan = RunPlan(
        sources=list(sources or ()),
        adapters=_names(adapters),
        sets=_sets(sets),
        extra=_rows(rows, pasted),
        pool_tokens=pool_tokens,
        execute=execute,
        limit=limit,
        model=model,
        device=device,
        seed=seed,
        out=out,
        skip_bad=bad_lines == "skip",
        resume=resume,
        command=_command_line(),
        today=day,
    )
    raise typer.Exit(serve(plan, perfetto=perfetto, prometheus=prometheus, as_json=as_json))


@app.command()
def conform(
    path: Annotated[Path, typer.Argument(help="A folder of recordings, or one file of it.")],
    adapter: Annotated[
        str | None, typer.Option(help="Adapter; default: the folder's name.")
    ] = None,
    config: Annotated[
        list[str], typer.Option(metavar="NAME", help="Only these configurations; repeatable.")
    ] = [],  # noqa: B006
    require: Annotated[int, typer.Option(min=0, help="Fail unless at least N cases agree.")] = 0,
    workloads: Annotated[Path | None, typer.Option(help="Workloads file.")] = None,
    configs: Annotated[Path | None, typer.Option(help="Configurations file.")] = None,
    line: Annotated[int | None, typer.Option(min=1, help="Only this line of a file.")] = None,
    tags: Annotated[
        bool, typer.Option("--tags", help="Also run the content-tag pass over every Step.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Replay recordings of upstream against an adapter, case by case."""
    from .commands.conform import conform_command

    raise typer.Exit(
        conform_command(
            path,
            adapter=adapter,
            configs=config,
            require=require,
            workloads=workloads,
            configs_file=configs,
            line=line,
            tags=tags,
            as_json=as_json,
        )
    )


@app.command()
def explain(
    prompts: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help="Prompts in order: JSON token ids, or text files with --tokenizer.",
        ),
    ] = None,
    shared: Annotated[
        int | None, typer.Option(min=0, help="Instead of files: two prompts that share N tokens.")
    ] = None,
    tail: Annotated[int, typer.Option(min=0, help="... and end in N private tokens each.")] = 16,
    request: Annotated[
        str | None, typer.Option(help="One request of a past run (--ledger) by its id.")
    ] = None,
    ledger: Annotated[Path, typer.Option(help="The ledger that --request is in.")] = Path(
        "out/ledger.parquet"
    ),
    scenario: Annotated[str | None, typer.Option(help="Its scenario, if several have it.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="A local tokenizer.json.")] = None,
    adapters: Adapters = [],  # noqa: B006
    only: Annotated[list[str], typer.Option(metavar="NAME", help="The same as --adapters.")] = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    rows: Rows = [],  # noqa: B006
    pasted: Pasted = [],  # noqa: B006
    what_if: Annotated[
        list[str],
        typer.Option(
            "--what-if", metavar="[ADAPTER.]OPTION=VALUE", help="Also with this option; repeatable."
        ),
    ] = [],  # noqa: B006
    pool_tokens: PoolTokens = None,
    model: Annotated[str, typer.Option(help="Model whose FLOPs are counted.")] = "llama-3.1-8b",
    device: Annotated[str, typer.Option(help="Device of the roofline times.")] = "H200",
    six: Annotated[
        bool | None, typer.Option("--six/--reasons", help="All six answers, or the losses.")
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Every rule in order.")] = False,
    as_json: Json = False,
) -> None:
    """Where did each token of the last prompt go, in each framework, and why?"""
    from .commands.explain import explain_command

    explain_command(
        list(prompts or ()),
        pair=(shared, tail) if shared is not None else None,
        request=(request, ledger, scenario) if request is not None else None,
        tokenizer=tokenizer,
        adapters=_names([*adapters, *only]),
        sets=_sets(sets),
        extra=_rows(rows, pasted),
        what_ifs=what_if,
        pool_tokens=pool_tokens,
        model=model,
        device=device,
        six=six,
        steps=steps,
        as_json=as_json,
    )


@app.command()
def sweep(
    source: Annotated[str, typer.Argument(metavar="SCENARIO|FILE", help="What is served.")],
    pools: Annotated[
        str, typer.Option(metavar="N,N[,N]...", help="Pool sizes in tokens, at least two.")
    ],
    adapters: Adapters = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    rows: Rows = [],  # noqa: B006
    pasted: Pasted = [],  # noqa: B006
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N requests of a trace.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model whose KV bytes are shown.")] = "llama-3.1-8b",
    out: Annotated[Path, typer.Option(help="Folder of table and figure.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """What would a larger pool bring? Hit ratios by pool size, and the best eviction could do."""
    from .commands.sweep import sweep_command

    sizes = [part.strip() for part in pools.split(",") if part.strip()]
    if not all(part.isdigit() and int(part) > 0 for part in sizes):
        raise BadInput(f"--pools {pools}: give sizes in tokens, as 4096,8192")
    sweep_command(
        source,
        [int(part) for part in sizes],
        adapters=_names(adapters),
        sets=_sets(sets),
        extra=_rows(rows, pasted),
        limit=limit,
        model=model,
        out=out,
        as_json=as_json,
    )


@app.command()
def verify(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="[SCENARIO]...", help="Default: all built-in.")
    ] = None,
    adapters: Adapters = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of weights and sampler.")] = 0,
    as_json: Json = False,
) -> None:
    """Execute scenarios, compare logits with cold runs, plant faults and expect to catch them."""
    from .commands.verify import verify_command

    code = verify_command(
        list(scenarios or ()),
        adapters=_names(adapters),
        sets=_sets(sets),
        dtype=dtype,
        device=device,
        seed=seed,
        as_json=as_json,
    )
    raise typer.Exit(code)


@bench_app.command("trace")
def bench_trace(
    trace: Annotated[Path, typer.Argument(help="A Mooncake-format trace.")],
    adapter: Annotated[str, typer.Option(help="Adapter to measure.")],
    sets: Annotated[
        list[str], typer.Option("--set", metavar="OPTION=VALUE", help="An option; repeatable.")
    ] = [],  # noqa: B006
    pool_tokens: PoolTokens = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    mode: Annotated[
        str, typer.Option(help="serial (one request after the other) or scheduler.")
    ] = "serial",
    step_ms: Annotated[float, typer.Option(min=0.001, help="Step time in scheduler mode.")] = 20.0,
    hits: Annotated[
        Path | None, typer.Option(help="Upstream's replay (JSON[.gz]) whose hits must be equal.")
    ] = None,
    tables: Annotated[
        Path | None, typer.Option(help="The same for the block tables' checksums.")
    ] = None,
    finish: Annotated[
        Path | None, typer.Option(help="The same for finish order and final tables.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan a whole trace, measure CPU time, and compare with a replay of upstream."""
    from .commands.bench import bench_trace_command

    code = bench_trace_command(
        trace,
        adapter=adapter,
        sets=_sets([text if "." in text.split("=")[0] else f"{adapter}.{text}" for text in sets]),
        pool_tokens=pool_tokens,
        limit=limit,
        mode=mode,
        step_ms=step_ms,
        references={"hits": hits, "table_crc": tables, "finish": finish},
        as_json=as_json,
    )
    raise typer.Exit(code)


@bench_app.command("kernels")
def bench_kernels(
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: what is there.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls per shape.")] = 9,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Time attention kernels beside baselines; ratios of one run."""
    from .commands.bench import bench_kernels_command

    raise typer.Exit(bench_kernels_command(device, repeats, out, as_json=as_json))


@app.command()
def report(
    ledgers: Annotated[
        list[Path],
        typer.Argument(metavar="LEDGER...", help="ledger.parquet files, or their folders."),
    ],
    formats: Annotated[str, typer.Option("--format", help="html, md, or both: html,md.")] = (
        "html,md"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("report"),
) -> None:
    """Write the report page and its Markdown from ledgers of earlier runs."""
    from .commands.report import report_command

    report_command(ledgers, [part.strip() for part in formats.split(",")], out)


# -- helpers -----------------------------------------------------------------------------------


def _names(given: list[str]) -> list[str]:
    """Adapter names of ``--adapters``, comma separated or repeated; all installed by default."""
    from .adapter import load, names

    chosen = [part.strip() for item in given for part in item.split(",") if part.strip()]
    if given and not chosen:
        raise BadInput("--adapters names no adapter")
    for name in chosen:
        load(name)
    return list(dict.fromkeys(chosen)) or names()


def _sets(given: list[str]) -> dict[str, dict[str, Any]]:
    """``--set`` values by adapter; values are read as YAML scalars, names are checked."""
    from .adapter import load, make_options
    from .workload.document import read_value

    found: dict[str, dict[str, Any]] = {}
    for text in given:
        name, dot, rest = text.partition(".")
        option, equals, value = rest.partition("=")
        if not (dot and equals and name and option):
            raise BadInput(f"--set {text}: give ADAPTER.OPTION=VALUE")
        load(name)
        found.setdefault(name, {})[option] = read_value(value)
    for name, values in found.items():
        make_options(load(name), values)
    return found


def _rows(rows: list[str], pasted: list[str]) -> list[RowSpec]:
    """Rows of ``--row`` and ``--from``; says which flags of a server were ignored."""
    if not rows and not pasted:
        return []
    from .commandline import parse_row, parse_server

    found = [parse_row(text) for text in rows]
    for text in pasted:
        row, ignored = parse_server(text)
        found.append(row)
        if ignored:
            print(f"{row.label}: without effect here: {' '.join(ignored)}", file=sys.stderr)
    return found


def _command_line() -> str:
    import shlex

    return shlex.join(["handoff", *sys.argv[1:]])


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False))
