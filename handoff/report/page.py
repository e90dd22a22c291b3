"""The report as one self-contained HTML page: no network, no date of its own, a strict policy.

The Content-Security-Policy allows nothing but data images, this page's one style element and its
one script, both by hash; so every length is an SVG attribute and no element has a style attribute.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from . import findings, svg
from .content import Content, build
from .info import RunInfo
from .markdown import markdown
from .palette import CLASSES, FLAGS
from .tables import losses
from .totals import named, served
from .words import count, percent, points

__all__ = ["FORMATS", "FigureFile", "page", "write_report"]

FORMATS = ("html", "md")
_INLINE = ("strip", "waterfall")
"""Figures that the page draws itself, as SVG rows and tables."""


class FigureFile(NamedTuple):
    """A figure of the page: its finding, and its SVG per theme (``light`` and ``dark``)."""

    alt: str
    light: str
    dark: str


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_template)
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )


def _template(name: str) -> str:
    return resources.files("handoff.report").joinpath("templates", name).read_text("utf-8")


def page(content: Content, figures: Mapping[str, FigureFile] | None = None) -> str:
    """The page; equal content gives equal bytes."""
    columns = max(1, len(content.falls))
    style = _template("page.css").replace("\n", "") + svg.fills()
    style += f".wf{{grid-template-columns:calc(118px + 17%) repeat({columns - 1},1fr)}}"
    if columns == 1:
        style += ".wf{grid-template-columns:1fr}"
    script = _template("page.js")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            c=content,
            style=Markup(style),
            script=Markup(script),
            style_hash=_sha256(style),
            script_hash=_sha256(script),
            patterns=svg.patterns(),
            looks=CLASSES | FLAGS,
            labels=list(dict.fromkeys(each.label for each in content.requests)),
            fall_names=_fall_names(content),
            figure=_figures(figures or {}),
            losses=losses,
            named=named,
            served=served,
            rule_files=findings.RULES,
            count=count,
            percent=percent,
            points=points,
            strip_title=findings.strip_title,
            lanes_note=findings.lanes_note,
            answer_bar=svg.answer_bar,
            fall_bar=svg.fall_bar,
            fall_words=svg.fall_words,
            strip_svg=svg.strip_svg,
            swatch=svg.swatch,
        )
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _fall_names(content: Content) -> set[str]:
    """Rows of the waterfall that say something in at least one column."""
    return {
        step.name
        for _, steps in content.falls
        for step in steps
        if step.kind == "total" or step.value != 0
    }


def _figures(figures: Mapping[str, FigureFile]) -> Callable[[str], Markup]:
    def figure(name: str) -> Markup:
        if name not in figures:
            return Markup("")
        alt, light, dark = figures[name]
        return Markup(
            f'<figure id="f-{name}"><picture>'
            f'<source srcset="{_uri(dark)}" media="screen and (prefers-color-scheme:dark)">'
            f'<img src="{_uri(light)}" alt="{escape(alt)}"></picture></figure>'
        )

    return figure


def _uri(text: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def write_report(
    frame: pd.DataFrame,
    info: RunInfo,
    out_dir: str | Path,
    formats: tuple[str, ...] = FORMATS,
    *,
    steps: pd.DataFrame | None = None,
    pools: pd.DataFrame | None = None,
    stairs: pd.DataFrame | None = None,
) -> list[Path]:
    """Write ``index.html`` and ``report.md`` (or one of them) into ``out_dir``; their paths.

    The Markdown's figures are PNG files in ``figures``. ``steps`` (a ``StepLog`` table), ``pools``
    (``pool_points``) and ``stairs`` (points of ``staircase``) add their figures. Equal input gives
    equal bytes. Raises ``ValueError`` for a format that is none of ``FORMATS``.
    """
    from .gallery import gallery

    unknown = set(formats) - set(FORMATS)
    if unknown:
        raise ValueError(f"unknown report format {', '.join(sorted(unknown))}; known: html, md")
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    content = build(frame, info)
    figures = gallery(frame, content, steps=steps, pools=pools, stairs=stairs)
    paths = []
    if "html" in formats:
        shown = {
            name: FigureFile(draw("light").alt, draw("light").svg(), draw("dark").svg())
            for name, draw in figures.items()
            if name not in _INLINE
        }
        paths.append(folder / "index.html")
        paths[-1].write_text(page(content, shown), "utf-8", newline="\n")
    if "md" in formats:
        pictures = {}
        for name, draw in figures.items():
            (folder / "figures").mkdir(exist_ok=True)
            picture = draw("light")
            paths.append(picture.save(folder / "figures" / f"{name}.png"))
            pictures[name] = (picture.alt, f"figures/{name}.png")
        paths.append(folder / "report.md")
        paths[-1].write_text(markdown(content, pictures), "utf-8", newline="\n")
    return paths
