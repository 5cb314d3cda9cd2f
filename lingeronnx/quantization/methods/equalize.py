"""Equalize channels: one factor per channel, so that one scale per tensor suits all.

For a group of tensors whose channels run through (Relu, pooling, Add), with producing weights W1
and consuming weights W2, the factor s_c multiplies row c of W1 and the activations, and divides
column c of W2. In logarithms, with r1, a, r2 the ranges of channel c of W1, the activations and W2
(mean over channels subtracted), the least-squares solution of "all three even" is

    log s = (w2 * log r2 - w1 * log r1 - wa * log a) / (w1 + wa + w2)

This is cross-layer equalization; Nagel et al. (2019) is the case wa = 0. Which weighting is best,
or none, depends on the bottleneck of the layer. So each is judged by the noise that it predicts in
the outputs of the consuming layers, relative to their power P_y:

    N = sum over consumers [ sum_c |W2_c|^2 / s_c^2 * (dx^2 + dw1^2 * P_in,c + dz^2 * P_x,c / P_z,c)
    + dw2^2 * m * sum_c s_c^2 * P_x,c ] / P_y

with dx, dw1, dw2 the steps (range / 127 for 8 bits), P the observed mean squares and m the number
of weights that read a channel. z is the input of a LeakyRelu or PRelu between the layers, which is
rounded, too; the term is 0 without one. Sweeps over all groups repeat until nothing changes. A
channel that is dead in any of the three keeps factor 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir import ir
from ...operators.batch_norm.lowering import fold_batch_norm_parameters
from ...runtime.runners import FloatRunner
from ..partition import Partition
from ..scales.scale_policy import ScalePolicy
from .channel_groups import ChannelGroup, find_channel_groups, may_have_free_channels
from .factors import apply_factors, multiply_factors

__all__ = ["ChannelStats", "equalize_channels"]

_SWEEPS = 6
_WEIGHTINGS = (
    (1.0, 0.0, 1.0),
    (1.0, 0.5, 1.0),
    (1.0, 1.0, 1.0),
    (1.0, 2.0, 1.0),
    (0.0, 1.0, 1.0),
)  # w1, wa, w2
_MIN_IMPROVEMENT = 0.98  # factors must predict less than this times the noise without them
#: Of groups that a Concat, Slice or BatchNormalization joins, or with a LeakyRelu or PRelu. The
#: prediction knows neither the shared scale of the branches nor other consumers, and the ranges of
#: the negative halves are clipped, so the gain must be very clear (20 dB) if nothing measures it.
_JOINED_IMPROVEMENT = 0.01
_DEAD_CHANNEL_RATIO = 1e-6
_MAX_FACTOR = 2.0**6  # maximum factor of one step, and its reciprocal the minimum
_DEFAULT_POLICY = ScalePolicy("q-value", 8, 8, "mse", 100.0, {})


class ChannelStats(NamedTuple):
    """Largest magnitude and mean square of a tensor per channel, float64 [C]."""

    max_abs: np.ndarray
    mean_square: np.ndarray

    def scale_by(self, factors: np.ndarray) -> ChannelStats:
        """Return the statistics of the tensor multiplied by `factors` [C], one per channel."""
        return ChannelStats(self.max_abs * factors, self.mean_square * factors**2)


def equalize_channels(
    partition: Partition,
    feeds: Sequence[Mapping[str, np.ndarray]],
    policy: ScalePolicy = _DEFAULT_POLICY,
    runner: FloatRunner | None = None,
    known_stats: dict[str, ChannelStats] | None = None,
    *,
    trusts_joined: bool = False,
) -> dict[str, np.ndarray]:
    """Equalize the channels of a float graph in place, and return the factors.

    Factors are chosen for tensors whose channels run through, such as over a Relu, in up to 6
    sweeps, only where they predict less than 0.98 times the noise. Weights are changed such that
    the float function stays the same.

    Parameters
    ----------
    partition
        Partition of the float graph, whose weights are changed.
    feeds
        Some tens of calibration samples, in batches.
    policy
        Bit widths of activations and weights.
    runner
        Runner of the unchanged graph, if there is one already.
    known_stats
        Statistics of the unchanged graph on the same feeds, by tensor; missing ones are added to
        it.
    trusts_joined
        Whether factors across a Concat, Slice, BatchNormalization, LeakyRelu or PRelu need no more
        predicted gain than others. The prediction is less reliable there, so that the result must
        be measured.

    Returns
    -------
    dict
        {tensor: factors, float64 [channels]}; a tensor is multiplied by its factors. Tensors
        without change are left out.
    """
    if not may_have_free_channels(partition):
        return {}
    groups = find_channel_groups(partition)
    if not groups:
        return {}
    if known_stats is None:
        known_stats = {}
    names = set(partition.activations)
    missing = names - known_stats.keys()
    if missing:
        runner = runner or FloatRunner(partition.graph, missing)
        known_stats.update(_collect_channel_stats(runner, feeds, missing))
    stats = {name: known_stats[name] for name in known_stats if name in names}
    factors: dict[str, np.ndarray] = {}
    equalized: set[tuple[str, ...]] = set()
    for _ in range(_SWEEPS):
        changed = False
        for group in groups:
            is_doubtful = group.is_joined and not trusts_joined and group.tensors not in equalized
            required = _JOINED_IMPROVEMENT if is_doubtful else _MIN_IMPROVEMENT
            group_factors = _choose_factors(group, stats, policy, required)
            if group_factors is None:
                continue
            changed = True
            equalized.add(group.tensors)
            step = {name: group_factors[group.classes[name]] for name in group.tensors}
            apply_factors(partition, step)
            factors = multiply_factors(factors, step)
            for name in stats.keys() & set(group.tensors):
                stats[name] = stats[name].scale_by(step[name])
        if not changed:
            break
    return factors


def _collect_channel_stats(
    runner: FloatRunner, feeds: Sequence[Mapping[str, np.ndarray]], names: set[str]
) -> dict[str, ChannelStats]:
    """Run all batches; return {tensor of `names`: largest magnitude and mean square per channel}.

    Channels are on axis 1; tensors with fewer than two axes or without elements are left out.
    """
    from simulator.histogram import channel_statistics

    stats: dict[str, ChannelStats] = {}
    counts: dict[str, int] = {}  # elements per channel
    for feed in feeds:
        for name, array, _ in runner.run(feed, names):
            if array.ndim < 2 or not array.size:
                continue
            max_abs, power = channel_statistics(array.astype(np.float32, copy=False))
            previous, previous_count = stats.get(name), counts.get(name, 0)
            if previous is not None:
                max_abs = np.maximum(previous.max_abs, max_abs)
                power = power + previous.mean_square * previous_count
            counts[name] = previous_count + array.size // array.shape[1]
            stats[name] = ChannelStats(max_abs, power / counts[name])
    return stats


class _PredictedNoise:
    """Predicted noise of a group of tensors as a function of its factors, one per channel.

    It is the sum over the consuming layers of the noise of their outputs, relative to the power of
    these. All arrays are float64 [C].

    Parameters
    ----------
    group
        The group.
    stats
        Statistics of the tensors around it.
    policy
        Bit widths of activations and weights.

    Attributes
    ----------
    producer_max_abs
        Largest magnitude of the producing weights of each channel.
    consumer_max_abs
        Largest magnitude of the consuming weights of each channel.
    activation_max_abs
        Largest magnitude of the consumers' inputs in each channel.
    """

    def __init__(
        self, group: ChannelGroup, stats: Mapping[str, ChannelStats], policy: ScalePolicy
    ) -> None:
        """Collect weight ranges, statistics and powers of the layers of `group`.

        All their inputs and outputs must be in `stats`; `policy` gives the bit widths.
        """
        self._max_activation_integer = _max_integer(policy.width(*group.tensors))
        self._is_free = group.is_free
        producers = [(node, group.output_classes(node)) for node in group.producers]
        consumers = [(node, group.input_classes(node)) for node in group.consumers]
        self._producers = [
            _Producer.from_node(node, classes, stats, policy) for node, classes in producers
        ]
        self._consumers = [
            _Consumer.from_node(node, classes, stats, policy) for node, classes in consumers
        ]
        self.producer_max_abs = self._max_by_class(
            (producer.classes, producer.max_abs) for producer in self._producers
        )
        self.consumer_max_abs = self._max_by_class(
            (consumer.classes, consumer.max_abs) for consumer in self._consumers
        )
        self.activation_max_abs = self._max_by_class(
            (consumer.classes, consumer.input_stats.max_abs) for consumer in self._consumers
        )

    def _max_by_class(self, ranges: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Return the largest value of each class, 0 without any; `ranges` are (classes, values)."""
        largest = np.zeros(len(self._is_free))
        for classes, values in ranges:
            np.maximum.at(largest, classes, values)
        return largest

    def alive(self) -> np.ndarray:
        """Return a mask of the classes of channels that may be scaled, bool [C].

        They are free, and their largest producing weight, activation and consuming weight must
        each exceed 1e-6 times the largest of all channels.
        """
        ranges = (self.producer_max_abs, self.consumer_max_abs, self.activation_max_abs)
        is_alive = [r > _DEAD_CHANNEL_RATIO * max(r.max(), 1e-300) for r in ranges]
        return np.asarray(np.all([*is_alive, self._is_free], axis=0))

    def __call__(self, s: np.ndarray) -> float:
        """Return the predicted noise of the group for the factors `s` [C] of its classes.

        It is the sum of the consuming layers' output noise, each relative to its output power.
        """
        weight_noise = np.zeros(len(s))
        for producer in self._producers:
            max_abs = (s[producer.classes] * producer.max_abs).max()
            noise = (max_abs / producer.max_integer) ** 2 * producer.input_power
            if producer.rectified is not None:
                max_abs = (s[producer.classes] * producer.rectified.max_abs).max()
                noise += (max_abs / self._max_activation_integer) ** 2 * producer.rectified.gain
            np.add.at(weight_noise, producer.classes, noise)
        total = 0.0
        for consumer in self._consumers:
            factors = s[consumer.classes]
            step_x = (factors * consumer.input_stats.max_abs).max() / self._max_activation_integer
            step_w = (consumer.max_abs / factors).max() / consumer.max_integer
            gain = np.square(consumer.columns).sum(axis=1) / factors**2
            input_noise = step_x**2 + weight_noise[consumer.classes]
            noise = (gain * input_noise).sum() + step_w**2 * consumer.columns.shape[1] * (
                factors**2 * consumer.input_stats.mean_square
            ).sum()
            total += float(noise) / max(consumer.output_power, 1e-300)
        return total


