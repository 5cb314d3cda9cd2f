"""Places of buffers in one static arena: two that are in use at the same time never overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ALIGNMENT", "BufferLifetime", "plan_arena", "round_up"]

#: Bytes to which every buffer is aligned.
ALIGNMENT = 16


class BufferLifetime(NamedTuple):
    """Bytes of a buffer, and the first and the last step that it is used in, both included."""

    size: int
    first: int
    last: int


def round_up(size: int, multiple: int = ALIGNMENT) -> int:
    """Return `size` rounded up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple


def plan_arena(uses: Mapping[str, BufferLifetime]) -> tuple[dict[str, int], int]:
    """Return the offset of each buffer and the bytes of all.

    The largest first, each at the lowest free place.
    """
    offsets: dict[str, int] = {}
    for name, use in sorted(uses.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        taken = sorted(
            (offsets[other], offsets[other] + round_up(uses[other].size))
            for other in offsets
            if uses[other].first <= use.last and use.first <= uses[other].last
        )
        place = 0
        for start, end in taken:
            if place + round_up(use.size) <= start:
                break
            place = max(place, end)
        offsets[name] = place
    return offsets, max(
        (offsets[name] + round_up(use.size) for name, use in uses.items()), default=0
    )
