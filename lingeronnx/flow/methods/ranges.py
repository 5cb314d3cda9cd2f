"""Fit ranges to power-of-two scales: a free factor per group of tensors, moved into the weights around it.

A chip holds a tensor at scale 2^q, so its largest value fills between half and all of the integer range. Multiplying a
tensor by a constant f and dividing it out again in the weights that read it changes nothing in real numbers:
``W' = W * f_out / f_in``, ``b' = b * f_out``. With f free in [1, 2) the tensor's effective scale f * 2^q takes any
value, as MaxValue would, on hardware that only shifts.

Tensors joined by operators that commute with a positive factor (Relu, pooling, Add, Concat, reshapes) share one f and
form a group. A group that touches a float operator or a graph input or output keeps f = 1. ``Clip(0, b)`` on a chip
without Clip fixes f so that b is exactly the largest integer and saturation clips.

The factors minimise the sum of the relative quantization noise of all activations and weights, by coordinate descent
over sixteen values per octave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...graph import ir
from ...ops import parameter_values
from ...targets import Target
from ..assign.calibrators import best_scale
from ..assign.choice import ScaleChoice
from ..assign.shared_scales import SharedScale
from ..factor_groups import FactorGroup, factor_groups
from ..observe.statistics import Stats, TensorStats
from ..partition import Partition

__all__ = ["range_factors"]

_STEPS = 16  # candidates per octave
_SWEEPS = 4


@dataclass(frozen=True)
class _RangeGroup:
    """Tensors that share a factor, and their shared scales."""

    of: FactorGroup
    classes: list[SharedScale]


@dataclass(frozen=True)
class _WeightBetween:
    """A weight between two groups (indices), with the statistics of its values and its bits."""

    source: int
    result: int
    weight: TensorStats
    bits: int


def range_factors(
    parts: Partition,
    shared: Sequence[SharedScale],
    stats: Stats,
    target: Target,
    *,
    choice: ScaleChoice,
    search: bool,
    by_channel: bool = False,
) -> dict[str, np.ndarray]:
    """Return {tensor: factor [1]} for the tensors whose factor is not 1.

    choice : how wide tensors and weights are. search : optimise the free groups; False sets only the factors that Clip
    needs. by_channel : weights have a scale
    for each channel, whose ranges fill every part of an octave: no factor is better than another for them.
    """
    groups = [_RangeGroup(group, []) for group in factor_groups(parts, target, choice.bits)[0]]
    index = {name: i for i, group in enumerate(groups) for name in group.of.tensors}
    for shared_scale in shared:
        groups[index[shared_scale.tensors[0]]].classes.append(shared_scale)
    factors = [group.of.fixed or 1.0 for group in groups]
    if search:
        _descend(groups, [] if by_channel else _layers(parts, index, choice), factors, stats, choice)
    if target.power_of_two:
        _keep_within(target.exponents, groups, factors, stats, choice)
    return {name: np.array([factors[i]]) for name, i in index.items() if factors[i] != 1.0}


def _keep_within(
    exponents: tuple[int, int], groups: list[_RangeGroup], factors: list[float], stats: Stats, choice: ScaleChoice
) -> None:
    """Move `factors` of groups that are not pinned by octaves, so that all exponents lie in the range."""
    for i, group in enumerate(groups):
        observed = _seen(group, stats, choice)
        if group.of.pinned or not observed:
            continue
        scales = [best_scale(s.scaled(factors[i]), bits, power=True, calibrator="mse") for s, bits in observed]
        least, most = (round(math.log2(pick(scales))) for pick in (min, max))
        if least < exponents[0]:
            factors[i] *= 2.0**least  # to 2^0: a Quant of a scale below 1 has a fault where it is not folded away
        elif most > exponents[1]:
            factors[i] *= 2.0 ** min(most - exponents[1] // 2, least - exponents[0])


def _seen(group: _RangeGroup, stats: Stats, choice: ScaleChoice) -> list[tuple[TensorStats, int]]:
    """Return the statistics of each shared scale of a group, and their bits."""
    candidates = [(shared_scale.stats(stats), choice.width(*shared_scale.tensors)) for shared_scale in group.classes]
    return [(observed, bits) for observed, bits in candidates if observed is not None and observed.squares > 0]


def _layers(parts: Partition, index: Mapping[str, int], choice: ScaleChoice) -> list[_WeightBetween]:
    layers = []
    for node, op in parts.nodes:
        for parameter in op.parameters(node):
            values = parameter_values(node, parameter)
            assert values is not None
            source, result = ir.read_name(node, op.data(node)[0]), ir.written_name(node)
            bits = choice.weight_width(ir.read_name(node, parameter))
            if np.any(values):
                layers.append(_WeightBetween(index[source], index[result], TensorStats.of(np.asarray(values)), bits))
    return layers


def _descend(
    groups: list[_RangeGroup], layers: list[_WeightBetween], factors: list[float], stats: Stats, choice: ScaleChoice
) -> None:
    """Coordinate descent on `factors` (in place)."""
    weight_noise: dict[tuple[int, float], float] = {}

    def of_weight(number: int) -> float:
        layer = layers[number]
        ratio = factors[layer.result] / factors[layer.source]
        key = number, round(math.log2(ratio) % 1.0, 9)
        if key not in weight_noise:
            weight_noise[key] = _noise(layer.weight.scaled(2.0 ** key[1]), layer.bits)
        return weight_noise[key]

    @cache
    def of_group(number: int, factor: float) -> float:
        return sum(_noise(s.scaled(factor), bits) for s, bits in seen_of(number))

    @cache
    def seen_of(number: int) -> list[tuple[TensorStats, int]]:
        return _seen(groups[number], stats, choice)

    candidates = [2.0 ** (step / _STEPS) for step in range(_STEPS)]
    for _ in range(_SWEEPS):
        before = list(factors)
        for i, group in enumerate(groups):
            if group.of.fixed is not None:
                continue
            if not seen_of(i):
                continue
            touched = [n for n, layer in enumerate(layers) if i in (layer.source, layer.result)]
            best = math.inf, 1.0
            for candidate in candidates:
                factors[i] = candidate
                cost = of_group(i, candidate) + sum(of_weight(n) for n in touched)
                best = min(best, (cost, candidate))
            factors[i] = best[1]
        if factors == before:
            return


def _noise(stats: TensorStats, bits: int) -> float:
    """Return the relative quantization noise of a tensor at its best power-of-two scale."""
    scale = best_scale(stats, bits, power=True, calibrator="mse")
    return stats.error(scale, -(1 << (bits - 1)), (1 << (bits - 1)) - 1) / stats.power
