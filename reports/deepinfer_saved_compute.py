"""Writes ``deepinfer-saved-compute.md`` and its figure; run it as a script.

One prompt, growing hits, three truncation modes. Rows come from the adapter's Steps, FLOPs from its
estimator, which equals upstream's in every recorded call.
"""

from __future__ import annotations

from pathlib import Path

from handoff.adapters.deepinfer.options import Options
from handoff.adapters.deepinfer.saving import saved

from handoff.report.canvas import MARGIN, WIDTH, Canvas, Frame, Picture

HERE = Path(__file__).parent
LENGTH, KEEP, STEP = 1024, 256, 32
MODES = ("off", "mask", "compact")
DASHES = {"off": "solid", "mask": (0, (4, 2)), "compact": (0, (1, 1.2))}


def options(mode: str) -> Options:
    """The recordings' YoCo toy model with a window of 128, whole prompts, no drafts."""
    return Options(
        model="yoco128",
        block_size=64,
        num_blocks=40,
        num_states=4,
        use_nextn_decode=0,
        zos=False,
        prefill_interval=1,
        yoco_prefill_truncation_mode=mode,
        yoco_prefill_keep_tokens=KEEP,
        outside_policy="none",
    )


def curve(mode: str) -> list[list[int]]:
    """``[hit, steps, producer rows, consumer rows, attention, total]`` by hit length."""
    hits = [*range(0, LENGTH, STEP), LENGTH - 1]
    return [saved(options(mode), LENGTH, hit) for hit in hits]


def figure(curves: dict[str, list[list[int]]]) -> Picture:
    """Saved FLOPs against hit length, both as shares of the cold prompt."""
    title = "A hit saves less where half of the model skips the prompt anyway"
    subtitle = (
        f"Saved FLOPs of a prompt of {LENGTH:,} tokens, K = {KEEP}; cold prompt of the same mode ="
        " 100 %. Below the thin line: less saved than hit."
    )
    canvas = Canvas(title, subtitle, 400)
    left = 58.0
    width = WIDTH - MARGIN - left - 14
    frame = Frame(left, canvas.below_title + 12, width, 250, (0, LENGTH), (0, 1))
    canvas.upright(frame, [(t / 5, f"{20 * t}") for t in range(6)], "saved FLOPs, %", grid=True)
    edges = (frame.x(0), frame.x(LENGTH))
    canvas.line(edges, (frame.y(0), frame.y(1)), linewidth=0.7, color=canvas.look.muted)
    edge = frame.x(LENGTH - KEEP)
    look = {"color": canvas.look.outline, "linestyle": (0, (1, 1.5))}
    canvas.line((edge, edge), (frame.top, frame.bottom), **look)
    text = f"L - K = {LENGTH - KEEP}"
    canvas.text(edge - 4, frame.top + 8, text, size=8, color=canvas.look.muted, align="right")
    for at, (mode, rows) in enumerate(curves.items()):
        cold = rows[0][5]
        ys = [frame.y(1 - row[5] / cold) for row in rows]
        canvas.line([frame.x(row[0]) for row in rows], ys, linewidth=1.7, linestyle=DASHES[mode])
        x, y = frame.left + 22, frame.top + 34 + 15 * at
        canvas.line((x, x + 26), (y, y), linewidth=1.7, linestyle=DASHES[mode])
        canvas.text(x + 34, y, f"{mode}, cold {cold / 1e6:,.0f} MFLOP", size=8.5)
    ticks = [(frame.x(hit), f"{hit:,}") for hit in range(0, LENGTH + 1, 128)]
    canvas.axis(ticks, frame.bottom, "hit, tokens")
    canvas.trim(frame.bottom + 34)
    shares = "; ".join(f"{mode} {_share(rows, LENGTH // 2)}" for mode, rows in curves.items())
    return canvas.picture(f"{title}. At half of the prompt: {shares}.")


def _share(rows: list[list[int]], hit: int) -> str:
    row = next(row for row in rows if row[0] == hit)
    return f"{100 * (1 - row[5] / rows[0][5]):.1f} %"


def page(curves: dict[str, list[list[int]]]) -> str:
    """The Markdown page."""
    hits = (0, 128, 256, 512, LENGTH - KEEP, 896, LENGTH - 1)
    lines = [
        "# DeepInfer: what a hit saves under bounded replay",
        "",
        "<!-- Written by reports/deepinfer_saved_compute.py; do not edit. -->",
        "",
        f"One prompt of L = {LENGTH:,} tokens in one chunk, K = {KEEP} kept tokens, the toy model",
        "`yoco128` of the recordings (three producer, three consumer layers, window 128). Rows are",
        "those of the planned Steps, FLOPs those of upstream's estimator.",
        "",
        "![Saved FLOPs against hit length](deepinfer-saved-compute.svg)",
        "",
        "| hit | producer rows | consumer rows: off, mask | consumer rows: compact |"
        " saved FLOPs: off | mask | compact |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for hit in hits:
        found = {mode: next(r for r in curves[mode] if r[0] == hit) for mode in MODES}
        shares = " | ".join(_share(curves[mode], hit) for mode in MODES)
        rows = f"{found['off'][2]:,} | {found['off'][3]:,} | {found['compact'][3]:,}"
        lines.append(f"| {hit:,} | {rows} | {shares} |")
    lines += [
        "",
        "* Producer rows are saved from the first hit token on, in every mode.",
        f"* With compact, consumer rows are saved only beyond L - K = {LENGTH - KEEP}: up to there",
        "  a cold prompt skips them as well, so the curve is flatter there and steep behind.",
        "* Behind L - K the hit is deeper than the consumer windows an outside store can restore",
        "  (rule 9.3): cheap, but not exact.",
        "",
        "```",
        "python reports/deepinfer_saved_compute.py",
        "handoff run deepinfer-bounded-replay   # the same, executed and compared with cold runs",
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write both files beside this one."""
    curves = {mode: curve(mode) for mode in MODES}
    figure(curves).save(HERE / "deepinfer-saved-compute.svg")
    (HERE / "deepinfer-saved-compute.md").write_text(page(curves), "utf-8", newline="\n")


if __name__ == "__main__":
    main()
