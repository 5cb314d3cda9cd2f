"""Simplify Clip: to Relu if only the lower bound 0 limits values, otherwise to constant bounds.

A Clip that cannot change any value is removed. Bounds that are attributes (opset 6) stay
attributes; `ops.activation` reads both forms. Two consecutive Clips or Relus are merged if only the
second reads the first.

Min and Max with a constant become a Clip first: ``Max(x, 0)`` is Relu, ``Min(Max(x, 0), 6)`` is
Relu6. This applies to one activation and one scalar constant, in any order. Constants that
broadcast the tensor or vary along it, NaN, and integers are not converted.
"""

from __future__ import annotations

import math

import numpy as np

from ....ir import float_ops, ir
from ....operators.clamp.lowering import get_clip_bounds
from .._pass import PassResult, SkipReason


def simplify_clip(model: ir.Model) -> PassResult:
    """Simplify the Clip nodes of `model` with constant bounds, in place; return the changes.

    A Clip or Relu is merged with a Clip or Relu before it that it alone reads. A Clip without an
    upper bound becomes Relu if its lower bound is 0; it is removed if the bound is 0 or less and
    its input is never negative. Clips of integers, and with computed or wrongly ordered bounds, are
    skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    used_names = ir.get_tensor_names(model)
    for node in list(model.graph):
        bounds = _get_bounds(node)
        if bounds is None or _has_integer_input(node):
            if ir.is_standard_op(node, "Clip"):
                reason = "it clips integers"
                if bounds is None:
                    reason = "its bounds are computed at run time, or in the wrong order"
                skipped.append(SkipReason(node, reason))
            continue
        merged_bounds = _merge_preceding_clip(model, node, bounds)
        if merged_bounds is not None:
            bounds = merged_bounds
            node = _replace_with_clip(model, node, bounds, used_names)
            changes += 1
        if node.op_type == "Clip" and bounds[1] == math.inf and bounds[0] <= 0:
            changes += _simplify_lower_bound(model, node, bounds[0])
    return PassResult(changes, skipped)


def _simplify_lower_bound(model: ir.Model, node: ir.Node, low: float) -> int:
    """Simplify a Clip with a lower bound `low` <= 0 and no upper bound; return 1, or 0 if it stays.

    It is removed if its input is never negative and can take over the output's name; else it
    becomes Relu if `low` is 0.
    """
    source = ir.require_input(node)
    if _is_input_nonnegative(node) and ir.can_bypass_node(node, source):
        ir.bypass_node(model, node, source)
        return 1
    if low != 0:
        return 0
    relu = ir.make_node("Relu", [source], origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [relu])
    return 1


def _has_integer_input(node: ir.Node) -> bool:
    """Whether the element type of the first input of `node` is known and not floating-point."""
    if not node.inputs or node.inputs[0] is None:
        return False
    dtype = node.inputs[0].dtype
    return dtype is not None and not dtype.is_floating_point()


def _merge_preceding_clip(
    model: ir.Model, node: ir.Node, bounds: tuple[float, float]
) -> tuple[float, float] | None:
    """Bypass a Clip or Relu before `node` that only `node` reads.

    Return (low, high) of both in sequence. `bounds` are those of `node`, which itself is not
    changed. None, without a change, if the producer is no Clip or Relu with constant ordered
    bounds, has other readers, or cannot be bypassed.
    """
    previous = ir.producer(node.inputs[0])
    previous_bounds = _get_bounds(previous)
    if previous is None or previous_bounds is None:
        return None
    if ir.sole_consumer(previous.outputs[0]) is not node:
        return None
    if not ir.can_bypass_node(previous, ir.require_input(previous)):
        return None
    ir.bypass_node(model, previous, ir.require_input(previous))
    low, high = (min(max(bound, bounds[0]), bounds[1]) for bound in previous_bounds)
    return low, high


def _is_input_nonnegative(node: ir.Node) -> bool:
    """Whether input 0 of `node` comes from an operator whose results are never negative.

    Looks through permutations and selections of elements to their producer.
    """
    moving_ops = float_ops.PERMUTATION_OPS | float_ops.SELECTION_OPS
    producer = ir.producer(node.inputs[0])
    while producer is not None and producer.op_type in moving_ops and not producer.domain:
        producer = ir.producer(producer.inputs[0])
    if producer is None or producer.domain:
        return False
    return producer.op_type in float_ops.NONNEGATIVE_OPS


def _get_bounds(node: ir.Node | None) -> tuple[float, float] | None:
    """Return (low, high) of a Relu or of a Clip with constant ordered bounds; None for other nodes.

    A missing bound is infinite; Relu has (0, infinity).
    """
    if node is None or node.domain or node.op_type not in ("Relu", "Clip"):
        return None
    bounds = (0.0, math.inf) if node.op_type == "Relu" else get_clip_bounds(node)
    return bounds if bounds is not None and bounds[0] <= bounds[1] else None


def _replace_with_clip(
    model: ir.Model, node: ir.Node, bounds: tuple[float, float], used_names: set[str]
) -> ir.Node:
    """Replace a Relu or Clip by a Clip with `bounds`, in the form of the model's opset.

    Infinite bounds are left out. Names of new constants are added to `used_names`, the names of all
    tensors. Returns the new node.
    """
    base = node.outputs[0].name
    inputs: list[ir.Value | None] = [ir.require_input(node)]
    attributes: dict[str, float] = {}
    if ir.get_opset(model) < 11:
        for key, bound in zip(("min", "max"), bounds, strict=True):
            if math.isfinite(bound):
                attributes[key] = bound
    else:
        for key, bound in zip(("low", "high"), bounds, strict=True):
            if not math.isfinite(bound):
                inputs.append(None)
                continue
            name = ir.reserve_name(f"{base}_{key}", used_names)
            inputs.append(ir.add_initializer(model, name, np.array(bound, np.float32)))
        if inputs[-1] is None:
            inputs.pop()
    clip = ir.make_node("Clip", inputs, attributes, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [clip])
    return clip


def convert_min_max_to_clip(model: ir.Model) -> PassResult:
    """Convert Min and Max of `model` with a constant to Clip, in place.

    Others are listed as skipped, each with the reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type not in ("Min", "Max") or node.domain:
            continue
        reason = _convert_to_clip(model, node)
        if reason is None:
            changes += 1
        else:
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _convert_to_clip(model: ir.Model, node: ir.Node) -> str | None:
    """Convert a Min or Max to Clip; return the reason if it cannot be converted, else None.

    The bound is a single float32 constant; Max is a lower bound, Min an upper one.
    """
    operand = ir.match_constant_operand(node)
    if operand is None:
        return "its operands are not one activation and one constant"
    source, array = operand.source, operand.array
    if array.size != 1 or array.dtype != np.float32 or np.isnan(array).any():
        return "its constant is not a single float32 number"
    shape = ir.get_shape(source)
    if shape is None or array.ndim > len(shape):
        return "its constant broadcasts the tensor"
    name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_bound")
    bound = ir.add_initializer(model, name, array.reshape(()))
    inputs = [source, bound] if node.op_type == "Max" else [source, None, bound]
    clip = ir.make_node("Clip", inputs, origin=node, output="", like=node.outputs[0])
    ir.replace_nodes(model, [node], [clip])
    return None
