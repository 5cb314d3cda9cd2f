"""Apply a plan that was made elsewhere, after checking that it matches the model and the target."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...common.errors import ConfigError, suggest_nearest
from ...ir import ir
from ...ir.plan import Affine, PerGroup, Plan
from ...operators.integer_ops import Format
from ...operators.lowerings import find_lowering_rule
from ...targets import Target
from ..lower import check_zero_points
from ..methods import factors
from ..methods.host_scaling import insert_boundary_muls, set_host_factors
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..scales.feasible import legalize
from ..scales.shared_scales import group_shared_scales
from .planned_model import PlannedModel

__all__ = ["apply_external_plan"]


def apply_external_plan(prepared: PreparedModel, plan: Plan) -> PlannedModel:
    """Apply the transforms of a plan that was made elsewhere, and legalize it.

    Returns the planned model, on a copy of the graph. Scales that exceed limits of the target are
    lowered, with notes.

    Raises
    ------
    ConfigError
        If the plan refers to other tensors or nodes, lacks a scale, has widths, zero points or
        scales per channel or group that the platform does not support, or another mode than the
        settings.
    ConstraintError
        As `Partition.build` and `legalize`.
    """
    graph, target = prepared.graph.clone(), prepared.target
    host_reasons = _insert_planned_host_scaling(plan, graph, target)
    _check_names(plan, graph)
    _check_values(plan, graph, target)
    _check_granularity(plan, graph, target)
    if plan.mode != prepared.conf.mode:
        raise ConfigError(
            f"the plan uses mode {plan.mode}, not {prepared.conf.mode}; pass --mode {plan.mode}"
        )
    partition = Partition.build(graph, plan.floats, target)
    _check_complete(plan, partition, target)
    check_zero_points(plan, partition, target)
    transforms = {name: np.array(transform.factor) for name, transform in plan.transforms.items()}
    factors.apply_factors(partition, transforms)
    set_host_factors(graph, host_reasons, transforms)
    shared = group_shared_scales(partition, target)
    plan, notes = legalize(plan, partition, shared, target)
    return PlannedModel(prepared, partition, plan, notes)


def _insert_planned_host_scaling(plan: Plan, graph: ir.Model, target: Target) -> dict[str, str]:
    """Insert the host's Mul nodes of the plan into `graph`, in place; return {node: reason}.

    Raises ConfigError if inserting them at the tensors of `plan.scaled` gives other names than the
    plan's; empty, without a change, if the plan has none.
    """
    if not plan.scaled:
        return {}
    integer_ops = {}
    for node in graph.graph:
        op, _ = find_lowering_rule(node, target)
        if op is not None and str(node.name) not in plan.floats:
            integer_ops[str(node.name)] = op
    partition = Partition(graph, integer_ops, plan.floats)
    reasons, equal_tensors = insert_boundary_muls(partition, set(plan.scaled.values()))
    if equal_tensors != plan.scaled or not reasons.keys() <= plan.floats.keys():
        raise ConfigError(
            f"the plan scales {_format_scaled(plan.scaled)} on the host; in this model that is "
            f"{_format_scaled(equal_tensors) or 'nothing'}: create the plan from this model"
        )
    return reasons


def _format_scaled(scaled: Mapping[str, str]) -> str:
    """Format {new tensor: original tensor} of the host's Mul nodes."""
    return ", ".join(f"'{new}' for '{name}'" for new, name in scaled.items())


def _check_names(plan: Plan, graph: ir.Model) -> None:
    """Raise ConfigError if a name in the plan is no tensor, constant or node of `graph`."""
    known = {str(value.name) for value in ir.iter_values(graph)}
    known.update(graph.graph.initializers)
    known.update(str(node.name) for node in graph.graph)
    for name in (*plan.tensors, *plan.transforms, *plan.floats):
        if name not in known:
            raise ConfigError(
                f"the plan refers to '{name}', which is not in this "
                f"model{suggest_nearest(name, known)}; create the plan from this model"
            )


def _check_complete(plan: Plan, partition: Partition, target: Target) -> None:
    """Raise ConfigError if an activation or weight of integer nodes has no scale.

    Those of `wide_outputs` may be in float.
    """
    may_be_float = partition.wide_outputs(target)
    names = list(partition.activations)
    for node, op in partition.integer_nodes:
        names += [ir.input_name(node, index) for index in op.weight_inputs(node)]
    for name in names:
        if name not in plan.tensors and name not in may_be_float:
            raise ConfigError(
                f"the plan has no scale for integer tensor '{name}'; add one, or list its node "
                'under "floats"'
            )


