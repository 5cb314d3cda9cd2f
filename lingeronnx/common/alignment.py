"""Sizes rounded up to a multiple, as memory planners and hardware blocks need them."""

__all__ = ["round_up"]


def round_up(size: int, multiple: int) -> int:
    """Return `size` rounded up to a multiple of `multiple`, which is positive."""
    return -(-size // multiple) * multiple
