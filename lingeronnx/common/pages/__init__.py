"""Self-contained HTML pages: one file each, which needs neither other files nor a network.

    PageSection   a section: its HTML, data, style and script
    render_page   the complete page: head, contents, sections
    components    the HTML elements of sections; they escape all texts

Knows no models and no results: each kind of result has a function that makes its `PageSection`.
"""

from . import components
from .document import PageSection, render_page

__all__ = ["PageSection", "components", "render_page"]
