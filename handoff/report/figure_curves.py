"""Two figures of lines: hit ratio against pool size, and the staircase of hittable prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from . import findings
from .canvas import MARGIN, WIDTH, Canvas, Frame, Picture, apart, nice_ticks, text_width
from .palette import CLASSES, Theme, framework_mark
from .totals import common, totals
from .words import count, percent, short_count

__all__ = ["pool_curve", "pool_points", "staircase"]

_GAP = 11.0


def pool_points(ledgers: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """The points of a pool curve from one ledger per pool size (in tokens).

    Columns: pool_tokens, run, adapter, label, evidence, hit_tokens, prompt_tokens, hit_ratio.
    """
    points = []
    for pool, frame in sorted(ledgers.items()):
        for row in totals(common(frame)):
            values = (row.run, row.adapter, row.label, row.evidence, row.hit, row.prompt)
            points.append((pool, *values, row.hit_ratio))
    columns = ["pool_tokens", "run", "adapter", "label", "evidence", "hit_tokens", "prompt_tokens"]
    return pd.DataFrame(points, columns=[*columns, "hit_ratio"])


def pool_curve(
    points: pd.DataFrame,
    theme: Theme = "light",
    *,
    ceiling: float | None = None,
    best: Mapping[int, float] | None = None,
    pool_tokens: int | None = None,
    bytes_per_token: int | None = None,
    window: str = "",
) -> Picture:
    """Hit ratio against pool size on a log axis, one line a row; never smoothed.

    ``points`` as made by ``pool_points``; ``ceiling`` is the hit ratio of an unlimited pool,
    ``best`` that of an eviction which knows the future, by pool size; ``pool_tokens`` marks this
    run; ``bytes_per_token`` adds an axis in GiB. Raises ``ValueError`` for less than two sizes.
    """
    sizes = sorted({int(size) for size in points["pool_tokens"]})
    if len(sizes) < 2:
        raise ValueError("a pool curve needs at least two pool sizes")
    title = findings.pool_title(points, pool_tokens, ceiling)
    subtitle = f"{window}{'. ' if window else ''}Hit ratio = hit tokens / prompt tokens."
    canvas = Canvas(title, subtitle, 420, theme)
    top_value = max([float(points["hit_ratio"].max()), ceiling or 0.0, *(best or {}).values()])
    high = nice_ticks(0, max(top_value, 0.01) * 1.12, 6)
    names = {str(run): str(group["label"].iloc[0]) for run, group in points.groupby("run")}
    room = max(
        text_width(f"{name}  00.0 % at {short_count(sizes[-1])}", 8.5) for name in names.values()
    )
    left = 58.0
    width = WIDTH - MARGIN - left - room - 22
    ends = (float(sizes[0]), float(sizes[-1]))
    y_ends = (0.0, max(high[-1], top_value * 1.05))
    frame = Frame(left, canvas.below_title + 12, width, 236, ends, y_ends, True)
    canvas.upright(frame, [(tick, f"{100 * tick:g}") for tick in high], "hit ratio, %", grid=True)
    _oracle(canvas, frame, points, best)
    if ceiling is not None:
        y = frame.y(ceiling)
        canvas.line((frame.left, frame.right), (y, y), linewidth=1.2)
        text = f"ceiling, unlimited pool: {percent(ceiling)} %"
        canvas.text(frame.left + 6, y - 7, text, size=8.5)
    if pool_tokens is not None and ends[0] <= pool_tokens <= ends[1]:
        x = frame.x(pool_tokens)
        style = {"linestyle": (0, (1, 1.5)), "color": canvas.look.outline}
        canvas.line((x, x), (frame.top, frame.bottom), **style)
        text = f"this run: {short_count(pool_tokens)}"
        right = x + text_width(text, 8) + 6 < frame.right
        place, align = (x + 4, "left") if right else (x - 4, "right")
        canvas.text(place, frame.bottom - 8, text, size=8, color=canvas.look.muted, align=align)
    _lines(canvas, frame, points, names, pool_tokens)
    bottom = frame.bottom
    canvas.axis([(frame.x(s), short_count(s)) for s in sizes], bottom, "pool, tokens (log scale)")
    if bytes_per_token is not None:
        bottom += 42
        giga = [(frame.x(size), _round(size * bytes_per_token / 2**30)) for size in sizes]
        canvas.axis(giga, bottom, f"GiB ({count(bytes_per_token)} bytes a token)")
    canvas.trim(bottom + 34)
    return canvas.picture(f"{title}. {_numbers(points, names)}")


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _oracle(
    canvas: Canvas, frame: Frame, points: pd.DataFrame, best: Mapping[int, float] | None
) -> None:
    """The best possible eviction, and the gap that the order of eviction costs."""
    if not best:
        return
    sizes = sorted(best)
    xs = [frame.x(size) for size in sizes]
    high = [frame.y(best[size]) for size in sizes]
    reached = points.groupby("pool_tokens")["hit_ratio"].max()
    if set(sizes) <= set(reached.index):
        low = [frame.y(float(reached.loc[size])) for size in sizes]
        face = CLASSES["evicted"].colour
        canvas.axes.fill_between(xs, low, high, color=face, alpha=0.13, linewidth=0)
    canvas.line(xs, high, linestyle=(0, (3, 2)))
    text = "best possible eviction (knows the future); shaded: what the order of eviction costs"
    lines = canvas.fold(text, 150, 8)
    for at, line in enumerate(lines):
        y = frame.top + 0.22 * frame.height + at * 10.5
        canvas.text(frame.left + 8, y, line, size=8, color=canvas.look.muted)


def _lines(
    canvas: Canvas,
    frame: Frame,
    points: pd.DataFrame,
    names: Mapping[str, str],
    pool_tokens: int | None,
) -> None:
    ends, texts = [], []
    for run in dict.fromkeys(points["run"]):
        mine = points[points["run"] == run].sort_values("pool_tokens")
        mark = framework_mark(str(mine["adapter"].iloc[0]))
        xs = [frame.x(float(size)) for size in mine["pool_tokens"]]
        ys = [frame.y(float(ratio)) for ratio in mine["hit_ratio"]]
        face = canvas.look.background
        style = {"linestyle": mark.dash, "marker": mark.marker, "markersize": 4.6}
        canvas.line(xs, ys, linewidth=1.6, markerfacecolor=face, markeredgewidth=1.0, **style)
        shown = mine[mine["pool_tokens"] == pool_tokens] if pool_tokens is not None else mine[:0]
        at = shown.iloc[0] if len(shown) else mine.iloc[-1]
        size = short_count(int(at["pool_tokens"]))
        texts.append(f"{names[str(run)]}  {percent(float(at['hit_ratio']))} % at {size}")
        ends.append(ys[-1])
    for y, place, text in zip(ends, apart(ends, _GAP), texts, strict=True):
        look = {"color": canvas.look.outline, "linewidth": 0.7}
        canvas.line((frame.right + 4, frame.right + 12), (y, place), **look)
        canvas.text(frame.right + 14, place, text, size=8.5)


def _numbers(points: pd.DataFrame, names: Mapping[str, str]) -> str:
    parts = []
    for run, mine in points.groupby("run", sort=False):
        said = ", ".join(
            f"{percent(float(ratio))} % at {count(int(size))}"
            for size, ratio in zip(mine["pool_tokens"], mine["hit_ratio"], strict=True)
        )
        parts.append(f"{names[str(run)]}: {said} tokens.")
    return " ".join(parts)


def staircase(
    points: pd.DataFrame,
    theme: Theme = "light",
    *,
    formulas: Mapping[str, str] | None = None,
    measured: Sequence[tuple[int, int]] = (),
) -> Picture:
    """Hit tokens against the length of a prompt that is sent twice; at most six lines.

    ``points``: columns run, adapter, label, prompt_tokens, hit_tokens. ``formulas`` gives each
    row's closed formula in words, ``measured`` (prompt, hit) pairs seen on a live engine. Raises
    ``ValueError`` for no or more than six rows.
    """
    runs = list(dict.fromkeys(str(run) for run in points["run"]))
    if not 1 <= len(runs) <= 6:
        raise ValueError(f"a staircase shows one to six rows, not {len(runs)}")
    groups = {run: points[points["run"] == run].sort_values("prompt_tokens") for run in runs}
    smallest = {run: _smallest(group) for run, group in groups.items()}
    title = findings.staircase_title(list(smallest.values()))
    subtitle = "The same prompt sent twice, empty pool, no pressure."
    if measured:
        subtitle += " Dots: lengths measured on a live engine."
    canvas = Canvas(title, subtitle, 420, theme)
    longest = int(points["prompt_tokens"].max())
    frame = Frame(64, canvas.below_title + 14, 330, 270, (0, longest), (0, longest))
    ticks = [(tick, count(round(tick))) for tick in nice_ticks(0, longest, 6)]
    canvas.upright(frame, ticks, "hit tokens")
    canvas.axis([(frame.x(t), text) for t, text in ticks], frame.bottom, "prompt tokens")
    thin = {"color": canvas.look.outline, "linewidth": 0.8}
    canvas.line((frame.left, frame.right), (frame.bottom, frame.top), **thin)
    ends = []
    seen: list[str] = []
    for run, group in groups.items():
        xs = [frame.x(float(n)) for n in group["prompt_tokens"]]
        ys = [frame.y(float(n)) for n in group["hit_tokens"]]
        adapter = str(group["adapter"].iloc[0])
        style = {"linestyle": framework_mark(adapter).dash, "drawstyle": "steps-post"}
        canvas.line(xs, ys, linewidth=max(0.6, 1.9 - 0.8 * seen.count(adapter)), **style)
        seen.append(adapter)
        ends.append(ys[-1])
        least = smallest[run]
        if least is not None:
            canvas.dots([frame.x(least)], [frame.bottom], 26, marker="^", color=canvas.look.ink)
    hollow = {"facecolors": canvas.look.background, "edgecolors": canvas.look.ink}
    for prompt, hit in measured:
        canvas.dots([frame.x(prompt)], [frame.y(hit)], 30, linewidths=1.2, **hollow)
    _stairs(canvas, frame, groups, smallest, formulas or {}, ends)
    canvas.trim(frame.bottom + 34)
    said = "; ".join(
        f"{group['label'].iloc[0]}: {_least(smallest[run])}" for run, group in groups.items()
    )
    return canvas.picture(f"{title}. {said}.")


def _stairs(
    canvas: Canvas,
    frame: Frame,
    groups: Mapping[str, pd.DataFrame],
    smallest: Mapping[str, int | None],
    formulas: Mapping[str, str],
    ends: Sequence[float],
) -> None:
    """The words beside the lines: label, formula, smallest prompt; never on each other."""
    pitch = 46.0 if formulas else 34.0
    places = apart([max(end, frame.top + 10) for end in ends], pitch)
    lowest = frame.top + 8
    shift = max(0.0, lowest - min(places))
    x = frame.right + 30
    for (run, group), end, place in zip(groups.items(), ends, places, strict=True):
        y = place + shift
        look = {"color": canvas.look.outline, "linewidth": 0.7}
        canvas.line((frame.right + 4, x - 4), (end, y), **look)
        canvas.text(x, y, str(group["label"].iloc[0]), size=9, bold=True)
        lines = [formulas[run]] if run in formulas else []
        for at, text in enumerate([*lines, _least(smallest[run])]):
            canvas.text(x, y + 12 * (at + 1), text, size=8.5, color=canvas.look.muted)


def _smallest(group: pd.DataFrame) -> int | None:
    hits = group[group["hit_tokens"] > 0]
    return int(hits["prompt_tokens"].min()) if len(hits) else None


def _least(smallest: int | None) -> str:
    return (
        "no prompt shown here can hit" if smallest is None else f"smallest prompt {count(smallest)}"
    )
