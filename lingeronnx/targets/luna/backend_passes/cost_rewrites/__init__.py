"""Exact forms of integer nodes, chosen by what they cost on the chip.

The same integers in fewer cycles.
A rewrite (`moves`, `layers`) offers another form of one node. The price of both decides, at the
upper end of the range and with unpriced work at its bound (`costs`). What is taken so is judged as
a whole (`choice`): the graph must be promised as well as it was before, and take fewer cycles,
waits for constants and copies to external memory included.
"""

from .selection import apply_cost_rewrites

__all__ = ["apply_cost_rewrites"]
