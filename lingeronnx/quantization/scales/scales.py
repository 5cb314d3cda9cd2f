"""Assign scales: each shared scale and each weight gets the best one by its calibrator."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ...common.hashing import hash_framed_parts
from ...ir import ir
from ...ir.plan import Affine, PerAxis, Plan
from ...ir.plan.power_of_two import floor_power_of_two
from ...operators.lowerings import Op, get_weight_values
from ...targets import Target
from ..calibration.statistics import ConsumerFunction, Curve, Stats, TensorStats
from ..factor_groups import find_saturated_clip_bounds
from ..partition import Partition
from .feasible import legalize
from .group_scales import compute_group_qparams
from .output_bits import apply_output_bits
from .scale_policy import ScalePolicy, TensorScalePolicy
from .shared_scales import SharedScaleGroup

__all__ = ["assign_qparams", "calibrate_activations"]

_CLIP_BOUND_TOLERANCE = 1e-6  # relative float32 rounding error of a bound
# Maximum scale of a channel relative to the smallest one: smaller weights are negligible.
_MAX_CHANNEL_SCALE_RATIO = 2.0**24


def assign_qparams(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
) -> tuple[Plan, list[str]]:
    """Choose the parameters of all activations and weights, and legalize them for the target.

    Parameters
    ----------
    partition
        The float graph.
    shared_groups
        Groups of tensors that share a scale, from `group_shared_scales`.
    stats
        Statistics of the activations.
    target, policy
        The target, and the policy for choosing scales.

    Returns
    -------
    plan : Plan
        The plan.
    notes : list of str
        Notes for the report: tensors and weights that are all zero, outputs in float, weights with
        more bits than requested, zero points, and lowered scales.

    Raises
    ------
    ConfigError
        If an output width is not supported.
    ConstraintError
        If a scale is too small for the target or a consumer, or no power of two where needed.
    """
    notes: list[str] = []
    tensors = calibrate_activations(partition, shared_groups, stats, target, policy, notes)
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            name = ir.input_name(node, index)
            values = get_weight_values(node, index)
            assert values is not None
            if name in policy.fixed_qparams:
                tensors[name] = policy.fixed_qparams[name]
                continue
            if not np.any(values):
                notes.append(f"weight '{name}' of {node.name} is all zero")
            tensors[name] = _calibrate_weight(name, np.asarray(values), op, policy)
    if policy.out_bits:
        apply_output_bits(tensors, partition, stats, policy, target)
    if target.executor:
        notes += [
            f"output '{name}' is written by LinearInt as float32: valid in the graph format, but "
            "not verified with any executor"
            for name, bits in policy.out_bits.items()
            if bits == "float"
        ]
    if policy.widened_weights:
        notes += _format_widened_weights(policy, target)
    if policy.mode == "q-value":
        _apply_coarser_inputs(tensors, partition, shared_groups, target, policy)
    plan = Plan(
        platform=target.name,
        executor=target.executor,
        mode=policy.mode,
        tensors=tensors,
        floats=dict(partition.floats),
    )
    plan, legalization_notes = legalize(plan, partition, shared_groups, target)
    if policy.asymmetric:
        notes.append(_format_zero_point_note(partition, plan, target))
    return plan, notes + legalization_notes


def _calibrate_weight(name: str, values: np.ndarray, op: Op, policy: ScalePolicy) -> Affine:
    """Choose the parameters of the weight `name`: per group, per channel or per tensor.

    Per tensor if the policy or a scale in the overrides says so; in groups if the policy has a size
    below that of axis 1, for up to 8 bits and an operator that supports them; else per channel, if
    the operator has a channel axis.
    """
    setting = policy.policy_for_tensors([name], policy.weight_bits)
    if policy.weight_scales == "tensor" or setting.scale is not None:
        return _weight_qparams(values, None, setting)
    group_size = None
    if op.integer_op.supports_group_scales and setting.bits <= 8:
        group_size = policy.group_size
    if group_size is not None and group_size < values.shape[1] and np.any(values):
        return compute_group_qparams(
            values,
            group_size,
            setting.bits,
            power_of_two=setting.power_of_two,
            calibrator=setting.calibrator,
            weights_refined=policy.weights_refined,
        )
    return _weight_qparams(values, op.integer_op.channel_axis, setting)


def _format_widened_weights(policy: ScalePolicy, target: Target) -> list[str]:
    """Return a note, for each reason, on the nodes whose weights get more bits than requested."""
    nodes_by_reason: dict[str, list[str]] = {}
    for node, reason in policy.widened_weights.values():
        nodes_by_reason.setdefault(reason, []).append(node)
    return [
        f"weights of {', '.join(dict.fromkeys(nodes))} keep {min(target.bits)} bits: {reason}"
        for reason, nodes in nodes_by_reason.items()
    ]


def _format_zero_point_note(partition: Partition, plan: Plan, target: Target) -> str:
    """Return the note on how many activations of `plan` have a zero point other than 0.

    It also names the operators that support symmetric integers only.
    """
    qparams = [plan.tensors[name] for name in partition.activations if name in plan.tensors]
    reasons = partition.symmetric_tensors(target).values()
    operators = sorted({reason.partition(" ")[0] for reason in reasons})
    shifted = sum(entry.shifted for entry in qparams)
    note = f"{shifted} of {len(qparams)} activations have a zero point other than 0"
    if operators:
        note += f"; {', '.join(operators)} support symmetric integers only"
    return note


def calibrate_activations(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
    notes: list[str],
) -> dict[str, Affine]:
    """Return {tensor: parameters} of all activations by their calibrators, before legalization.

    Tensors that share a scale get one object. If the policy has `fixed_qparams` of a group's first
    tensor, the group's parameters are taken from there. Arbitrary choices for all-zero tensors are
    appended to `notes`.
    """
    tensors: dict[str, Affine] = {}
    clip_bounds = find_saturated_clip_bounds(partition, target)
    # The result of a function comes before its input, whose scale depends on it.
    independent = [group for group in shared_groups if not group.reader_output]
    dependent = [group for group in shared_groups if group.reader_output]
    for group in (*independent, *reversed(dependent)):
        if group.tensors[0] in policy.fixed_qparams:
            tensors.update({name: policy.fixed_qparams[name] for name in group.tensors})
            continue
        setting = policy.policy_for_tensors(group.tensors, policy.bits)
        bounds = [clip_bounds[name] for name in group.tensors if name in clip_bounds]
        clip_bound = min(bounds, default=None)
        consumer, qparams = None, None
        if group.reader_function is not None:
            consumer = _consumer_of(
                group.reader_function, group.reader_output, tensors.get(group.reader_output)
            )
        if setting.allows_zero_point and group.allows_zero_point:
            qparams = _affine_qparams_for_group(group, stats, setting, consumer)
        if qparams is None:
            scale = _symmetric_scale_for_group(group, clip_bound, stats, setting, consumer, notes)
            qparams = Affine(scale, setting.bits)
        tensors.update(dict.fromkeys(group.tensors, qparams))
    return tensors


def _consumer_of(function: Curve, output: str, result: Affine | None) -> ConsumerFunction | None:
    """Return `function`, the only consumer of tensors, for the error of their scale.

    None if it writes integers, to the tensor `output`, whose parameters `result` are unknown.
    """
    if result is None:
        return None if output else ConsumerFunction(function)
    zero = result.zero_point
    return ConsumerFunction(function, result.scale, result.low - zero, result.high - zero)


def _affine_qparams_for_group(
    group: SharedScaleGroup,
    stats: Stats,
    setting: TensorScalePolicy,
    consumer: ConsumerFunction | None,
) -> Affine | None:
    """Choose the parameters of `group` with a zero point, which setting and group allow.

    None for a given scale, for more than 8 bits, and without statistics or with zeros only.
    """
    if setting.scale is not None or setting.bits > 8:
        return None
    group_stats = group.merged_stats(stats)
    if group_stats is None or group_stats.sum_of_squares == 0:
        return None
    scale, zero = setting.choose_qparams(group_stats, consumer)
    return Affine(scale, setting.bits, zero_point=zero)


def _weight_qparams(values: np.ndarray, axis: int | None, setting: TensorScalePolicy) -> Affine:
    """Choose the scale of a weight, or one for each index of `axis`, from its `values`.

    It is one if `axis` is None or has size 1, or all values are 0; a scale in the setting counts
    only then. A channel of zeros gets the smallest scale of the others, and so does a nearly zero
    one, whose scale is more than 2^24 times the smallest.
    """
    if axis is None or values.shape[axis] == 1 or not np.any(values):
        scale = setting.scale or setting.choose_scale(TensorStats.from_array(values))
        return Affine(scale, setting.bits)
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    return Affine(_choose_channel_scales(channels, setting), setting.bits, PerAxis(axis))


#: Scales of weights [channels, n] by their digest and policy: trials plan the same weights again.
_CHANNEL_SCALES: OrderedDict[tuple[bytes, TensorScalePolicy], list[float]] = OrderedDict()
_MAX_CACHED_WEIGHTS = 512


def _choose_channel_scales(channels: np.ndarray, setting: TensorScalePolicy) -> list[float]:
    """Choose the scale of each row of `channels` [channels, n], which are not all 0.

    Rows of zeros and nearly zero ones get the smallest scale of the others. Results for the last
    weights are kept.
    """
    layout = f"{channels.dtype.str} {channels.shape}".encode()
    key = hash_framed_parts([layout, channels.tobytes()]), setting
    if key in _CHANNEL_SCALES:
        return _CHANNEL_SCALES[key]
    scales = np.full(len(channels), math.inf)
    has_values = channels.any(axis=1)
    scales[has_values] = setting.choose_row_scales(channels[has_values])
    min_scale = scales.min()
    max_scale = min_scale * _MAX_CHANNEL_SCALE_RATIO
    limited: list[float] = np.where(scales > max_scale, min_scale, scales).tolist()
    _CHANNEL_SCALES[key] = limited
    if len(_CHANNEL_SCALES) > _MAX_CACHED_WEIGHTS:
        _CHANNEL_SCALES.popitem(last=False)
    return limited


def _apply_coarser_inputs(
    tensors: dict[str, Affine],
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    policy: ScalePolicy,
) -> None:
    """Set inputs that are better at the scale of the operator's output to that scale, in place.

    The tensors that share the scale change too. The inputs are those that the operator names in
    `inputs_to_coarsen`, if they have the width of the output. Scales set by the user or fixed are
    not changed.
    """
    members: dict[str, tuple[str, ...]] = {}
    for group in shared_groups:
        members.update(dict.fromkeys(group.tensors, group.tensors))

    def is_fixed(name: str) -> bool:
        """Whether the policy sets the scale of tensor `name`, by override or fixed parameters."""
        return name in policy.fixed_qparams or "scale" in policy.overrides.get(name, {})

    for node, op in partition.integer_nodes:
        find_inputs = op.scale_constraints.inputs_to_coarsen
        operands = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if find_inputs is None or any(str(value.name) not in tensors for value in operands):
            continue
        for name in find_inputs(node, target, lambda name: tensors[name].scale):
            output = tensors[ir.output_name(node)]
            if tensors[name].bits == output.bits and not any(map(is_fixed, members[name])):
                for member in members[name]:
                    tensors[member] = tensors[member].changed(output.scale)


def _symmetric_scale_for_group(
    group: SharedScaleGroup,
    clip_bound: float | None,
    stats: Stats,
    setting: TensorScalePolicy,
    consumer: ConsumerFunction | None,
    notes: list[str],
) -> float:
    """Choose the scale (steps per unit) of a group without zero point.

    The first that applies: the scale of the setting, the clip bound, an arbitrary one for zeros
    only, the calibrated scale adapted to the bounds of the group.

    Parameters
    ----------
    group
        Tensors that share the scale.
    clip_bound
        Bound at which an operator clips the values by saturation, which becomes the largest
        integer unless larger values were observed as well; None: no bound.
    stats, setting, consumer
        Statistics, policy, and the function that is the only consumer.
    notes
        List to which an arbitrary choice is appended.
    """
    if setting.scale is not None:
        return setting.scale
    max_integer = (1 << (setting.bits - 1)) - 1
    group_stats = group.merged_stats(stats)
    if clip_bound is not None and (
        group_stats is None or group_stats.high <= clip_bound * (1 + _CLIP_BOUND_TOLERANCE)
    ):
        return floor_power_of_two(max_integer / clip_bound, imported=True)
    if group_stats is None or group_stats.sum_of_squares == 0:
        notes.append(
            f"tensor '{group.tensors[-1]}' is all zero in the calibration data; its scale is "
            "arbitrary"
        )
        return float(1 << (setting.bits - 1))
    scale = setting.choose_scale(group_stats, consumer)
    return _apply_bounds(scale, group, group_stats, setting)


def _apply_bounds(
    scale: float, group: SharedScaleGroup, group_stats: TensorStats, setting: TensorScalePolicy
) -> float:
    """Return the calibrated `scale` (steps per unit), adapted to the bounds of the group's values.

    In this order: an output bound raises a power-of-two scale to the one that represents it; above
    8 bits a hard bound determines the scale; a headroom below the smallest value limits it from
    above.
    """
    max_integer = (1 << (setting.bits - 1)) - 1
    if setting.power_of_two and group.output_bound is not None:
        # The bound itself saturates by one step, which costs less than one bit.
        scale = max(scale, floor_power_of_two((max_integer + 1) / group.output_bound))
    if setting.bits > 8 and group.hard_bound is not None:
        if setting.power_of_two:
            scale = floor_power_of_two((max_integer + 1) / group.hard_bound)
        else:
            scale = max_integer / group.hard_bound
    if group.headroom_below is not None:
        limit = (max_integer + 1) / (group.headroom_below - min(group_stats.low, 0.0))
        scale = min(scale, floor_power_of_two(limit) if setting.power_of_two else limit)
    return scale