def _check_granularity(plan: Plan, graph: ir.Model, target: Target) -> None:
    """Check zero points, and scales per channel or group.

    Raises ConfigError if the target or the tensor does not support them. A tensor with one scale is
    only checked for its zero point.
    """
    weights = _collect_weights(graph, target)
    for name, qparams in plan.tensors.items():
        if qparams.shifted and not target.zero_points:
            raise ConfigError(
                f"the plan has zero point {int(qparams.zero_points.max())} for '{name}'; "
                f"{target.name} supports 0 only"
            )
        if qparams.single:
            continue
        is_grouped = isinstance(qparams.granularity, PerGroup)
        if ("group" if is_grouped else "channel") not in target.weight_scales:
            raise ConfigError(
                f"the plan has {qparams.scales.size} scales for '{name}'; on {target.name} a "
                f"weight has one scale per {' or '.join(target.weight_scales)}"
            )
        op_format, shape = weights.get(name, (None, None))
        if is_grouped:
            _check_groups(name, qparams, op_format, shape)
        else:
            _check_channels(name, qparams, op_format, shape)


def _collect_weights(
    graph: ir.Model, target: Target
) -> dict[str, tuple[Format, tuple[int | None, ...] | None]]:
    """Return {weight: (integer operator, shape)} of all nodes that have a lowering rule."""
    weights = {}
    for node in graph.graph:
        op, _ = find_lowering_rule(node, target)
        if op is not None:
            for index in op.weight_inputs(node):
                shape = ir.get_shape(node.inputs[index])
                weights[ir.input_name(node, index)] = (op.integer_op, shape)
    return weights


def _check_channels(
    name: str, qparams: Affine, op_format: Format | None, shape: tuple[int | None, ...] | None
) -> None:
    """Raise ConfigError unless the tensor is a weight with that many channels on that axis.

    `op_format` is None if the tensor is no weight; its channel axis must be that of `qparams`.
    """
    axis = None if op_format is None else op_format.channel_axis
    supported = "it supports one scale"
    if axis is not None and shape is not None:
        if axis == qparams.axis and shape[axis] == qparams.scales.size:
            return
        supported = f"it has {shape[axis]} along axis {axis}"
    raise ConfigError(
        f"the plan has {qparams.scales.size} scales along axis {qparams.axis} for '{name}'; "
        f"{supported}"
    )


def _check_groups(
    name: str, qparams: Affine, op_format: Format | None, shape: tuple[int | None, ...] | None
) -> None:
    """Raise ConfigError unless `qparams` are groups that the weight supports, with integer factors.

    It needs at most 8 bits, groups along axis 1, and as many scales as `shape` gives. `op_format`
    is None if the tensor is no weight.
    """
    assert isinstance(qparams.granularity, PerGroup)
    size, actual = qparams.granularity.size, list(qparams.scales.shape)
    requirement = "only weights of fully connected layers support groups"
    is_valid = False
    if op_format is not None and op_format.supports_group_scales and shape is not None:
        expected = [int(shape[0] or 0), -(-int(shape[1] or 0) // size)]
        requirement = f"it has {expected} along axis 1, in 4 or 8 bits"
        is_valid = qparams.bits <= 8 and qparams.axis == 1 and actual == expected
    if not is_valid:
        raise ConfigError(
            f"the plan has {actual} scales of groups of {size} along axis {qparams.axis} in "
            f"{qparams.bits} bits for '{name}'; {requirement}"
        )
    try:
        _ = qparams.factors
    except ValueError as error:
        raise ConfigError(
            f"the plan's groups of '{name}': {error}; quantize again with --save-plan"
        ) from error


def _check_values(plan: Plan, graph: ir.Model, target: Target) -> None:
    """Raise ConfigError if a width is not supported or a transform does not match its tensor.

    Activations have the platform's widths, weights its weight widths; the widths of outputs and of
    curves are accepted too.
    """
    values = {str(value.name): value for value in ir.iter_values(graph)}
    for name, qparams in plan.tensors.items():
        widths = target.bits if name in values else target.all_weight_bits
        if qparams.bits not in {*widths, *target.out_bits, *target.curve_bits}:
            raise ConfigError(
                f"the plan has {qparams.bits} bits for '{name}'; {target.name} supports "
                f"{', '.join(map(str, widths))} bits only"
            )
    _check_transforms(plan, values)


def _check_transforms(plan: Plan, values: Mapping[str, ir.Value]) -> None:
    """Raise ConfigError if the factors of a transform do not match the channels of its tensor."""
    for name, transform in plan.transforms.items():
        shape = ir.get_shape(values[name]) if name in values else None
        channels = None if shape is None or len(shape) < 2 else shape[1]
        is_positive = all(0 < factor < float("inf") for factor in transform.factor)
        if len(transform.factor) not in (1, channels) or not is_positive:
            raise ConfigError(
                f"the plan's transform of '{name}' does not match: {len(transform.factor)} factors "
                f"for {channels} channels; factors must be positive"
            )
