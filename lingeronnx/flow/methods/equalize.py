"""Equalize channels: a factor per channel, so that one scale per tensor suits all of them (cross-layer equalization).

For a group of tensors whose channels run through (Relu, pooling, Add), with producing weights W1
and reading weights W2, the factor s_c multiplies row c of W1 and the activations, and divides
column c of W2. In logarithms, with r1, a, r2 the ranges of channel c of W1, the activations and W2
(mean over channels removed), the least-squares solution of "all three even" is

    log s = (w2 * log r2 - w1 * log r1 - wa * log a) / (w1 + wa + w2)

Nagel et al. (2019) is the case wa = 0. Which weighting serves best, or none, depends on what limits
the layer, so each is judged by the noise it predicts in the outputs of the reading layers, relative
to their power P_y:

    N = sum over readers [ sum_c |W2_c|^2 / s_c^2 * (dx^2 + dw1^2 * P_in,c) + dw2^2 * m * sum_c
    s_c^2 * P_x,c ] / P_y

with dx, dw1, dw2 the steps (range / 127 at 8 bits), P the mean squares seen and m the readings of a
channel. Sweeps repeat it over all groups until nothing moves. A channel that is dead in any of the
three keeps factor 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...formats import ADD, AVG_POOL2D, MAX_POOL, RELU
from ...graph import ir, operators
from ...run.runners import FloatRunner
from ..assign.scale_policy import ScalePolicy
from ..factor_groups import FactorSets, pin_boundary_tensors
from ..partition import Partition
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
_MIN_IMPROVEMENT = 0.98  # a step must predict less than this share of the noise
_DEAD_CHANNEL_RATIO = 1e-6
_MAX_FACTOR = 2.0**6  # of one step's factor, either way
_DEFAULT_POLICY = ScalePolicy("q-value", 8, 8, "mse", 100.0, {})


@dataclass(frozen=True)
class ChannelStats:
    """What was seen of a tensor per channel: largest magnitude and mean square, float64 [C]."""

    max_abs: np.ndarray
    mean_square: np.ndarray


@dataclass(frozen=True)
class _ChannelGroup:
    """Tensors that share factors per channel, the layers that write them and those that read them."""

    tensors: tuple[str, ...]
    writers: tuple[ir.Node, ...]
    readers: tuple[ir.Node, ...]


def equalize_channels(
    partition: Partition,
    feeds: Sequence[Mapping[str, np.ndarray]],
    policy: ScalePolicy = _DEFAULT_POLICY,
    runner: FloatRunner | None = None,
    known_stats: dict[str, ChannelStats] | None = None,
) -> dict[str, np.ndarray]:
    """Equalize the float graph of `partition` in place and return the factors {tensor.

    Float64 [channels]}.
    feeds : some tens of calibration samples, in pieces that are run one after the other. choice :
    how wide activations and weights are. runner : of the graph's tensors as they are now, where
    there is one already. known : what was seen of these on the same feeds; what it lacks is added.
    """
    groups = _find_channel_groups(partition)
    if not groups:
        return {}
    names, known_stats = set(partition.activations), {} if known_stats is None else known_stats
    if missing := names - known_stats.keys():
        known_stats.update(
            _collect_channel_stats(
                FloatRunner(partition.graph, missing) if runner is None else runner, feeds, missing
            )
        )
    channel_spans = {name: spans for name, spans in known_stats.items() if name in names}
    total: dict[str, np.ndarray] = {}
    for _ in range(_SWEEPS):
        moved = False
        for group in groups:
            factor = _choose_factors(group, channel_spans, policy)
            if factor is None:
                continue
            moved = True
            step = dict.fromkeys(group.tensors, factor)
            apply_factors(partition, step)
            total = multiply_factors(total, step)
            for name in group.tensors:
                if name in channel_spans:
                    channel_spans[name] = ChannelStats(
                        channel_spans[name].max_abs * factor,
                        channel_spans[name].mean_square * factor**2,
                    )
        if not moved:
            break
    return total


def _collect_channel_stats(
    runner: FloatRunner, feeds: Sequence[Mapping[str, np.ndarray]], names: set[str]
) -> dict[str, ChannelStats]:
    from simulator.histogram import channel_statistics

    spans: dict[str, ChannelStats] = {}
    sizes: dict[str, int] = {}
    for name, array, _ in (item for feed in feeds for item in runner.run(feed, names)):
        if array.ndim >= 2 and array.size:
            reach, power = channel_statistics(array.astype(np.float32, copy=False))
            size = array.size // array.shape[1]
            old, before = spans.get(name), sizes.get(name, 0)
            if old is not None:
                reach, power = np.maximum(old.max_abs, reach), power + old.mean_square * before
            sizes[name] = before + size
            spans[name] = ChannelStats(reach, power / sizes[name])
    return spans


def _find_channel_groups(partition: Partition) -> list[_ChannelGroup]:
    """Return the free groups of tensors whose channels correspond one to one."""
    union = FactorSets()
    pin_boundary_tensors(union, partition)
    for node, op in partition.integer_nodes:
        sources = [ir.input_name(node, i) for i in op.data(node)]
        result = ir.output_name(node)
        through = op.name in (
            RELU.name,
            MAX_POOL.name,
            AVG_POOL2D.name,
            ADD.name,
        ) or _is_flatten_of_1x1(node)
        if node.op_type in ("Conv", "Linear"):
            union.find(sources[0])
            union.find(result)
            if (
                node.op_type == "Linear" and len(ir.get_shape(node.outputs[0]) or ()) != 2
            ):  # its channels are not on axis 1
                union.pin(sources[0])
                union.pin(result)
        elif through:
            for source in sources:
                union.union(source, result)
        else:
            for name in (
                *sources,
                *(str(node.outputs[i].name) for i in op.quantized_outputs(node)),
            ):
                union.pin(name)
    groups = []
    for tensors in union.groups().values():
        inside = set(tensors)
        layers = [
            node
            for node, op in partition.integer_nodes
            if op.scale_constraints.factor_behavior == "absorbed"
        ]
        writers = tuple(n for n in layers if ir.output_name(n) in inside)
        readers = tuple(n for n in layers if ir.input_name(n) in inside)
        if union.is_free(tensors) and writers and readers:
            groups.append(_ChannelGroup(tuple(tensors), writers, readers))
    return groups


def _is_flatten_of_1x1(node: ir.Node) -> bool:
    """Whether `node` turns [N, C, 1, 1] into [N, C]."""
    source, result = (ir.get_shape(v) or () for v in (node.inputs[0], node.outputs[0]))
    moves = node.op_type in operators.RESHAPING_OPS
    return (
        moves
        and len(source) == 4
        and source[2:] == (1, 1)
        and len(result) == 2
        and result[1] == source[1]
    )


class _PredictedNoise:
    """The predicted noise of a group as a function of the factors; all arrays float64 [C]."""

    def __init__(
        self, group: _ChannelGroup, spans: Mapping[str, ChannelStats], policy: ScalePolicy
    ) -> None:
        self.levels_x = _max_integer(policy.width(*group.tensors))
        self.levels_1, self.levels_2 = (
            [_max_integer(policy.weight_bits_for(ir.input_name(node, 1))) for node in nodes]
            for nodes in (group.writers, group.readers)
        )
        self.rows = [_weight_array(node) for node in group.writers]
        self.columns = [
            _weights_by_input_channel(_weight_array(node), int(ir.get_attr(node, "group", 1)))
            for node in group.readers
        ]
        self.acts = [spans[ir.input_name(node)] for node in group.readers]
        self.fan_in = [_fan_in_power(node, spans) for node in group.writers]
        self.out_power = [
            float(spans[ir.output_name(node)].mean_square.sum()) for node in group.readers
        ]
        self.r1 = np.max([np.abs(w).reshape(len(w), -1).max(axis=1) for w in self.rows], axis=0)
        self.r2 = np.max([np.abs(c).max(axis=1) for c in self.columns], axis=0)
        self.reach = np.max([a.max_abs for a in self.acts], axis=0)

    def alive(self) -> np.ndarray:
        """Return which channels may be scaled."""
        parts = (self.r1, self.r2, self.reach)
        return np.asarray(
            np.all([r > _DEAD_CHANNEL_RATIO * max(r.max(), 1e-300) for r in parts], axis=0)
        )

    def __call__(self, s: np.ndarray) -> float:
        """Return N for the factors `s`."""
        from_weights = np.zeros(len(s))
        for weight, power, levels in zip(self.rows, self.fan_in, self.levels_1, strict=True):
            reach = (s * np.abs(weight).reshape(len(weight), -1).max(axis=1)).max()
            from_weights += (reach / levels) ** 2 * power
        total = 0.0
        for columns, act, out, levels in zip(
            self.columns, self.acts, self.out_power, self.levels_2, strict=True
        ):
            step_x = (s * act.max_abs).max() / self.levels_x
            step_w = (np.abs(columns).max(axis=1) / s).max() / levels
            gain = np.square(columns).sum(axis=1) / s**2
            noise = (gain * (step_x**2 + from_weights)).sum() + step_w**2 * columns.shape[1] * (
                s**2 * act.mean_square
            ).sum()
            total += float(noise) / max(out, 1e-300)
        return total


def _max_integer(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def _choose_factors(
    group: _ChannelGroup, spans: Mapping[str, ChannelStats], policy: ScalePolicy
) -> np.ndarray | None:
    """Return the best of the weighted solutions, or None when leaving the group alone is as good."""
    layers = (*group.writers, *group.readers)
    names = [name for n in layers for name in (ir.input_name(n), ir.output_name(n))]
    if any(name not in spans for name in names) or any(
        n.op_type == "BatchNormalization" for n in layers
    ):
        return None
    channels = {len(spans[ir.input_name(n)].max_abs) for n in group.readers}
    channels |= {len(_weight_array(n)) for n in group.writers}
    if len(channels) != 1:
        return None
    noise = _PredictedNoise(group, spans, policy)
    alive = noise.alive()
    if not alive.any():
        return None
    best = noise(np.ones(len(alive))) * _MIN_IMPROVEMENT, None
    for weighting in _WEIGHTINGS:
        factor = _solve_factors(noise, alive, weighting)
        predicted = noise(factor)
        if predicted < best[0]:
            best = predicted, factor  # type: ignore[assignment]
    return best[1]


def _solve_factors(
    noise: _PredictedNoise, alive: np.ndarray, weighting: tuple[float, float, float]
) -> np.ndarray:
    """Return s of the least-squares formula for one weighting."""
    w1, wa, w2 = weighting
    log = np.zeros(len(alive))
    for weight, reach in ((w1, noise.r1), (wa, noise.reach), (-w2, noise.r2)):
        logs = np.log(np.where(alive, reach, 1.0))
        log -= weight * (logs - logs[alive].mean())
    limit = math.log(_MAX_FACTOR)
    return np.asarray(np.exp(np.where(alive, np.clip(log / (w1 + wa + w2), -limit, limit), 0.0)))


def _weight_array(node: ir.Node) -> np.ndarray:
    array = ir.const_value(node.inputs[1])
    assert array is not None
    return array.astype(np.float64)


def _weights_by_input_channel(weight: np.ndarray, group: int) -> np.ndarray:
    """Return the weights [O, I/group, ...] as [I, everything that reads channel i]."""
    outputs, depth = weight.shape[:2]
    split = weight.reshape(group, outputs // group, depth, -1)
    return split.transpose(0, 2, 1, 3).reshape(group * depth, -1)


def _fan_in_power(node: ir.Node, spans: Mapping[str, ChannelStats]) -> np.ndarray:
    """Return the summed mean square of what one output of `node` reads, per output channel."""
    weight = _weight_array(node)
    group, depth = int(ir.get_attr(node, "group", 1)), weight.shape[1]
    power = spans[ir.input_name(node)].mean_square
    if len(power) != group * depth:
        power = np.full(group * depth, power.mean())
    per_group = power.reshape(group, depth).sum(axis=1) * math.prod(weight.shape[2:])
    return np.repeat(per_group, len(weight) // group)
