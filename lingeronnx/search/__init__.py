"""The cheapest quantization that reaches a wish.

So many points lost at most, or so many dB at least.
    Goal     what is wished, and how it is measured
    Attempt  options of `quantize` beyond the user's: wider outputs, wider layers, layers in float
    Ladder   the attempts in the order in which they are climbed, cheap ones first
    search   climbs until the wish is met, and returns the cheapest attempt that meets it

Stands above the flow and its analysis. Must not know: commands, torch.
"""

from .goal import Goal
from .run import SearchResult, search

__all__ = ["Goal", "SearchResult", "search"]
