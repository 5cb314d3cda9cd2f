"""Nodes that the form of a graph for a chip is built of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....formats import CONCAT, CONV2D, RESHAPE
from ....graph import ir
from ... import Target

__all__ = [
    "IDENTITY_WEIGHT",
    "POINTWISE_CONV_ATTRIBUTES",
    "insert_concat",
    "insert_pointwise_conv",
    "insert_slice",
    "make_concat",
    "make_slice",
]

#: The weight of an identity convolution or layer, and its scale.
IDENTITY_WEIGHT = 64

#: Attributes of a convolution of size 1x1 over 8 bits, but for its scales.
POINTWISE_CONV_ATTRIBUTES = {
    "kernel_shape": [1, 1],
    "strides": [1, 1],
    "pads": [0] * 4,
    "dilations": [1, 1],
    "group": 1,
    "data_bits": 8,
    "parameter_bits": 8,
    "o_bits": 8,
}

#: Attributes that say where a node runs.
_PLACEMENT_ATTRIBUTES = ("platform", "platform_quant", "quant_mode")


def make_slice(
    graph: ir.Model, value: ir.Value, axis: int, start: int, end: int, base: str, taken: set[str]
) -> ir.Node:
    """Return a Slice of the positions `start` .. `end` - 1 of `value`, to be inserted.

    base : of the name of its output. taken : names that tensors have; the new ones are added.
    """
    name = ir.reserve_name(base, taken)
    bounds = [
        ir.add_initializer(
            graph, ir.reserve_name(f"{name}_{what}", taken), np.array([number], np.int64)
        )
        for what, number in (("start", start), ("end", end), ("axis", axis), ("step", 1))
    ]
    slice_node = ir.make_node(
        "Slice", [value, *bounds], name=f"Slice_{name}", output=name, like=value
    )
    shape = list(ir.get_shape(value) or ())
    shape[axis] = end - start
    slice_node.outputs[0].shape = ir.make_shape(shape)
    return slice_node


def make_concat(
    parts: Sequence[ir.Value], axis: int, scale: float, like: ir.Node, name: str, output: str
) -> ir.Node:
    """Return an iqCat of `parts`, all held at `scale`, to be inserted.

    Where it runs is taken from `like`.
    """
    place = {key: ir.get_attr(like, key) for key in _PLACEMENT_ATTRIBUTES if key in like.attributes}
    attrs = {
        "dim": axis,
        **{f"scale_x_{i}": scale for i in range(len(parts))},
        "scale_o": scale,
        **place,
    }
    concat = ir.make_node(
        CONCAT.name,
        parts,
        dict(sorted(attrs.items())),
        name=f"{CONCAT.name}_{name}",
        output=output,
        domain=CONCAT.domain,
        like=parts[0],
    )
    shape = list(parts[0].shape or ())
    shape[axis] = sum(int((ir.get_shape(each) or ())[axis] or 0) for each in parts)
    concat.outputs[0].shape = ir.make_shape(shape)
    return concat


def insert_slice(graph: ir.Model, node: ir.Node, axis: int, start: int, end: int) -> ir.Value:
    """Insert a Slice of the positions `start` ..

    `end` - 1 of the first output of `node` behind it; return its own.
    """
    value = node.outputs[0]
    slice_node = make_slice(
        graph, value, axis, start, end, f"{value.name}_cut", ir.get_tensor_names(graph)
    )
    graph.graph.insert_after(node, slice_node)
    return slice_node.outputs[0]


def insert_concat(
    graph: ir.Model,
    node: ir.Node,
    parts: Sequence[ir.Value],
    axis: int,
    scale: float,
    name: str,
    before: ir.Node | None = None,
) -> ir.Value:
    """Insert an iqCat of `parts`, all held at `scale`, before `before` or else `node`.

    Return its output.
    Where it runs is taken from `node`. It is named after its output, which no other node has.
    """
    output = ir.unique_tensor_name(graph, name) if name else ""
    concat = make_concat(
        parts, axis, scale, node, output or f"{node.outputs[0].name}_joined", output
    )
    graph.graph.insert_before(before or node, concat)
    return concat.outputs[0]


def insert_pointwise_conv(
    graph: ir.Model,
    value: ir.Value,
    image: Sequence[int],
    constants: Mapping[str, np.ndarray],
    scales: Mapping[str, float],
    output_shape: Sequence[int],
    name: str,
    before: ir.Node,
    target: Target,
) -> ir.Value:
    """Insert a 1x1 Conv2dInt over `value`, seen as an image, before `before`.

    Return what it gives, of sizes `output_shape`.
    image : sizes [1, C, H, W]. constants : weight [N, C, 1, 1], and bias [N] or none. scales :
    scale_x, scale_w, scale_o. name : that new tensors begin with.
    """
    outputs = [1, len(constants["weight"]), *image[2:]]
    attrs: dict[str, object] = {
        **POINTWISE_CONV_ATTRIBUTES,
        **scales,
        **target.node_attributes.get("", {}),
    }
    none: dict[str, object] = {}
    reshaped, convolved = (
        (RESHAPE.name, "", none),
        (CONV2D.name, "thinker", dict(sorted(attrs.items()))),
    )
    steps = [
        (f"{name}_image", reshaped, {"shape": np.array(image, np.int64)}, image),
        (
            name if list(output_shape) == outputs else f"{name}_convolved",
            convolved,
            constants,
            outputs,
        ),
        (name, reshaped, {"shape": np.array(output_shape, np.int64)}, output_shape),
    ]
    taken = ir.get_tensor_names(graph)
    for base, (op_type, domain, attributes), held, sizes in steps:
        if op_type == RESHAPE.name and list(sizes) == list(ir.get_shape(value) or ()):
            continue
        own = ir.reserve_name(base, taken)
        inputs = [
            value,
            *(
                ir.add_initializer(graph, ir.reserve_name(f"{own}_{what}", taken), a)
                for what, a in held.items()
            ),
        ]
        inserted = ir.make_node(
            op_type,
            inputs,
            attributes,
            name=f"{op_type}_{own}",
            output=own,
            domain=domain,
            like=value,
        )
        inserted.outputs[0].shape = ir.make_shape(list(sizes))
        graph.graph.insert_before(before, inserted)
        value = inserted.outputs[0]
    return value
