"""Search for the cheapest quantization that meets an accuracy target or cost limits.

    Goal     the requirement, and how it is measured
    Attempt  options of `quantize` beyond the user's: wider outputs, wider layers, float layers
    Ladder   the attempts in the order in which they are tried, cheap ones first
    search   tries attempts until the goal is met, and returns the cheapest that meets it

This package uses the flow and its analysis. It must not import commands or torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..common.lazy_names import make_name_loader

if TYPE_CHECKING:
    from .goal import Goal as Goal
    from .run import SearchResult as SearchResult
    from .run import search as search

#: Home of each name: a check of the requirement needs no search, nor the analysis that it uses.
_HOME = {"Goal": ".goal", "SearchResult": ".run", "search": ".run"}

__all__ = ["Goal", "SearchResult", "search"]


if not TYPE_CHECKING:  # so that a type checker reports a misspelled name
    __getattr__ = make_name_loader(__name__, _HOME)
