"""The settings of the documentation site.

`make docs` builds it, in English and in Chinese (CONTRIBUTING.md), with redirects of moved pages.
"""

import re
from pathlib import Path
from typing import Any

import lingeronnx
from docs.pages.chinese_search import build_search_language

project = "lingeronnx"
author = "lingeronnx"
root_doc = "index"
extensions = ["myst_parser"]
exclude_patterns = ["pages", "locale", "_templates"]
myst_heading_anchors = 4
highlight_language = "text"  # most blocks are commands with what they print

language = "en"
locale_dirs = ["locale"]
gettext_compact = False
gettext_location = False  # line numbers would make every edit a change of the whole catalogue
figure_language_filename = "{root}.{language}{ext}"

release = lingeronnx.__version__

html_theme = "furo"
html_title = f"lingeronnx {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}

_REDIRECT = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{0}</a>\n'


def read_redirects() -> dict[str, str]:
    """Return {earlier page: present page}, from the table of development/pages.md."""
    table = (Path(__file__).parent / "development" / "pages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w/-]+) \| \[[^\]]*\]\(\.\./([\w/-]+)\.md\)", table, re.MULTILINE)
    return dict(rows)


def write_redirects(app: Any, exception: Exception | None) -> None:
    """Write a page for each earlier name that leads to the present one."""
    if exception is None and app.builder.name == "html":
        for old, new in read_redirects().items():
            target = Path(app.outdir) / f"{old}.html"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                _REDIRECT.format("../" * old.count("/") + f"{new}.html"), encoding="utf-8"
            )


def setup(app: Any) -> None:
    """Add the search of the Chinese site, and the redirects that a build ends with."""
    app.add_search_language(build_search_language())
    app.connect("build-finished", write_redirects)