class _RectifiedOutput(NamedTuple):
    """The output of a layer that only a LeakyRelu or PRelu reads, and that has a scale of its own.

    Attributes
    ----------
    max_abs
        Largest magnitude of each channel.
    gain
        Ratio of the mean squares after and before the function, per channel.
    """

    max_abs: np.ndarray
    gain: np.ndarray

    @classmethod
    def from_layer(
        cls, node: ir.Node, stats: Mapping[str, ChannelStats]
    ) -> _RectifiedOutput | None:
        """Return the data of the output of the layer `node`; None if it has another consumer."""
        consumer = ir.sole_consumer(node.outputs[0])
        if consumer is None or not ir.is_standard_op(consumer, "LeakyRelu", "PRelu"):
            return None
        before, after = stats[ir.output_name(node)], stats.get(ir.output_name(consumer))
        if after is None:
            return None
        gain = after.mean_square / np.maximum(before.mean_square, 1e-300)
        return cls(before.max_abs, gain)


class _Producer(NamedTuple):
    """A layer that writes the tensors of a group.

    Attributes
    ----------
    classes
        Class of each output channel.
    max_abs
        Largest magnitude of the weights of each output channel.
    input_power
        Summed mean square of the inputs of one output, per output channel.
    max_integer
        Largest integer of its weights.
    rectified
        Its output, if only a LeakyRelu or PRelu reads it.
    """

    classes: np.ndarray
    max_abs: np.ndarray
    input_power: np.ndarray
    max_integer: int
    rectified: _RectifiedOutput | None

    @classmethod
    def from_node(
        cls,
        node: ir.Node,
        classes: np.ndarray,
        stats: Mapping[str, ChannelStats],
        policy: ScalePolicy,
    ) -> _Producer:
        """Return the data of the layer `node` that writes tensors of a group.

        They are the largest weight and the input power of each output channel, the largest weight
        integer, and the output if it is rounded before a LeakyRelu or PRelu.
        """
        weight = _weight_array(node)
        return cls(
            classes,
            np.abs(weight).reshape(len(weight), -1).max(axis=1),
            _fan_in_power(node, stats),
            _max_integer(policy.weight_bits_for(ir.input_name(node, 1))),
            _RectifiedOutput.from_layer(node, stats),
        )


