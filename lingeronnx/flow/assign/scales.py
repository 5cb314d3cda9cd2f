"""From statistics to scales.

What shares one, and every weight, gets the best one by its calibrator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...graph import ir
from ...ops import get_weight_values
from ...plan import Affine, PerAxis, Plan
from ...plan.power_of_two import floor_power_of_two
from ...targets import Target
from ..observe.statistics import ConsumerFunction, Stats, TensorStats
from ..partition import Partition
from .group_scales import compute_group_qparams
from .legalize import legalize
from .output_bits import apply_output_bits
from .scale_policy import ScalePolicy, TensorScalePolicy
from .shared_scales import SharedScaleGroup, find_saturated_clip_bounds

__all__ = ["assign_qparams", "calibrate_activations"]

_CLIP_BOUND_TOLERANCE = 1e-6  # of a bound: what float32 rounds
_MAX_CHANNEL_SCALE_RATIO = (
    2.0**24
    # times the scale of a weight's largest channel: what is smaller than that is rounded to zero anyway
)


def assign_qparams(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
) -> tuple[Plan, list[str]]:
    """Return the plan for `partition` and the notes a user should read (all-zero tensors, moved scales).

    shared_groups : those that `shared_scales` found. stats : of the activations of `partition`.
    """
    notes: list[str] = []
    tensors = calibrate_activations(partition, shared_groups, stats, target, policy, notes)
    for node, op in partition.integer_nodes:
        for index in op.weight_inputs(node):
            name = ir.input_name(node, index)
            values = get_weight_values(node, index)
            assert values is not None
            setting = policy.policy_for_tensors([name], policy.weight_bits)
            if name in policy.held:
                tensors[name] = policy.held[name]
                continue
            if not np.any(values):
                notes.append(f"weight '{name}' of {node.name} is all zero")
            finer = policy.weight_scales != "tensor" and setting.scale is None
            size = (
                policy.group_size
                if finer and op.integer_op.supports_group_scales and setting.bits <= 8
                else None
            )
            if size is not None and size < values.shape[1] and np.any(values):
                tensors[name] = compute_group_qparams(
                    np.asarray(values),
                    size,
                    setting.bits,
                    power_of_two=setting.power_of_two,
                    calibrator=setting.calibrator,
                    weights_refined=policy.weights_refined,
                )
            else:
                tensors[name] = _weight_qparams(
                    np.asarray(values), op.integer_op.channel_axis if finer else None, setting
                )
    apply_output_bits(tensors, partition, stats, policy, target)
    if target.executor:
        notes += [
            f"output '{name}' leaves LinearInt in float32: the graph format has that form, but no "
            "executor was "
            "measured with it"
            for name, bits in policy.out_bits.items()
            if bits == "float"
        ]
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
    plan, moves = legalize(plan, partition, shared_groups, target)
    if policy.asymmetric:
        notes.append(_format_zero_point_note(partition, plan, target))
    return plan, notes + moves


def _format_widened_weights(policy: ScalePolicy, target: Target) -> list[str]:
    """Return a note for each reason why weights have more bits than they were told."""
    layers: dict[str, list[str]] = {}
    for node, why in policy.widened_weights.values():
        layers.setdefault(why, []).append(node)
    return [
        f"weights of {', '.join(dict.fromkeys(names))} stay at {min(target.bits)} bits: {why}"
        for why, names in layers.items()
    ]


def _format_zero_point_note(partition: Partition, plan: Plan, target: Target) -> str:
    """Return a note on the activations that have no zero point."""
    parameters = [plan.tensors[name] for name in partition.activations if name in plan.tensors]
    why = sorted(
        {reason.partition(" ")[0] for reason in partition.symmetric_tensors(target).values()}
    )
    moved = sum(q.shifted for q in parameters)
    text = f"{moved} of {len(parameters)} activations have a zero point other than 0"
    return f"{text}; {', '.join(why)} take integers around 0 only" if why else text


def calibrate_activations(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Stats,
    target: Target,
    policy: ScalePolicy,
    notes: list[str],
) -> dict[str, Affine]:
    """Return how the calibrators would hold each activation, before `legalize`.

    What they guess goes to `notes`.
    """
    tensors: dict[str, Affine] = {}
    pinned = find_saturated_clip_bounds(partition, target)
    for group in (
        *(g for g in shared_groups if not g.reader_output),
        *reversed([g for g in shared_groups if g.reader_output]),
    ):
        if group.tensors[0] in policy.held:
            tensors.update({name: policy.held[name] for name in group.tensors})
            continue
        setting = policy.policy_for_tensors(group.tensors, policy.bits)
        top = min((pinned[name] for name in group.tensors if name in pinned), default=None)
        through = _consumer_of(group, tensors.get(group.reader_output))
        window = _affine_qparams_for_group(group, stats, setting, through)
        if window is None:
            window = Affine(
                _symmetric_scale_for_group(group, top, stats, setting, through, notes), setting.bits
            )
        tensors.update(dict.fromkeys(group.tensors, window))
    return tensors


def _consumer_of(group: SharedScaleGroup, written: Affine | None) -> ConsumerFunction | None:
    """Return what alone reads a class and writes a tensor held as `written`, None where that is not known."""
    if group.reader_function is None or (group.reader_output and written is None):
        return None
    if written is None:
        return ConsumerFunction(group.reader_function)
    zero = written.zero_point
    return ConsumerFunction(
        group.reader_function, written.scale, written.low - zero, written.high - zero
    )


def _affine_qparams_for_group(
    group: SharedScaleGroup,
    stats: Stats,
    setting: TensorScalePolicy,
    consumer: ConsumerFunction | None,
) -> Affine | None:
    """Return how a class is held that has a zero point, None for one that has none."""
    observed = group.merged_stats(stats)
    free = (
        setting.allows_zero_point
        and group.allows_zero_point
        and setting.scale is None
        and setting.bits <= 8
    )
    if not free or observed is None or observed.sum_of_squares == 0:
        return None
    scale, zero = setting.choose_qparams(observed, consumer)
    return Affine(scale, setting.bits, zero_point=zero)


def _weight_qparams(values: np.ndarray, axis: int | None, setting: TensorScalePolicy) -> Affine:
    """Return the scale of a weight, or one for each element along `axis`.

    A channel of zeros has its neighbours' best.
    A bias is held at the same scale as its channel's sums, so a channel of next to nothing must not
    get a huge one: `legalize` sees to that.
    """
    if axis is None or values.shape[axis] == 1 or not np.any(values):
        return Affine(
            setting.scale or setting.choose_scale(TensorStats.from_array(values)), setting.bits
        )
    channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    scales = [
        setting.choose_scale(TensorStats.from_array(channel)) if channel.any() else math.inf
        for channel in channels
    ]
    least = min(scales)
    most = least * _MAX_CHANNEL_SCALE_RATIO
    return Affine(
        [least if scale > most else scale for scale in scales], setting.bits, PerAxis(axis)
    )


def _apply_coarser_inputs(
    tensors: dict[str, Affine],
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    target: Target,
    policy: ScalePolicy,
) -> None:
    """Lower scales, in place, that the operators which read the tensors would rather have.

    None that a user gave.
    """
    owner = {name: group.tensors for group in shared_groups for name in group.tensors}
    for node, op in partition.integer_nodes:
        if any(v is not None and str(v.name) not in tensors for v in (*node.inputs, *node.outputs)):
            continue
        for name in op.scale_constraints.inputs_to_coarsen(
            node, target, lambda name: tensors[name].scale
        ):
            to, group = tensors[ir.output_name(node)], owner[name]
            set_by_user = any(
                n in policy.held or "scale" in policy.overrides.get(n, {}) for n in group
            )
            if not set_by_user and tensors[name].bits == to.bits:
                tensors.update({n: tensors[n].changed(to.scale) for n in group})


def _symmetric_scale_for_group(
    group: SharedScaleGroup,
    clip_bound: float | None,
    stats: Stats,
    setting: TensorScalePolicy,
    consumer: ConsumerFunction | None,
    notes: list[str],
) -> float:
    """Return the scale of a class.

    `clip_bound` is where an operator cuts its values off, if one does.
    Then that is the largest integer, unless larger values count as well.
    """
    if setting.scale is not None:
        return setting.scale
    top_integer = (1 << (setting.bits - 1)) - 1
    observed = group.merged_stats(stats)
    if clip_bound is not None and (
        observed is None or observed.high <= clip_bound * (1 + _CLIP_BOUND_TOLERANCE)
    ):
        return floor_power_of_two(top_integer / clip_bound, imported=True)
    if observed is None or observed.sum_of_squares == 0:
        notes.append(
            f"tensor '{group.tensors[-1]}' is all zero on the calibration data; its scale is a "
            "guess"
        )
        return float(1 << (setting.bits - 1))
    scale = setting.choose_scale(observed, consumer)
    if (
        setting.power_of_two and group.output_bound is not None
    ):  # the bound itself saturates by one count: less than a bit costs
        scale = max(scale, floor_power_of_two((top_integer + 1) / group.output_bound))
    if setting.bits > 8 and group.hard_bound is not None:
        scale = (
            floor_power_of_two((top_integer + 1) / group.hard_bound)
            if setting.power_of_two
            else top_integer / group.hard_bound
        )
    if group.headroom_below is not None:
        most = (top_integer + 1) / (group.headroom_below - min(observed.low, 0.0))
        scale = min(scale, floor_power_of_two(most) if setting.power_of_two else most)
    return scale
