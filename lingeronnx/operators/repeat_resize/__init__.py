"""Tile, Expand, Pad, Resize and the channel shuffle."""
