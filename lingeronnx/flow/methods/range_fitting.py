"""Fit ranges to power-of-two scales.

A free factor per group of tensors, moved into the weights around it.
A chip holds a tensor at scale 2^q, so its largest value fills between half and all of the integer
range. Multiplying a tensor by a constant f and dividing it out again in the weights that read it
changes nothing in real numbers: ``W' = W * f_out / f_in``, ``b' = b * f_out``. With f free in [1,
2) the tensor's effective scale f * 2^q takes any value, as MaxValue would, on hardware that only
shifts.

Tensors joined by operators that commute with a positive factor (Relu, pooling, Add, Concat,
reshapes) share one f and form a group. A group that touches a float operator or a graph input or
output keeps f = 1. ``Clip(0, b)`` on a chip without Clip fixes f so that b is exactly the largest
integer and saturation clips.

The factors minimise the sum of the relative quantization noise of all activations and weights, by
coordinate descent over sixteen values per octave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ...graph import ir
from ...ops import get_weight_values
from ...targets import Target
from ..assign.calibrators import choose_symmetric_scale
from ..assign.scale_policy import ScalePolicy
from ..assign.shared_scales import SharedScaleGroup
from ..factor_groups import FactorGroup, group_tensors_by_factor
from ..observe.statistics import Stats, TensorStats
from ..partition import Partition

__all__ = ["fit_range_factors"]

_STEPS_PER_OCTAVE = 16  # candidates per octave
_SWEEPS = 4


@dataclass(frozen=True)
class _RangeGroup:
    """Tensors that share a factor, and their shared scales."""

    factor_group: FactorGroup
    shared_scales: list[SharedScaleGroup]


@dataclass(frozen=True)
class _WeightEdge:
    """A weight between two groups (indices), with the statistics of its values and its bits."""

    input_group: int
    result: int
    weight: TensorStats
    bits: int


def fit_range_factors(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    *,
    policy: ScalePolicy,
    optimize: bool,
    by_channel: bool = False,
) -> dict[str, np.ndarray]:
    """Return {tensor: factor [1]} for the tensors whose factor is not 1.

    policy : how wide tensors and weights are. search : optimise the free groups; False sets only
    the factors that Clip needs. by_channel : weights have a scale
    for each channel, whose ranges fill every part of an octave: no factor is better than another
    for them.
    """
    groups = [
        _RangeGroup(group, [])
        for group in group_tensors_by_factor(partition, target, policy.bits)[0]
    ]
    index = {name: i for i, group in enumerate(groups) for name in group.factor_group.tensors}
    for shared_scale in shared_groups:
        groups[index[shared_scale.tensors[0]]].shared_scales.append(shared_scale)
    factors = [group.factor_group.required_factor or 1.0 for group in groups]
    if optimize:
        _minimize_noise(
            groups,
            [] if by_channel else _weight_edges(partition, index, policy),
            factors,
            stats,
            policy,
        )
    if target.needs_power_of_two_scales:
        _clamp_exponents(target.exponents, groups, factors, stats, policy)
    return {name: np.array([factors[i]]) for name, i in index.items() if factors[i] != 1.0}


def _clamp_exponents(
    exponents: tuple[int, int],
    groups: list[_RangeGroup],
    factors: list[float],
    stats: Stats,
    policy: ScalePolicy,
) -> None:
    """Move `factors` of groups that are not pinned by octaves, so that all exponents lie in the range."""
    for i, group in enumerate(groups):
        observed = _group_stats(group, stats, policy)
        if group.factor_group.pinned or not observed:
            continue
        scales = [
            choose_symmetric_scale(s.scaled(factors[i]), bits, power_of_two=True, calibrator="mse")
            for s, bits in observed
        ]
        least, most = (round(math.log2(pick(scales))) for pick in (min, max))
        if least < exponents[0]:
            factors[i] *= (
                2.0**least
            )  # to 2^0: a Quant of a scale below 1 has a fault where it is not folded away
        elif most > exponents[1]:
            factors[i] *= 2.0 ** min(most - exponents[1] // 2, least - exponents[0])


def _group_stats(
    group: _RangeGroup, stats: Stats, policy: ScalePolicy
) -> list[tuple[TensorStats, int]]:
    """Return the statistics of each shared scale of a group, and their bits."""
    candidates = [
        (shared_scale.merged_stats(stats), policy.width(*shared_scale.tensors))
        for shared_scale in group.shared_scales
    ]
    return [
        (observed, bits)
        for observed, bits in candidates
        if observed is not None and observed.sum_of_squares > 0
    ]


def _weight_edges(
    partition: Partition, index: Mapping[str, int], policy: ScalePolicy
) -> list[_WeightEdge]:
    layers = []
    for node, op in partition.integer_nodes:
        for parameter in op.weight_inputs(node):
            values = get_weight_values(node, parameter)
            assert values is not None
            source, result = ir.input_name(node, op.data(node)[0]), ir.output_name(node)
            bits = policy.weight_bits_for(ir.input_name(node, parameter))
            if np.any(values):
                layers.append(
                    _WeightEdge(
                        index[source],
                        index[result],
                        TensorStats.from_array(np.asarray(values)),
                        bits,
                    )
                )
    return layers


def _minimize_noise(
    groups: list[_RangeGroup],
    layers: list[_WeightEdge],
    factors: list[float],
    stats: Stats,
    policy: ScalePolicy,
) -> None:
    """Coordinate descent on `factors` (in place)."""
    weight_noise: dict[tuple[int, float], float] = {}

    def weight_noise_of(number: int) -> float:
        layer = layers[number]
        ratio = factors[layer.result] / factors[layer.input_group]
        key = number, round(math.log2(ratio) % 1.0, 9)
        if key not in weight_noise:
            weight_noise[key] = _relative_noise(layer.weight.scaled(2.0 ** key[1]), layer.bits)
        return weight_noise[key]

    @cache
    def group_noise_of(number: int, factor: float) -> float:
        return sum(_relative_noise(s.scaled(factor), bits) for s, bits in stats_of(number))

    @cache
    def stats_of(number: int) -> list[tuple[TensorStats, int]]:
        return _group_stats(groups[number], stats, policy)

    candidates = [2.0 ** (step / _STEPS_PER_OCTAVE) for step in range(_STEPS_PER_OCTAVE)]
    for _ in range(_SWEEPS):
        before = list(factors)
        for i, group in enumerate(groups):
            if group.factor_group.required_factor is not None:
                continue
            if not stats_of(i):
                continue
            touched = [
                n for n, layer in enumerate(layers) if i in (layer.input_group, layer.result)
            ]
            best = math.inf, 1.0
            for candidate in candidates:
                factors[i] = candidate
                cost = group_noise_of(i, candidate) + sum(weight_noise_of(n) for n in touched)
                best = min(best, (cost, candidate))
            factors[i] = best[1]
        if factors == before:
            return


def _relative_noise(stats: TensorStats, bits: int) -> float:
    """Return the relative quantization noise of a tensor at its best power-of-two scale."""
    scale = choose_symmetric_scale(stats, bits, power_of_two=True, calibrator="mse")
    return (
        stats.quantization_error(scale, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        / stats.mean_square
    )
