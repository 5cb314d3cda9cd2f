"""Build the nodes that backend passes insert: Slice, iqCat and 1x1 convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...ir import ir
from ...operators.integer_ops import CONCAT, CONV2D, QUANT, RESHAPE
from ...targets import Target

__all__ = [
    "IDENTITY_WEIGHT",
    "MAX_CONCAT_INPUTS",
    "POINTWISE_CONV_ATTRIBUTES",
    "find_scale",
    "get_dims",
    "insert_concat",
    "insert_pointwise_conv",
    "insert_reshape",
    "insert_slice",
    "make_concat",
    "make_slice",
    "replace_by_producer",
]

#: Weight of an identity layer, and its scale.
IDENTITY_WEIGHT = 64

#: Largest number of inputs of an iqCat that was measured.
MAX_CONCAT_INPUTS = 5

#: Attributes of an 8-bit 1x1 convolution, without its scales.
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

#: Attributes that select the platform of a node.
_PLACEMENT_ATTRIBUTES = ("platform", "platform_quant", "quant_mode")


def find_scale(value: ir.Value) -> tuple[float, ir.Node]:
    """Return (scale, declaring node) of tensor `value`.

    A Quant declares `scale_x`, other nodes `scale_o`; a node without it keeps the scale of its
    first input. Raises AssertionError if no node declares it.
    """
    node = value.producer()
    while node is not None:
        key = "scale_x" if node.op_type == QUANT.name else "scale_o"
        if key in node.attributes:
            return float(ir.get_attr(node, key)), node
        node = ir.require_input(node).producer()
    raise AssertionError(f"no node declares the scale of '{value.name}'")


def get_dims(value: ir.Value | None) -> list[int]:
    """Return the shape of `value` with unknown sizes as 1; empty if its rank is unknown."""
    return [int(dim or 1) for dim in ir.get_shape(value) or ()]


def make_slice(
    graph: ir.Model,
    value: ir.Value,
    axis: int,
    start: int,
    end: int,
    base_name: str,
    used_names: set[str],
) -> ir.Node:
    """Make a Slice of the indices `start` to `end` - 1 of `value` on `axis`, without inserting it.

    The constants of the bounds are added to the graph.

    Parameters
    ----------
    base_name : str
        Name of its output, made unique.
    used_names : set of str
        Tensor names in use; the new names are added.
    """
    name = ir.reserve_name(base_name, used_names)
    bounds = []
    for label, index in (("start", start), ("end", end), ("axis", axis), ("step", 1)):
        bound_name = ir.reserve_name(f"{name}_{label}", used_names)
        bounds.append(ir.add_initializer(graph, bound_name, np.array([index], np.int64)))
    slice_node = ir.make_node(
        "Slice", [value, *bounds], name=f"Slice_{name}", output=name, like=value
    )
    shape = list(ir.get_shape(value) or ())
    shape[axis] = end - start
    slice_node.outputs[0].shape = ir.Shape(shape)
    return slice_node


def make_concat(
    parts: Sequence[ir.Value], axis: int, scale: float, like: ir.Node, name: str, output: str
) -> ir.Node:
    """Make an iqCat of `parts` on `axis`, all quantized with `scale`, without inserting it.

    It has the platform attributes of node `like`, a name made of `name`, and an output named
    `output`.
    """
    platform_attributes = {
        key: ir.get_attr(like, key) for key in _PLACEMENT_ATTRIBUTES if key in like.attributes
    }
    attrs = {
        "dim": axis,
        **{f"scale_x_{i}": scale for i in range(len(parts))},
        "scale_o": scale,
        **platform_attributes,
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
    shape[axis] = sum(int((ir.get_shape(part) or ())[axis] or 0) for part in parts)
    concat.outputs[0].shape = ir.Shape(shape)
    return concat


def insert_slice(graph: ir.Model, node: ir.Node, axis: int, start: int, end: int) -> ir.Value:
    """Insert a Slice of the first output of `node` after that node.

    It has the indices `start` to `end` - 1 of `axis`. Consumers are not changed.

    Returns
    -------
    ir.Value
        Output of the Slice.
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
    """Insert an iqCat, the chip's concatenation, of `parts` along `axis` and return its output.

    Parameters
    ----------
    node : ir.Node
        Node whose platform attributes it gets.
    parts : sequence of ir.Value
        Inputs, all quantized with `scale`, which is also that of the output.
    name : str
        Name of the output, made unique; empty for the name of the output of `node`.
    before : ir.Node, optional
        Node before which it is inserted; by default `node`.
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
    """Insert a 1x1 Conv2dInt over `value`, reshaped to an image, and reshape its result.

    Reshapes are left out where the shapes are equal. Consumers of `value` are not changed.

    Parameters
    ----------
    value : ir.Value
        Input.
    image : sequence of int
        Shape [1, C, H, W] of the image.
    constants : mapping of str to np.ndarray
        Weight [N, C, 1, 1] and, optionally, bias [N].
    scales : mapping of str to float
        Attributes scale_x, scale_w, scale_o.
    output_shape : sequence of int
        Shape of the result.
    name : str
        Name of the result, and prefix of the names of new tensors.
    before : ir.Node
        Node before which the nodes are inserted.

    Returns
    -------
    ir.Value
        The result.
    """
    conv_shape = [1, len(constants["weight"]), *image[2:]]
    conv_name = name if list(output_shape) == conv_shape else f"{name}_convolved"
    attributes: dict[str, object] = {
        **POINTWISE_CONV_ATTRIBUTES,
        **scales,
        **target.node_attributes.get("", {}),
    }
    used_names = ir.get_tensor_names(graph)
    value = insert_reshape(graph, value, image, f"{name}_image", before, used_names)
    value = _insert_node(
        graph,
        CONV2D.name,
        value,
        constants,
        dict(sorted(attributes.items())),
        shape=conv_shape,
        name=conv_name,
        before=before,
        used_names=used_names,
    )
    return insert_reshape(graph, value, output_shape, name, before, used_names)


def insert_reshape(
    graph: ir.Model,
    value: ir.Value,
    shape: Sequence[int],
    name: str,
    before: ir.Node,
    used_names: set[str],
    always: bool = False,
) -> ir.Value:
    """Insert a Reshape of `value` to `shape` before node `before`; return its output.

    Returns `value` itself if it has this shape already, unless `always`. `used_names` gets the new
    names.
    """
    if not always and list(shape) == list(ir.get_shape(value) or ()):
        return value
    constants = {"shape": np.array(shape, np.int64)}
    return _insert_node(
        graph,
        RESHAPE.name,
        value,
        constants,
        {},
        shape=shape,
        name=name,
        before=before,
        used_names=used_names,
    )


def replace_by_producer(graph: ir.Model, nodes: Sequence[ir.Node], value: ir.Value) -> None:
    """Replace `nodes` by the producer of `value`, whose output gets the name of theirs, in place.

    The last output of `nodes` must be the only one that others read.
    """
    producer = value.producer()
    assert producer is not None
    graph.graph.remove(producer)
    ir.replace_nodes(graph, nodes, [producer])


def _insert_node(
    graph: ir.Model,
    op_type: str,
    value: ir.Value,
    constants: Mapping[str, np.ndarray],
    attributes: Mapping[str, object],
    shape: Sequence[int],
    name: str,
    before: ir.Node,
    used_names: set[str],
) -> ir.Value:
    """Insert a node of `op_type` on `value` and new constants before node `before`.

    Return its output. `constants` are further inputs by suffix of their names; `used_names` gets
    the new names.
    """
    name = ir.reserve_name(name, used_names)
    inputs = [value]
    for label, array in constants.items():
        constant_name = ir.reserve_name(f"{name}_{label}", used_names)
        inputs.append(ir.add_initializer(graph, constant_name, array))
    node = ir.make_node(
        op_type,
        inputs,
        dict(attributes),
        name=f"{op_type}_{name}",
        output=name,
        domain="" if op_type == RESHAPE.name else "thinker",
        like=value,
    )
    node.outputs[0].shape = ir.Shape(list(shape))
    graph.graph.insert_before(before, node)
    return node.outputs[0]
