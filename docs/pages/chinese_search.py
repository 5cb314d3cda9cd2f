"""Index Chinese text of the site by pairs of adjacent characters.

Chinese has no spaces between words, and Sphinx's browser script does not cut a query into the words
of a dictionary. Pairs need no dictionary: page and query are cut by one regular expression, and a
page is listed if it has all pairs of the query. Queries of one Chinese character find nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["TERM", "build_search_language", "format_query_splitter", "split_terms"]

#: A word of Latin letters and digits, or a Chinese character with its successor in group 1. Python
#: and JavaScript read it alike.
TERM = r"[A-Za-z0-9_]+|(?=([\u3400-\u9fff]{2}))[\u3400-\u9fff]"


def split_terms(text: str) -> list[str]:
    """Split a text into the terms of the search index."""
    return [match[1] or match[0] for match in re.finditer(TERM, text)]


def format_query_splitter() -> str:
    """Format `splitQuery`, the function that the search page of Sphinx calls, as JavaScript."""
    pattern = f"new RegExp({json.dumps(TERM)}, 'g')"
    return (
        f"var splitQuery = (query) => Array.from(query.matchAll({pattern}), (m) => m[1] || m[0]);"
    )


def build_search_language() -> type[Any]:
    """Derive the search language from Sphinx's, which also stems English words."""
    from sphinx.search.zh import SearchChinese  # noqa: PLC0415 - tests read conf.py without Sphinx

    class ChinesePairs(SearchChinese):
        language_name = "English"  # of the stemmer: the script names the class English_Stemmer_
        js_splitter_code = format_query_splitter()

        def split(self, text: str) -> list[str]:
            return split_terms(text)

    return ChinesePairs
