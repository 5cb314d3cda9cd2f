"""A transposed convolution of several groups as one for each, side by side: exact.

Group k reads its part of the input channels and has its part of the weight, [I/G, O/G, k...], which
has the inputs on axis 0.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir
from ...graph.attributes import AttributeValue
from ...ops import find_lowering_rule
from ...targets import Target
from .._base import RewriteBuilder

__all__ = ["split_conv_transpose_groups"]

_MOST_GROUPS = 16


def split_conv_transpose_groups(
    model: ir.Model, node: ir.Node, target: Target
) -> tuple[str, str] | None:
    """Write the groups of a ConvTranspose one by one, where each is within the limits then."""
    group = int(ir.get_attr(node, "group", 1))
    if node.op_type != "ConvTranspose" or node.domain or not 1 < group <= _MOST_GROUPS:
        return None
    weight, bias = (ir.const_value(value) for value in (*node.inputs[1:], None)[:2])
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    shape = list(node.outputs[0].shape or ())
    if weight is None or (biased and bias is None) or len(shape) != weight.ndim:
        return None
    make = RewriteBuilder(model, node)
    deep, each = weight.shape[0] // group, weight.shape[1]
    attributes: dict[str, AttributeValue] = {
        key: ir.get_attr(node, key) for key in node.attributes if key != "group"
    }
    shape[1] = each
    parts = []
    for number in range(group):
        source = make.slice_axis(
            ir.require_input(node), 1, number * deep, (number + 1) * deep, f"part{number}_channels"
        )
        part = np.ascontiguousarray(weight[number * deep : (number + 1) * deep])
        inputs = [source, make.constant(part, f"part{number}_weight")]
        if bias is not None:
            own = np.ascontiguousarray(bias[number * each : (number + 1) * each])
            inputs.append(make.constant(own, f"part{number}_bias"))
        parts.append(make("ConvTranspose", inputs, shape, f"part{number}", attributes))
    if any(
        (op := find_lowering_rule(new, target)[0]) is None or op.find_violations(new, target)
        for new in make.nodes
    ):
        make.discard()
        return None
    make.concat_parts(parts, 1, list(make.result.shape or ()))
    make.replace_node()
    return f"{group} groups of a transposed convolution side by side", "exact"
