"""Sphinx configuration: ``make docs`` builds the site with warnings as errors."""

import re
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

project = "handoff"
author = "the handoff authors"
copyright = author
release = installed("handoff")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # rule books skip a level where a section has one rule

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"handoff {release}"
html_copy_source = False
html_show_sphinx = False


def _outside(app: Any, docname: str, source: list[str]) -> None:
    """Name files outside ``docs`` instead of linking to them: the site does not have them."""
    folder = (HERE / docname).parent

    def named(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        if path.is_relative_to(HERE) or not path.is_relative_to(HERE.parent):
            return match[0]
        return f"{match[1]} (`{path.relative_to(HERE.parent).as_posix()}`)"

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s#]+)\)", named, source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _outside)
