"""Places of buffers in one static arena: two that are in use at the same time never overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ALIGNMENT", "Use", "planned", "rounded"]

#: Bytes to which every buffer is aligned.
ALIGNMENT = 16


class Use(NamedTuple):
    """Bytes of a buffer, and the first and the last step that it is used in, both included."""

    size: int
    first: int
    last: int


def rounded(size: int, to: int = ALIGNMENT) -> int:
    """Return `size` rounded up to a multiple of `to`."""
    return -(-size // to) * to


def planned(uses: Mapping[str, Use]) -> tuple[dict[str, int], int]:
    """Return the offset of each buffer and the bytes of all: the largest first, each at the lowest free place."""
    offsets: dict[str, int] = {}
    for name, use in sorted(uses.items(), key=lambda item: (-item[1].size, item[1].first, item[0])):
        taken = sorted(
            (offsets[other], offsets[other] + rounded(uses[other].size))
            for other in offsets
            if uses[other].first <= use.last and use.first <= uses[other].last
        )
        place = 0
        for start, end in taken:
            if place + rounded(use.size) <= start:
                break
            place = max(place, end)
        offsets[name] = place
    return offsets, max((offsets[name] + rounded(use.size) for name, use in uses.items()), default=0)
