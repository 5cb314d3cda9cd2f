"""Fit ranges to power-of-two scales by a free factor per group of tensors.

A chip stores a tensor at scale 2^q, so its largest value fills between half and all of the integer
range. Multiplying a tensor by a constant f and dividing it out again in the weights that read it
does not change the float function: ``W' = W * f_out / f_in``, ``b' = b * f_out``. With f free in
[1, 2) the effective scale f * 2^q takes any value, as in MaxValue mode, on hardware that only
shifts.

Tensors joined by operators that commute with a positive factor (Relu, pooling, Add, Concat,
reshapes) share one f and form a group. A group with a tensor of a float operator, a product or a
graph input or output keeps f = 1. Only if the chip has no exponent for such a group, the result of
a product shares the f of one operand, as long as that of the other must be 1, as a gate's.
``Clip(0, b)`` on a chip without Clip determines f such that b is exactly the largest integer and
saturation clips.

The factors minimize the sum of the relative quantization noise of all activations and weights, by
coordinate descent over sixteen values per octave. For a tensor that only a LeakyRelu or the like
reads, it may be the noise of that function's result, as in the choice of its scale. That helps some
models and harms others, so it is part of the trial `joined`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...operators.lowerings import get_weight_values
from ...targets import Target
from ..calibration.calibrators import choose_symmetric_scale
from ..calibration.statistics import ConsumerFunction, Stats, TensorStats
from ..factor_groups import HOST_SCALING_REASON, FactorGroup, group_tensors_by_factor
from ..partition import Partition
from ..scales.scale_policy import ScalePolicy
from ..scales.shared_scales import SharedScaleGroup

__all__ = ["fit_range_factors"]

_STEPS_PER_OCTAVE = 16  # candidates per octave
_SWEEPS = 4


class _RangeGroup(NamedTuple):
    """Tensors that are multiplied by one common factor, and their groups that share a scale."""

    factor_group: FactorGroup
    shared_scales: list[SharedScaleGroup]


class _ScaleStats(NamedTuple):
    """Statistics of the tensors of one scale, for their relative noise.

    Attributes
    ----------
    stats
        The merged statistics; not all zero.
    bits
        Bit width.
    consumer
        Function that is the only consumer and that factors pass through, such as a LeakyRelu; None
        for any other.
    result
        Statistics of the result of `consumer`, whose noise counts then.
    """

    stats: TensorStats
    bits: int
    consumer: ConsumerFunction | None = None
    result: TensorStats | None = None

    def choose_scale(self, factor: float) -> float:
        """Return the power of two that "mse" chooses for `factor` times the tensors."""
        return choose_symmetric_scale(
            self.stats.scaled(factor),
            self.bits,
            power_of_two=True,
            calibrator="mse",
            consumer=self.consumer,
        )

    def relative_noise(self, factor: float) -> float:
        """Return the quantization noise of `factor` times the tensors at the best scale.

        It is that of the consumer's result, if there is one, and relative to the mean square.
        """
        low, high = -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        scale = self.choose_scale(factor)
        noise = self.stats.scaled(factor).quantization_error(scale, low, high, self.consumer)
        return noise / (self.result or self.stats).scaled(factor).mean_square


class _WeightEdge(NamedTuple):
    """A weight that joins two groups of tensors (indices), with its statistics."""

    input_group: int
    output_group: int
    weight: _ScaleStats


def fit_range_factors(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    *,
    policy: ScalePolicy,
    optimize: bool,
    by_channel: bool = False,
    by_result: bool = False,
) -> dict[str, np.ndarray]:
    """Choose a factor per group of tensors at which power-of-two scales fit its ranges best.

    A tensor that is multiplied by its factor uses more of the integers; the weights around it
    compensate the factor.

    Parameters
    ----------
    partition
        The float graph.
    shared_groups
        Groups of tensors that share a scale.
    stats
        Statistics of the activations.
    target
        The target.
    policy
        Bit widths of tensors and weights.
    optimize
        Whether to minimize the noise; otherwise only the factors that Clip needs are set, and those
        that bring exponents into the target's range.
    by_channel
        Whether weights have one scale per channel. Their ranges are spread over the octave, so that
        no factor is better than another for them.
    by_result
        Whether the noise of a tensor that only a LeakyRelu or PRelu reads is that of the result.

    Returns
    -------
    dict
        {tensor: factor [1]} of the tensors whose factor is not 1.
    """
    is_host_scaled = HOST_SCALING_REASON in partition.floats.values()
    if len(partition.absorbing_layers) < 2 and not is_host_scaled:
        return {}  # every tensor is joined to one that must not change
    groups = _make_range_groups(partition, shared_groups, target, policy.bits)
    index = _index_tensors(groups)
    factors = [group.factor_group.required_factor or 1.0 for group in groups]
    if not all(group.factor_group.pinned for group in groups):
        if optimize:
            edges = [] if by_channel else _weight_edges(partition, index, policy)
            _NoiseMinimizer(groups, edges, factors, stats, policy, by_result).run()
        if target.needs_power_of_two_scales:
            _clamp_exponents(target.exponents, groups, factors, stats, policy)
    range_factors = {name: np.array([factors[i]]) for name, i in index.items() if factors[i] != 1.0}
    if target.needs_power_of_two_scales and _has_products(partition):
        pinned = set[str]()
        for group in groups:
            if group.factor_group.pinned:
                pinned.update(group.factor_group.tensors)
        range_factors.update(
            _clamp_joined_products(partition, shared_groups, stats, target, policy, pinned)
        )
    return range_factors


def _has_products(partition: Partition) -> bool:
    """Whether a Mul of two activations becomes integer."""
    return any(
        op.scale_constraints.factor_behavior == "multiplied" for _, op in partition.integer_nodes
    )


def _clamp_joined_products(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
    pinned: set[str],
) -> dict[str, np.ndarray]:
    """Return {tensor: factor [1]}, powers of two that bring `pinned` tensors into range.

    The tensors are those whose factor is 1 as long as products pin their operands. With the result
    of a product joined to one operand, some groups of them are free.
    """
    groups = []
    for group in _make_range_groups(
        partition, shared_groups, target, policy.bits, joins_products=True
    ):
        if not pinned.isdisjoint(group.factor_group.tensors):
            groups.append(group)
    factors = [1.0] * len(groups)
    _clamp_exponents(target.exponents, groups, factors, stats, policy)
    range_factors: dict[str, np.ndarray] = {}
    for group, factor in zip(groups, factors, strict=True):
        if factor != 1.0:
            range_factors.update(dict.fromkeys(group.factor_group.tensors, np.array([factor])))
    return range_factors


def _make_range_groups(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    bits: int,
    *,
    joins_products: bool = False,
) -> list[_RangeGroup]:
    """Return the groups of tensors that share a factor, with the shared scales of each.

    Parameters are those of `fit_range_factors` and `group_tensors_by_factor`.
    """
    factor_groups, _ = group_tensors_by_factor(
        partition, target, bits, joins_products=joins_products
    )
    groups = [_RangeGroup(group, []) for group in factor_groups]
    index = _index_tensors(groups)
    for shared_group in shared_groups:
        groups[index[shared_group.tensors[0]]].shared_scales.append(shared_group)
    return groups


def _index_tensors(groups: Sequence[_RangeGroup]) -> dict[str, int]:
    """Return {tensor: index of its group}."""
    index: dict[str, int] = {}
    for i, group in enumerate(groups):
        index.update(dict.fromkeys(group.factor_group.tensors, i))
    return index


def _clamp_exponents(
    exponents: tuple[int, int],
    groups: list[_RangeGroup],
    factors: list[float],
    stats: Stats,
    policy: ScalePolicy,
) -> None:
    """Change `factors` in place, by powers of two, so that all exponents are valid.

    Exponents are log2 of the scales that the calibrator "mse" chooses. Only groups that are not
    pinned and have statistics change. If a group's smallest exponent is too small, it becomes 0;
    otherwise, if the largest is too large, it becomes half the maximum, as long as the smallest
    stays valid.

    Parameters
    ----------
    exponents
        Smallest and largest exponent of the target.
    groups
        The groups of tensors that share a factor.
    factors
        Factor of each group.
    """
    min_exponent, max_exponent = exponents
    for i, group in enumerate(groups):
        group_stats = _group_stats(group, stats, policy)
        if group.factor_group.pinned or not group_stats:
            continue
        scales = [entry.choose_scale(factors[i]) for entry in group_stats]
        lowest, highest = round(math.log2(min(scales))), round(math.log2(max(scales)))
        if lowest < min_exponent:
            # To 2^0: a Quant with a scale below 1 is computed incorrectly unless it is folded.
            factors[i] *= 2.0**lowest
        elif highest > max_exponent:
            factors[i] *= 2.0 ** min(highest - max_exponent // 2, lowest - min_exponent)


def _group_stats(
    group: _RangeGroup, stats: Stats, policy: ScalePolicy, by_result: bool = False
) -> list[_ScaleStats]:
    """Return the statistics of each shared scale of `group` whose tensors are not all zero.

    Shared scales without statistics are left out. `by_result` as in `fit_range_factors`.
    """
    group_stats = []
    for shared_group in group.shared_scales:
        merged = shared_group.merged_stats(stats)
        if merged is None or not merged.sum_of_squares > 0:
            continue
        entry = _ScaleStats(merged, policy.width(*shared_group.tensors))
        function, output = shared_group.reader_function, shared_group.reader_output
        if by_result and function is not None and output in group.factor_group.tensors:
            result = stats.get(output)
            if result is not None and result.sum_of_squares > 0:
                entry = entry._replace(consumer=ConsumerFunction(function), result=result)
        group_stats.append(entry)
    return group_stats


def _weight_edges(
    partition: Partition, index: Mapping[str, int], policy: ScalePolicy
) -> list[_WeightEdge]:
    """Return an edge for each quantized weight that is not all zero.

    It joins the groups of tensors of the node's first data input and of its output. `index` maps a
    tensor to the index of its group.
    """
    edges = []
    for node, op in partition.integer_nodes:
        for parameter in op.weight_inputs(node):
            values = get_weight_values(node, parameter)
            assert values is not None
            if not np.any(values):
                continue
            stats = TensorStats.from_array(np.asarray(values))
            bits = policy.weight_bits_for(ir.input_name(node, parameter))
            edges.append(
                _WeightEdge(
                    index[ir.input_name(node, op.data(node)[0])],
                    index[ir.output_name(node)],
                    _ScaleStats(stats, bits),
                )
            )
    return edges


class _NoiseMinimizer:
    """Coordinate descent on the factors of all groups of tensors, to minimize quantization noise.

    The noise of tensors and weights is cached.

    Parameters
    ----------
    groups
        The groups of tensors that share a factor.
    edges
        Weights between them.
    factors
        Factor of each group; modified in place.
    stats
        Statistics of the activations.
    policy
        Bit widths of tensors.
    by_result
        As in `fit_range_factors`.
    """

    def __init__(
        self,
        groups: list[_RangeGroup],
        edges: list[_WeightEdge],
        factors: list[float],
        stats: Stats,
        policy: ScalePolicy,
        by_result: bool,
    ) -> None:
        """Keep groups, weights between them and the starting `factors`, and collect statistics."""
        self._groups, self._edges, self._factors = groups, edges, factors
        self._group_stats = [_group_stats(group, stats, policy, by_result) for group in groups]
        self._weight_noise_cache: dict[tuple[int, float], float] = {}
        self._group_noise_cache: dict[tuple[int, float], float] = {}

    def run(self) -> None:
        """Choose the factors of all free groups, one after the other, until no factor changes.

        It makes at most 4 sweeps and modifies the list of factors in place. Free groups have no
        required factor, and statistics.
        """
        for _ in range(_SWEEPS):
            before = list(self._factors)
            for i, group in enumerate(self._groups):
                if group.factor_group.required_factor is None and self._group_stats[i]:
                    self._optimize_group(i)
            if self._factors == before:
                return

    def _optimize_group(self, group_index: int) -> None:
        """Set the factor of the group to the candidate with the least noise, in place.

        There are 16 candidates from 1 to below 2, evenly spaced in log2; the noise is that of the
        group's tensors and of the weights next to it.
        """
        edge_indices = [
            n
            for n, edge in enumerate(self._edges)
            if group_index in (edge.input_group, edge.output_group)
        ]
        best = math.inf, 1.0
        for step in range(_STEPS_PER_OCTAVE):
            candidate = 2.0 ** (step / _STEPS_PER_OCTAVE)
            self._factors[group_index] = candidate
            noise = self._group_noise(group_index, candidate)
            noise += sum(self._weight_noise(n) for n in edge_indices)
            best = min(best, (noise, candidate))
        self._factors[group_index] = best[1]

    def _group_noise(self, group_index: int, factor: float) -> float:
        """Return the summed noise of the activations of a group multiplied by `factor`.

        That of each shared scale is relative to its mean square; results are cached.
        """
        key = group_index, factor
        if key not in self._group_noise_cache:
            self._group_noise_cache[key] = sum(
                entry.relative_noise(factor) for entry in self._group_stats[group_index]
            )
        return self._group_noise_cache[key]

    def _weight_noise(self, edge_index: int) -> float:
        """Return the noise of a weight with the current factors around it, relative to its power.

        It depends only on the ratio of output to input factor within one octave, and is cached by
        that.
        """
        edge = self._edges[edge_index]
        ratio = self._factors[edge.output_group] / self._factors[edge.input_group]
        octave_fraction = round(math.log2(ratio) % 1.0, 9)
        key = edge_index, octave_fraction
        if key not in self._weight_noise_cache:
            self._weight_noise_cache[key] = edge.weight.relative_noise(2.0**octave_fraction)
        return self._weight_noise_cache[key]
