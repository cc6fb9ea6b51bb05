"""Settings of Sphinx. `nox -s docs` builds the site, and every warning is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from django.conf import settings as django_settings

from taskbull import __version__

django_settings.configure()  # The reference has the backend of Django's tasks.

project = "taskbull"
author = copyright = "the taskbull maintainers"  # noqa: A001 - Sphinx's name
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]  # The list of pages for readers of the repository.
myst_heading_anchors = 4
# The site shows diagrams as text: what would draw them is loaded from elsewhere.
suppress_warnings = ["myst.header", "ref.python", "misc.highlighting_failure"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"taskbull {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "github-dark"

_OUTSIDE = re.compile(r"\]\(\.\./((?:examples|tests|taskbull|lua)[^)#]*)(#[^)]*)?\)")
_ROOT = Path(__file__).parent.parent


def _link_to_files(_: object, page: str, source: list[str]) -> None:
    """Replace links to files of the repository with their paths, because the site has no copy."""

    def path(link: re.Match[str]) -> str:
        if not (_ROOT / link[1]).exists():
            raise FileNotFoundError(f"{page}: the link to {link[1]} leads nowhere")
        return f"] (`{link[1]}`)"

    text = _OUTSIDE.sub(path, source[0].replace("](README.md", "](index.md"))
    source[0] = re.sub(r"\[([^\]]*)\] \((`[^`]*`)\)", r"\1 (\2)", text)


def setup(app: Any) -> None:
    """Register the hook. Sphinx calls this."""
    app.connect("source-read", _link_to_files)
