"""Choose which layers get wide weights so that limits are kept with the least error at the outputs.

Both extremes are tried: all layers with narrow weights and all with wide ones. Between them the
cost of a mix is assumed to be linear in the bytes that wide weights add, from the largest mix
within the limits to the smallest mix beyond them. This line gives the bytes of the next mix, and
the measured cost of that mix gives the next line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .ladder import NarrowLayer

__all__ = ["MAX_MIXES", "choose_layers_to_widen", "search_mixes"]

#: Mixes that are tried between the two extremes.
MAX_MIXES = 6


def choose_layers_to_widen(
    layers: Sequence[NarrowLayer], budget_bytes: float
) -> tuple[NarrowLayer, ...]:
    """Choose layers for wide weights that add at most `budget_bytes` bytes.

    Two greedy selections are made, and the one with the larger total gain wins: one takes layers by
    gain per byte, the other by gain, each skipping layers that no longer fit. The better of the two
    reaches at least half of the largest possible gain (0-1 knapsack problem).
    """
    orders: tuple[Callable[[NarrowLayer], float], ...] = (
        lambda layer: layer.gain / layer.extra_bytes,
        lambda layer: layer.gain,
    )
    selections = []
    for sort_key in orders:
        remaining_bytes, selected = budget_bytes, []
        for layer in sorted(layers, key=sort_key, reverse=True):
            if layer.extra_bytes <= remaining_bytes:
                selected.append(layer)
                remaining_bytes -= layer.extra_bytes
        selections.append(tuple(selected))
    return max(selections, key=lambda selection: sum(max(layer.gain, 0.0) for layer in selection))


def search_mixes(
    layers: Sequence[NarrowLayer], evaluate_mix: Callable[[Sequence[NarrowLayer]], Sequence[float]]
) -> bool:
    """Evaluate mixes of narrow and wide weights close to the limits.

    No layer and all layers widened are evaluated first; if only the former is within the limits, up
    to `MAX_MIXES` mixes between them follow, chosen by interpolation of the used fractions.

    Parameters
    ----------
    layers
        Layers whose weights can be widened.
    evaluate_mix
        Takes the layers that get wide weights. Returns, for each limit, the used fraction of it: 1
        is all of it, infinity means unknown. The caller records the results and picks the best mix.

    Returns
    -------
    bool
        Whether any mix is within all limits.
    """
    narrow = (0.0, evaluate_mix(()))
    wide = (sum(layer.extra_bytes for layer in layers), evaluate_mix(layers))
    if not _is_within_limits(narrow[1]) or _is_within_limits(wide[1]):
        return _is_within_limits(narrow[1]) or _is_within_limits(wide[1])
    tried: set[frozenset[str]] = set()
    for _ in range(MAX_MIXES):
        mix = choose_layers_to_widen(layers, _interpolate_budget_bytes(narrow, wide))
        names = frozenset(layer.selector for layer in mix)
        if not names or names in tried:
            break
        tried.add(names)
        result = (sum(layer.extra_bytes for layer in mix), evaluate_mix(mix))
        if _is_within_limits(result[1]):
            narrow = max(narrow, result)
        else:
            wide = result
    return True


def _is_within_limits(usage: Sequence[float]) -> bool:
    """Whether no used fraction of a limit in `usage` exceeds 1."""
    return max(usage) <= 1


def _interpolate_budget_bytes(
    narrow: tuple[float, Sequence[float]], wide: tuple[float, Sequence[float]]
) -> float:
    """Return the bytes at which the line between two mixes reaches the first limit.

    Each mix is (added bytes, used fraction of each limit); `wide` exceeds at least one limit. A
    limit whose use by `wide` is unknown (infinite) is taken to be reached halfway.
    """
    positions = [
        (1 - low) / (high - low) if math.isfinite(high) else 0.5
        for low, high in zip(narrow[1], wide[1], strict=True)
        if high > 1
    ]
    return narrow[0] + min(positions) * (wide[0] - narrow[0])
