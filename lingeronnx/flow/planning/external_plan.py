"""Plans made elsewhere: applied where they fit the model and the target, refused where they do not."""

from __future__ import annotations

import numpy as np

from ...errors import ConfigError, suggest_nearest
from ...formats import Format
from ...graph import ir
from ...ops import find_lowering_rule
from ...plan import Affine, PerGroup, Plan
from ...targets import Target
from ..assign.legalize import legalize
from ..assign.shared_scales import group_shared_scales
from ..lower import check_zero_points
from ..methods import factors
from ..methods.host_scaling import insert_boundary_muls, set_host_factors
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from .planned_model import PlannedModel

__all__ = ["apply_external_plan"]


def apply_external_plan(prepared: PreparedModel, plan: Plan) -> PlannedModel:
    """Apply the transforms of a plan made elsewhere and legalize it.

    Raises ConfigError for what the graph or the platform does not have.
    """
    graph, target = ir.clone(prepared.graph), prepared.target
    host = _insert_planned_host_scaling(plan, graph, target)
    _check_names(plan, graph)
    _check_values(plan, graph, target)
    _check_granularity(plan, graph, target)
    if plan.mode != prepared.conf.mode:
        raise ConfigError(
            f"the plan was made for mode {plan.mode}, not {prepared.conf.mode}; give --mode "
            f"{plan.mode}"
        )
    parts = Partition.build(graph, plan.floats, target)
    _check_complete(plan, parts, target)
    check_zero_points(plan, parts, target)
    transforms = {name: np.array(t.factor) for name, t in plan.transforms.items()}
    factors.apply_factors(parts, transforms)
    set_host_factors(graph, host, transforms)
    plan, moves = legalize(plan, parts, group_shared_scales(parts, target), target)
    return PlannedModel.create(prepared, parts, plan, moves)


def _insert_planned_host_scaling(plan: Plan, graph: ir.Model, target: Target) -> dict[str, str]:
    """Put the products of the host into `graph` that the plan speaks of; return {node: why}."""
    if not plan.scaled:
        return {}
    ops = {
        str(node.name): op
        for node in graph.graph
        if (op := find_lowering_rule(node, target)[0]) is not None
    }
    inside = {name: op for name, op in ops.items() if name not in plan.floats}
    host, alike = insert_boundary_muls(
        Partition(graph, inside, plan.floats), set(plan.scaled.values())
    )
    if alike != plan.scaled or not host.keys() <= plan.floats.keys():
        wanted, products = (
            ", ".join(f"'{new}' for '{name}'" for new, name in of.items())
            for of in (plan.scaled, alike)
        )
        raise ConfigError(
            f"the plan has the host scale {wanted}; this model takes {products or 'nothing'}: make "
            "the plan "
            "from this model"
        )
    return host


def _check_names(plan: Plan, graph: ir.Model) -> None:
    known = {
        *(str(v.name) for v in ir.iter_values(graph)),
        *graph.graph.initializers,
        *(str(n.name) for n in graph.graph),
    }
    for name in (*plan.tensors, *plan.transforms, *plan.floats):
        if name not in known:
            raise ConfigError(
                f"the plan speaks of '{name}', which this model has "
                f"not{suggest_nearest(name, known)}; "
                "make the plan of this model"
            )


def _check_complete(plan: Plan, partition: Partition, target: Target) -> None:
    """Raise ConfigError for a tensor or a weight without a scale.

    Only an output that leaves the integers has none.
    """
    free = partition.wide_outputs(target)
    weights = [
        ir.input_name(node, index)
        for node, op in partition.integer_nodes
        for index in op.weight_inputs(node)
    ]
    for name in (*partition.activations, *weights):
        if name not in plan.tensors and name not in free:
            raise ConfigError(
                f"the plan has no scale for '{name}', which becomes integer; add it, or name its "
                "node among the floats"
            )


def _check_granularity(plan: Plan, graph: ir.Model, target: Target) -> None:
    """Raise ConfigError for scales per channel and zero points where `target` has none or no weight is."""
    readers = {
        ir.input_name(node, index): (op.integer_op, ir.get_shape(node.inputs[index]))
        for node in graph.graph
        if (op := find_lowering_rule(node, target)[0]) is not None
        for index in op.weight_inputs(node)
    }
    for name, q in plan.tensors.items():
        if q.shifted and not target.zero_points:
            raise ConfigError(
                f"the plan holds '{name}' with zero point {int(q.zero_points.max())}; "
                f"{target.name} takes 0 only"
            )
        if q.single:
            continue
        kind = "group" if isinstance(q.granularity, PerGroup) else "channel"
        if kind not in target.weight_scales:
            raise ConfigError(
                f"the plan has {q.scales.size} scales for '{name}'; on {target.name} a weight has "
                "one scale per "
                f"{' or '.join(target.weight_scales)}"
            )
        if kind == "group":
            _check_groups(name, q, *readers.get(name, (None, None)))
            continue
        form, shape = readers.get(name, (None, None))
        axis = None if form is None else form.channel_axis
        if axis is None or shape is None or axis != q.axis or shape[axis] != q.scales.size:
            raise ConfigError(
                f"the plan has {q.scales.size} scales along axis {q.axis} for '{name}'; "
                + (
                    "it takes one scale"
                    if axis is None or shape is None
                    else f"it has {shape[axis]} along axis {axis}"
                )
            )


def _check_groups(
    name: str, qparams: Affine, op_format: Format | None, shape: tuple[int | None, ...] | None
) -> None:
    """Raise ConfigError for groups of a weight that has none, of another size, or in no ratio of whole numbers."""
    assert isinstance(qparams.granularity, PerGroup)
    size, have = qparams.granularity.size, list(qparams.scales.shape)
    taken = op_format is not None and op_format.supports_group_scales and shape is not None
    wanted = (
        [int(shape[0] or 0), -(-int(shape[1] or 0) // size)] if taken and shape is not None else []
    )
    if not taken or qparams.bits > 8 or qparams.axis != 1 or have != wanted:
        why = (
            f"it has {wanted} along axis 1, in 4 or 8 bits"
            if taken
            else "weights of fully connected layers have groups"
        )
        raise ConfigError(
            f"the plan has {have} scales of groups of {size} along axis {qparams.axis} in "
            f"{qparams.bits} bits for "
            f"'{name}'; {why}"
        )
    try:
        _ = qparams.factors
    except ValueError as error:
        raise ConfigError(
            f"the plan's groups of '{name}': {error}; quantize again with --save-plan"
        ) from error


def _check_values(plan: Plan, graph: ir.Model, target: Target) -> None:
    values = {str(v.name): v for v in ir.iter_values(graph)}
    for name, q in plan.tensors.items():
        widths = target.bits if name in values else target.all_weight_bits
        if q.bits not in {*widths, *target.out_bits, *target.curve_bits}:
            raise ConfigError(
                f"the plan holds '{name}' in {q.bits} bits; {target.name} computes in "
                f"{', '.join(map(str, widths))} bits only"
            )
    for name, transform in plan.transforms.items():
        shape = ir.get_shape(values[name]) if name in values else None
        channels = None if shape is None or len(shape) < 2 else shape[1]
        fits = len(transform.factor) in (1, channels) and all(
            0 < f < float("inf") for f in transform.factor
        )
        if not fits:
            raise ConfigError(
                f"the plan's transform of '{name}' does not fit: {len(transform.factor)} factors "
                "for "
                f"{channels} channels; factors are positive"
            )