class _Consumer(NamedTuple):
    """A layer that reads the tensors of a group.

    Attributes
    ----------
    classes
        Class of each input channel.
    columns
        Weights of each input channel, [C, n].
    max_abs
        Largest magnitude of the weights of each input channel.
    input_stats
        Statistics of its input.
    output_power
        Mean square of its output, summed over channels.
    max_integer
        Largest integer of its weights.
    """

    classes: np.ndarray
    columns: np.ndarray
    max_abs: np.ndarray
    input_stats: ChannelStats
    output_power: float
    max_integer: int

    @classmethod
    def from_node(
        cls,
        node: ir.Node,
        classes: np.ndarray,
        stats: Mapping[str, ChannelStats],
        policy: ScalePolicy,
    ) -> _Consumer:
        """Return the data of the layer `node` that reads tensors of a group.

        They are its weights by input channel with their largest magnitudes, its input's statistics,
        its output power, and the largest weight integer.
        """
        columns = _weights_by_input_channel(_weight_array(node), _count_groups(node))
        return cls(
            classes,
            columns,
            np.abs(columns).max(axis=1),
            stats[ir.input_name(node)],
            float(stats[ir.output_name(node)].mean_square.sum()),
            _max_integer(policy.weight_bits_for(ir.input_name(node, 1))),
        )


