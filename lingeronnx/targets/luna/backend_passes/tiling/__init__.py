"""Layers whose maps are too large for a chip's shared memory, computed in tiles of rows one after the other: exact.

`tile_large_layers` asks the memory planner which layers do not fit, looks for the run of layers
around them and the number of tiles with which the packer takes the graph and the chip computes it
right, and rewrites the integer graph. Without a number that helps, the graph stays as it is and the
verdict names the layers.
"""

from .search import tile_large_layers

__all__ = ["tile_large_layers"]
