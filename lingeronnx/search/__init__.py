"""Search for the cheapest quantization that meets an accuracy target or cost limits.

    Goal     the requirement, and how it is measured
    Attempt  options of `quantize` beyond the user's: wider outputs, wider layers, float layers
    Ladder   the attempts in the order in which they are tried, cheap ones first
    search   tries attempts until the goal is met, and returns the cheapest that meets it

This package uses the flow and its analysis. It must not import commands or torch.
"""

from .goal import Goal
from .run import SearchResult, search

__all__ = ["Goal", "SearchResult", "search"]
