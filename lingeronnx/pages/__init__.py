"""Pages for a browser, one file each that needs nothing else, no network either.

What all of them share.
    PagePart   a section: its HTML, and what it brings along (style, script, data)
    page       the whole text: head, contents, parts
    parts      the pieces that a part is built of; they escape every text that they are given

Knows no model and no result: each result has a function of its own that makes its `PageSection`.
"""

from . import components
from .document import PageSection, render_page

__all__ = ["PageSection", "components", "render_page"]
