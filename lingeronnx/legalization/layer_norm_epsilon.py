"""Layer normalisation with a larger epsilon than the chip's: of a smaller multiple of its input.

    (x - mean(x)) / sqrt(var(x) + e)  =  (a x - mean(a x)) / sqrt(var(a x) + a^2 e)

With ``a = sqrt(c / e)`` the epsilon is the chip's c. The layer in front takes a into its weight
where it can. Else a is the nearest power of two, which changes no integer, and a^2 e stays within a
factor of two of c.
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
    """Put a factor in front of the layer normalisation `node`, so that its epsilon is the chip's."""
    if (
        ir.base_op_type(node) != "LayerNormalization"
        or target.layer_norm_limits is None
        or check_epsilon(node, target) is None
    ):
        return None
    if len(LayerNorm().find_violations(node, target)) > 1:  # it would stay in float all the same
        return None
    wanted, epsilon = target.layer_norm_limits.epsilon, float(ir.get_attr(node, "epsilon", 1e-5))
    factor = math.sqrt(wanted / epsilon)
    source, result = ir.require_input(node), node.outputs[0]
    base = f"{result.name}_small"
    constant = ir.add_initializer(
        model, ir.unique_tensor_name(model, f"{base}_factor"), np.array(factor, np.float32)
    )
    product = ir.make_node(
        "Mul",
        [source, constant],
        origin=node,
        suffix="small",
        output=ir.unique_tensor_name(model, base),
        like=source,
    )
    model.graph.insert_before(node, product)
    node.replace_input_with(0, product.outputs[0])
    folded = fold_factor(model, product)
    if not folded:
        factor = 2.0 ** round(math.log2(factor))
        ir.set_constant_input(model, product, 1, np.array(factor, np.float32), "power")
    set_layer_norm_epsilon(model, node, epsilon * factor**2)
    where = "the layer in front takes up" if folded else "its input is multiplied by"
    rest = (
        "exact"
        if folded
        else f"exact, but for {epsilon * factor**2:.2g} where the chip has {wanted:g}"
    )
    return f"epsilon {epsilon:g} made {target.name}'s: {where} {factor:.4g}", rest
