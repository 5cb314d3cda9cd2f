"""Rewrite integer nodes into equivalent forms that take fewer cycles on the chip.

A rewrite (`data_movement`, `layers`, `upsampling`) proposes another form of one node. The costs of
both decide, at the upper bound of the estimate and with unmodeled work at its bound (`node_costs`).
The result is then evaluated as a whole (`selection`): the verdict must be at least as good, and the
graph must take fewer cycles, including waits for constants and copies to external memory.
"""

from .selection import apply_cost_rewrites

__all__ = ["apply_cost_rewrites"]
