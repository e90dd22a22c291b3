"""Sphinx configuration: ``make docs`` builds the site with warnings as errors."""

from importlib.metadata import version as installed

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
