"""When each layer runs: the DMA fetches a layer's constants while the layers before it compute.

A layer with constants in external memory waits for its own transfer, starts that of the next such
layer, then computes. The first transfer starts with the run. So a transfer hides behind all layers
up to the next one with constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LayerSlot", "schedule_layers"]


class LayerSlot(NamedTuple):
    """A layer's time in cycles: when its turn comes, how long it waits for its constants then.

    prefetch_start_cycle : when the DMA begins to bring these; 0 without.
    """

    start_cycle: float
    wait: float
    prefetch_start_cycle: float = 0.0


def schedule_layers(
    compute_cycles: Sequence[float], prefetch_cycles: Sequence[float]
) -> list[LayerSlot]:
    """Return when each layer runs.

    compute_cycles : cycles of each layer. transfers : of the DMA before it, 0 where it has none.
    """
    clock, issued = 0.0, 0.0
    placed = []
    for cycles, transfer in zip(compute_cycles, prefetch_cycles, strict=True):
        begin = max(clock, issued + transfer) if transfer else clock
        placed.append(LayerSlot(clock, begin - clock, issued if transfer else 0.0))
        issued = begin if transfer else issued
        clock = begin + cycles
    return placed
