"""Schedule layers whose constants the DMA prefetches while earlier layers compute.

A layer with constants in external memory waits for its own transfer, starts that of the next such
layer, then computes. The first transfer starts with the run. A transfer therefore overlaps with all
layers up to the next one with constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LayerSlot", "schedule_layers"]


class LayerSlot(NamedTuple):
    """Schedule of a layer, in cycles.

    Attributes
    ----------
    start_cycle
        When the previous layer ends.
    wait
        How long the layer waits for its constants from then on.
    prefetch_start_cycle
        When the DMA starts to fetch the constants; 0 if it fetches none.
    """

    start_cycle: float
    wait: float
    prefetch_start_cycle: float = 0.0


def schedule_layers(
    compute_cycles: Sequence[float], prefetch_cycles: Sequence[float]
) -> list[LayerSlot]:
    """Schedule layers with double-buffered DMA prefetch of their constants, one slot each.

    A layer without a prefetch starts when the previous one ends. The others also wait for their
    transfer, which was issued when the last layer with a prefetch began to compute, or at 0.

    Parameters
    ----------
    compute_cycles
        Cycles of each layer, in execution order.
    prefetch_cycles
        DMA cycles for the constants of each layer; 0 if nothing is prefetched.
    """
    slots = []
    now = 0.0
    dma_issued_at = 0.0  # when the prefetching layer before starts to compute
    for compute, prefetch in zip(compute_cycles, prefetch_cycles, strict=True):
        if not prefetch:
            slots.append(LayerSlot(now, wait=0.0))
            now += compute
            continue
        compute_start = max(now, dma_issued_at + prefetch)
        slots.append(LayerSlot(now, compute_start - now, dma_issued_at))
        dma_issued_at = compute_start
        now = compute_start + compute
    return slots
