"""Plan buffers in one static arena, so that no two buffers overlap while both are in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...common.arithmetic import round_up

__all__ = ["ALIGNMENT", "BufferLifetime", "plan_arena"]

#: Bytes to which every buffer is aligned.
ALIGNMENT = 16


class BufferLifetime(NamedTuple):
    """Size of a buffer in bytes, and the first and last step that uses it, inclusive."""

    size: int
    first: int
    last: int


def plan_arena(lifetimes: Mapping[str, BufferLifetime]) -> tuple[dict[str, int], int]:
    """Plan a static arena: largest buffer first, each at the lowest free offset.

    Offsets and sizes are multiples of ALIGNMENT; lifetimes include their last step.

    Returns
    -------
    offsets : dict of str to int
        Byte offset of each buffer.
    arena_bytes : int
        Size of the arena; 0 if there are no buffers.
    """
    offsets: dict[str, int] = {}
    arena_bytes = 0
    by_size = sorted(lifetimes.items(), key=lambda item: (-item[1].size, item[1].first, item[0]))
    for name, lifetime in by_size:
        occupied = []
        for placed, start in offsets.items():
            neighbor = lifetimes[placed]
            if neighbor.first <= lifetime.last and lifetime.first <= neighbor.last:
                occupied.append((start, start + round_up(neighbor.size, ALIGNMENT)))
        size = round_up(lifetime.size, ALIGNMENT)
        offset = 0
        for start, end in sorted(occupied):
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        arena_bytes = max(arena_bytes, offset + size)
    return offsets, arena_bytes
