"""Replace constants that the platform does not have: the bounds of a Clip, and an epsilon.

A Clip that is not a ReLU6 becomes a ReLU or ReLU6, if the platform has no Clip:

    max(x, a)              =  relu(x - a) + a
    min(x, b)              =  b - relu(b - x)
    min(max(x, a), b)      =  relu6(x - a) + a        where ReLU6 is Clip(0, b - a)

This does not apply before the first layer, after the last one, or after a node that stays in float:
there the host computes the Clip.

The epsilon of a layer normalization becomes the chip's c by scaling the input:

    (x - mean(x)) / sqrt(var(x) + e)  =  (a x - mean(a x)) / sqrt(var(a x) + a^2 e)

with ``a = sqrt(c / e)``. The factor a is folded into the weight of the preceding layer if possible.
Otherwise a is the nearest power of two, which changes no integer, and a^2 e stays within a factor
of two of c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...ir import ir
from ...operators.clamp.lowering import get_clip_bounds
from ...operators.integer_ops import BATCH_NORM2D, CLIP, RELU
from ...operators.lowerings import find_lowering_rule
from ...operators.normalization.lowering.layer_norm import LayerNorm, check_epsilon
from ...targets import Target
from ..normalize.layers.channel_affine import fold_factor
from ..normalize.layers.layer_norm import set_layer_norm_epsilon
from ._base import RewriteBuilder, has_known_sample_shape, is_standard_op
from .constant_arithmetic import is_between_layers

__all__ = ["LOWER_BOUND_KEY", "decompose_clip", "scale_layer_norm_input"]

#: Metadata key of a ReLU that implements the lower bound of a Clip, and clips no more than that.
LOWER_BOUND_KEY = "lingeronnx.floor"


def decompose_clip(model: ir.Model, node: ir.Node, target: Target) -> tuple[str, str] | None:
    """Replace a Clip by a ReLU or ReLU6 of the difference between its input and a bound.

    Only if the target can run the replacement but no Clip, for constant bounds with low < high,
    between layers, with a known sample shape, and for an input computed by a node that the platform
    supports. Returns the description and the cost of the change, or None without a change.
    """
    if not is_standard_op(node, "Clip") or not _can_run_replacement(target):
        return None
    bounds = get_clip_bounds(node)
    if bounds is None or bounds[0] >= bounds[1] or not is_between_layers(node):
        return None
    source = ir.require_input(node)
    if _is_computed_by_host(source, target):  # the host may compute the Clip, too
        return None
    shape = ir.get_shape(node.outputs[0]) or ()
    if len(shape) < 2 or not has_known_sample_shape(shape) or ir.has_folded_batch(source):
        return None
    builder = RewriteBuilder(model, node)
    low, high = bounds
    if low == -math.inf:
        _emit_upper_bound(builder, source, list(shape), high)
    else:
        _emit_lower_bound(builder, source, list(shape), low, high)
    builder.replace_node()
    return (
        f"Clip{bounds} computed from the difference to a bound",
        "2 more roundings of half a step at most",
    )


def _can_run_replacement(target: Target) -> bool:
    """Whether `target` has no Clip, but the Relu and BatchNormalization that can replace it."""
    if target.can_run(CLIP.name):
        return False
    return target.can_run(RELU.name) and target.can_run(BATCH_NORM2D.name)


def _is_computed_by_host(value: ir.Value, target: Target) -> bool:
    """Whether `value` is an input or constant, or the target has no operator for its producer."""
    producer = ir.producer(value)
    if producer is None:
        return True
    op, _ = find_lowering_rule(producer, target)
    return op is None or not op.is_available(target)


def _emit_upper_bound(
    builder: RewriteBuilder, source: ir.Value, shape: Sequence[ir.Dim], high: float
) -> None:
    """Append ``high - relu(high - x)`` for x = `source`; the output has this `shape`."""
    bound = builder.constant(np.array(high, np.float32), "high")
    difference = builder("Sub", [bound, source], shape, "distance")
    clipped = builder("Relu", [difference], shape, "below")
    builder("Sub", [bound, clipped], shape, "back")


def _emit_lower_bound(
    builder: RewriteBuilder, source: ir.Value, shape: Sequence[ir.Dim], low: float, high: float
) -> None:
    """Append ``clip(x - low, 0, high - low) + low`` for x = `source`; a Relu if `high` is infinite.

    The Relu is marked with LOWER_BOUND_KEY. The output has this `shape`.
    """
    bound = builder.constant(np.array(low, np.float32), "low")
    difference = builder("Sub", [source, bound], shape, "distance")
    if high == math.inf:
        clipped = builder("Relu", [difference], shape, "above")
        ir.require_producer(clipped).metadata_props[LOWER_BOUND_KEY] = "lower bound"
    else:
        zero = builder.constant(np.array(0, np.float32), "none")
        width = builder.constant(np.array(high - low, np.float32), "room")
        clipped = builder("Clip", [difference, zero, width], shape, "above")
    builder("Add", [clipped, bound], shape, "back")


def scale_layer_norm_input(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Scale the input of a layer normalization so that its epsilon becomes the chip's, in place.

    The factor is sqrt(chip's epsilon / epsilon). It is folded into the preceding layer if possible;
    otherwise it is rounded to a power of two, and a Mul is inserted. Returns the description and
    the cost of the change; None, without a change, if the epsilon is within the limit, the node
    breaks another limit too, or the target has no limits of layer normalizations.
    """
    if ir.base_op_type(node) != "LayerNormalization" or target.layer_norm_limits is None:
        return None
    if check_epsilon(node, target) is None:
        return None
    if len(LayerNorm().find_violations(node, target)) > 1:  # it would stay in float anyway
        return None
    target_epsilon = target.layer_norm_limits.epsilon
    epsilon = float(ir.get_attr(node, "epsilon", 1e-5))
    factor = math.sqrt(target_epsilon / epsilon)
    product = _insert_input_factor(model, node, factor)
    is_folded = fold_factor(model, product)
    if not is_folded:
        factor = 2.0 ** round(math.log2(factor))
        ir.set_constant_input(model, product, 1, np.array(factor, np.float32), "power")
    set_layer_norm_epsilon(model, node, epsilon * factor**2)
    description = f"epsilon {epsilon:g} replaced by that of {target.name}: "
    if is_folded:
        return f"{description}factor {factor:.4g} folded into the preceding layer", "exact"
    return (
        f"{description}input multiplied by {factor:.4g}",
        f"exact, except for epsilon {epsilon * factor**2:.2g} instead of {target_epsilon:g}",
    )


def _insert_input_factor(model: ir.Model, node: ir.Node, factor: float) -> ir.Node:
    """Insert a Mul of the first input of `node` with the constant `factor`, and return the Mul."""
    source = ir.require_input(node)
    name = f"{node.outputs[0].name}_small"
    constant = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{name}_factor"), np.array(factor, np.float32)
    )
    product = ir.make_node(
        "Mul",
        [source, constant],
        origin=node,
        suffix="small",
        output=ir.unique_tensor_name(model, name),
        like=source,
    )
    model.graph.insert_before(node, product)
    node.replace_input_with(0, product.outputs[0])
    return product
