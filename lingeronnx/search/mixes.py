"""Mixes of narrow and wide weights within limits.

The layers that get wide weights, for the least error at the outputs.
Both ends are tried, all layers narrow and all wide. Between them what a mix costs is taken to lie
on a straight line over the bytes that wide weights add, from the largest mix that is known to keep
the limits to the smallest that is known to break them. That gives the bytes for the next mix, and
its measured cost the next line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .ladder import NarrowLayer

__all__ = ["MAX_MIXES", "choose_layers_to_widen", "search_mixes"]

#: Mixes that are tried between the two ends.
MAX_MIXES = 6


def choose_layers_to_widen(
    layers: Sequence[NarrowLayer], budget_bytes: float
) -> tuple[NarrowLayer, ...]:
    """Return the layers to widen in `budget_bytes` bytes.

    Of two greedy choices the one that gains more.
    The first takes layers by their gain for each byte, the second by their gain, whatever still
    fits. The better of the two has at least half of the gain that is possible (knapsack problem).
    """
    orders: tuple[Callable[[NarrowLayer], float], ...] = (
        lambda each: each.gain / each.extra_bytes,
        lambda each: each.gain,
    )
    choices = []
    for key in orders:
        left, chosen = budget_bytes, []
        for layer in sorted(layers, key=key, reverse=True):
            if layer.extra_bytes <= left:
                chosen.append(layer)
                left -= layer.extra_bytes
        choices.append(tuple(chosen))
    return max(choices, key=lambda chosen: sum(max(layer.gain, 0.0) for layer in chosen))


def search_mixes(
    layers: Sequence[NarrowLayer], evaluate_mix: Callable[[Sequence[NarrowLayer]], Sequence[float]]
) -> bool:
    """Try mixes up to the limits; return whether one keeps them.

    Which of them is best the caller sees.
    evaluate_mix : takes the layers that get wide weights and returns, for each limit, which share
    of it the mix takes; 1 is all of it, infinity what nobody knows.
    """
    narrow, wide = (
        (0.0, evaluate_mix(())),
        (sum(layer.extra_bytes for layer in layers), evaluate_mix(layers)),
    )
    if not _is_within_limits(narrow[1]) or _is_within_limits(wide[1]):
        return _is_within_limits(narrow[1]) or _is_within_limits(wide[1])
    known: set[frozenset[str]] = set()
    for _ in range(MAX_MIXES):
        mix = choose_layers_to_widen(layers, _interpolate_budget_bytes(narrow, wide))
        names = frozenset(layer.selector for layer in mix)
        if not names or names in known:
            break
        known.add(names)
        made = (sum(layer.extra_bytes for layer in mix), evaluate_mix(mix))
        narrow, wide = (max(narrow, made), wide) if _is_within_limits(made[1]) else (narrow, made)
    return True


def _is_within_limits(shares: Sequence[float]) -> bool:
    return max(shares) <= 1


def _interpolate_budget_bytes(
    narrow: tuple[float, Sequence[float]], wide: tuple[float, Sequence[float]]
) -> float:
    """Return the bytes at which the first limit is met on the line between two mixes, of which one breaks a limit.

    Half of the way where the cost of the other is not known.
    """
    ways = [
        (1 - low) / (high - low) if math.isfinite(high) else 0.5
        for low, high in zip(narrow[1], wide[1], strict=True)
        if high > 1
    ]
    return narrow[0] + min(ways) * (wide[0] - narrow[0])
