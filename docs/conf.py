"""The settings of the documentation site.

`make docs` builds it, in English and in Chinese (CONTRIBUTING.md).
"""

import lingeronnx

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
