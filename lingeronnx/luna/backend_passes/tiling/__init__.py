"""Tile layers whose feature maps are too large for a chip's shared memory, with equal integers.

`tile_large_layers` finds the layers that do not fit with the memory planner. It looks for the
cascade of layers around them and the number of tiles with which the graph packs and is correct,
and rewrites the integer graph. Without a tiling that helps, the graph is unchanged and the verdict
names the layers.
"""

from .search import tile_large_layers

__all__ = ["tile_large_layers"]
