"""Replace the epsilon of a layer normalization by the chip's, by scaling its input.

    (x - mean(x)) / sqrt(var(x) + e)  =  (a x - mean(a x)) / sqrt(var(a x) + a^2 e)

With ``a = sqrt(c / e)`` the epsilon is the chip's c. The factor a is folded into the weight of the
preceding layer if possible. Otherwise a is the nearest power of two, which changes no integer, and
a^2 e stays within a factor of two of c.
"""

from __future__ import annotations

import math

import numpy as np

from ..graph import ir
from ..ops.layers.layer_norm import LayerNorm, check_epsilon
from ..passes.layers.channel_affine import fold_factor
from ..passes.layers.layer_norm import set_layer_norm_epsilon
from ..targets import Target

__all__ = ["scale_layer_norm_input"]


def scale_layer_norm_input(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Scale the input of a layer normalization so that its epsilon becomes the chip's, in place.

    The factor is sqrt(chip's epsilon / epsilon), folded into the preceding layer if possible,
    otherwise a Mul by the nearest power of two. Returns the description and the cost of the change;
    None, without a change, if the epsilon is within the limit, another limit is broken, or the
    target has no such limits.
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