def _max_integer(bits: int) -> int:
    """Return the largest signed integer of `bits` bits."""
    return (1 << (bits - 1)) - 1


def _choose_factors(
    group: ChannelGroup,
    stats: Mapping[str, ChannelStats],
    policy: ScalePolicy,
    required_improvement: float,
) -> np.ndarray | None:
    """Return the factors of `group` with the lowest predicted noise, float64 [C], or None.

    Five weightings of producing weights, activations and consuming weights are tried. None if none
    predicts less than `required_improvement` times the noise without factors, if no channel may be
    scaled, or if the layers lack statistics or agreement on the channels.
    """
    if not _is_equalizable(group, stats):
        return None
    noise = _PredictedNoise(group, stats, policy)
    alive = noise.alive()
    if not alive.any():
        return None
    best_factors: np.ndarray | None = None
    best_noise = noise(np.ones(len(alive))) * required_improvement
    for weighting in _WEIGHTINGS:
        factors = _solve_factors(noise, alive, weighting)
        predicted_noise = noise(factors)
        if predicted_noise < best_noise:
            best_factors, best_noise = factors, predicted_noise
    return best_factors


def _is_equalizable(group: ChannelGroup, stats: Mapping[str, ChannelStats]) -> bool:
    """Whether the layers of `group` agree on the number of channels and have statistics.

    False if a layer lacks statistics of its input or output. The numbers of channels are those of
    the consumers' inputs and of the producers' weights.
    """
    for node in (*group.producers, *group.consumers):
        if ir.input_name(node) not in stats or ir.output_name(node) not in stats:
            return False
    for node in group.consumers:
        if len(stats[ir.input_name(node)].max_abs) != len(group.input_classes(node)):
            return False
    return all(
        len(_weight_array(node)) == len(group.output_classes(node)) for node in group.producers
    )


def _solve_factors(
    noise: _PredictedNoise, alive: np.ndarray, weighting: tuple[float, float, float]
) -> np.ndarray:
    """Return factors s, float64 [C], that even out the ranges of all channels, for a weighting.

    `weighting` has the weights of producing weights (times s), activations (times s) and consuming
    weights (divided by s) in a least-squares fit of their logarithms. Factors are limited to 1/64
    .. 64; channels that are not `alive` get 1.
    """
    w1, wa, w2 = weighting
    log_factors = np.zeros(len(alive))
    terms = (
        (w1, noise.producer_max_abs),
        (wa, noise.activation_max_abs),
        (-w2, noise.consumer_max_abs),
    )
    for weight, ranges in terms:
        logs = np.log(np.where(alive, ranges, 1.0))
        log_factors -= weight * (logs - logs[alive].mean())
    limit = math.log(_MAX_FACTOR)
    clipped = np.clip(log_factors / (w1 + wa + w2), -limit, limit)
    return np.asarray(np.exp(np.where(alive, clipped, 0.0)))


def _weight_array(node: ir.Node) -> np.ndarray:
    """Return the constant weights of the layer `node` as float64 [O, I/group, ...].

    Those of a BatchNormalization are its factors, [C, 1].
    """
    if node.op_type == "BatchNormalization":
        folded = fold_batch_norm_parameters(node)
        assert folded is not None
        return folded[0][:, None]
    array = ir.const_value(node.inputs[1])
    assert array is not None
    return array.astype(np.float64)


def _count_groups(node: ir.Node) -> int:
    """Return the number of groups of a layer; each channel of a BatchNormalization is one."""
    if node.op_type == "BatchNormalization":
        return len(_weight_array(node))
    return int(ir.get_attr(node, "group", 1))


def _weights_by_input_channel(weight: np.ndarray, group: int) -> np.ndarray:
    """Return weights [O, I/group, ...] reordered to [I, all weights that read channel i]."""
    outputs, depth = weight.shape[:2]
    split = weight.reshape(group, outputs // group, depth, -1)
    return split.transpose(0, 2, 1, 3).reshape(group * depth, -1)


def _fan_in_power(node: ir.Node, stats: Mapping[str, ChannelStats]) -> np.ndarray:
    """Return the summed mean square of the inputs of one output of `node`, per output channel.

    If the input's statistics have another number of channels, their mean counts for each.
    """
    weight = _weight_array(node)
    group, depth = _count_groups(node), weight.shape[1]
    power = stats[ir.input_name(node)].mean_square
    if len(power) != group * depth:
        power = np.full(group * depth, power.mean())
    per_group = power.reshape(group, depth).sum(axis=1) * math.prod(weight.shape[2:])
    return np.repeat(per_group, len(weight) // group)
