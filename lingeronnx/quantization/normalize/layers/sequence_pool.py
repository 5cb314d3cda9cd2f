"""Convert the mean or maximum of a sequence to a two-dimensional pool.

ReduceMean and ReduceMax over an axis of [N, A, B]:

    axis 1    Transpose -> [N, B, A], then as axis 2
    axis 2    Reshape -> [N, A, 1, B], AveragePool or MaxPool 1 x B, Reshape -> [N, A] or [N, A, 1]

so that only pools divide or compare. The same applies to GlobalAveragePool and GlobalMaxPool of
[N, A, B], and to AveragePool and MaxPool of [N, A, B], with windows 1 x k: platforms pool feature
maps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir import float_ops, ir
from ....ir.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

_POOL_OPS = ("AveragePool", "MaxPool")
_POOL_BY_REDUCTION = {"mean": "AveragePool", "max": "MaxPool"}
#: Operator that reduces a complete axis -> the pool that replaces it.
_POOL_BY_OP = {
    op_type: _POOL_BY_REDUCTION[reduction]
    for op_type, reduction in {**float_ops.REDUCTION_KINDS, **float_ops.POOL_KINDS}.items()
    if reduction in _POOL_BY_REDUCTION and op_type not in _POOL_OPS
}


def convert_sequence_pools(model: ir.Model) -> PassResult:
    """Convert pools of sequences [N, A, B], and means and maxima over one of their axes, in place.

    They become pools over images of height 1. A mean or maximum with unknown sizes is skipped with
    a reason; pools that cannot be converted are left alone silently.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        if ir.is_standard_op(node, *_POOL_OPS):
            changes += _convert_1d_pool(model, node)
            continue
        if not ir.is_standard_op(node, *_POOL_BY_OP):
            continue
        axes = _reduced_sequence_axes(node)
        if axes not in ([1], [2]):
            continue
        if None in ir.require_shape(node.inputs[0])[1:]:
            reason = "the length of the sequence, or the number of channels, is not known"
            skipped.append(SkipReason(node, reason))
            continue
        _replace_with_pool(model, node, axes[0])
        changes += 1
    return PassResult(changes, skipped)


def _reduced_sequence_axes(node: ir.Node) -> list[int]:
    """Return the axes that `node` reduces if its input is a float32 tensor [N, A, B], else [].

    Global pools reduce axis 2; the others have axes as attribute or input.
    """
    shape = ir.get_shape(node.inputs[0])
    if shape is None or len(shape) != 3 or not ir.is_float32(node.inputs[0]):
        return []
    if node.op_type.startswith("Global"):
        return [2]
    return sorted(axis % 3 for axis in ir.get_axes(node) or ())


def _convert_1d_pool(model: ir.Model, node: ir.Node) -> bool:
    """Convert a pool of sequences [N, A, B] to one of feature maps [N, A, 1, B]; return True.

    Returns False, without a change, for other ranks and types, unknown sizes besides N, auto_pad,
    and several outputs.
    """
    if len(node.outputs) != 1 or ir.get_attr(node, "auto_pad", "NOTSET") != "NOTSET":
        return False
    shape, result_shape = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    if shape is None or result_shape is None or len(shape) != 3:
        return False
    if None in (*shape[1:], *result_shape[1:]) or not ir.is_float32(node.inputs[0]):
        return False
    channels, length = ir.get_sample_dims(node.inputs[0])
    result_length = ir.get_sample_dims(node.outputs[0])[1]
    build = SubgraphBuilder(model, node)
    line = build.reshape(ir.require_input(node), [channels, 1, length], "line")
    pooled_shape = [line.shape[0], channels, 1, result_length]  # type: ignore[index]
    pool = build(node.op_type, [line], pooled_shape, "pool", _make_2d_attributes(node))
    build.reshape(pool, [channels, result_length], "back")
    build.replace_node()
    return True


def _make_2d_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of the 1-D pool `node` for a 2-D pool of height 1.

    Kernel, strides and dilations get a leading 1; pads become [0, start, 0, end].
    """
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    for name in ("kernel_shape", "strides", "dilations"):
        if name in attributes:
            attributes[name] = [1, *attributes[name]]
    if "pads" in attributes:
        start, end = attributes["pads"]
        attributes["pads"] = [0, start, 0, end]
    return attributes


def _replace_with_pool(model: ir.Model, node: ir.Node, axis: int) -> None:
    """Replace a reduction over `axis` (1 or 2) of a three-dimensional tensor by a pool.

    The pool runs over an image of height 1; axis 1 is transposed to the end first.
    """
    source, base = ir.require_input(node), node.outputs[0].name
    shape = ir.require_shape(source)
    length, channels = int(shape[axis] or 1), int(shape[3 - axis] or 1)
    batch = source.shape[0]  # type: ignore[index]
    line_sizes, result_sizes = [channels, 1, length], [channels]
    if node.op_type.startswith("Global") or ir.get_attr(node, "keepdims", 1):
        result_sizes = [1, channels] if axis == 1 else [channels, 1]
    line_target, result_target = (
        ir.add_initializer(
            model,
            ir.unique_tensor_name(model, f"{base}_{key}_shape"),
            np.array([0, *sizes], np.int64),
        )
        for key, sizes in (("line", line_sizes), ("back", result_sizes))
    )
    new_nodes: list[ir.Node] = []

    def add(
        op_type: str,
        inputs: list[ir.Value],
        suffix: str,
        sizes: list[int],
        attributes: dict[str, list[int]],
    ) -> ir.Value:
        """Append a node with output [batch, *sizes] to `new_nodes`, and return its output."""
        new_node = ir.make_node(
            op_type,
            inputs,
            attributes,
            origin=node,
            suffix=suffix,
            output=ir.unique_tensor_name(model, f"{base}_{suffix}"),
        )
        new_nodes.append(new_node)
        value = new_node.outputs[0]
        value.type, value.shape = node.outputs[0].type, ir.Shape([batch, *sizes])
        return value

    value = source
    if axis == 1:
        value = add("Transpose", [value], "turned", [channels, length], {"perm": [0, 2, 1]})
    value = add("Reshape", [value, line_target], "line", line_sizes, {})
    window = {"kernel_shape": [1, length], "strides": [1, length]}
    value = add(_POOL_BY_OP[node.op_type], [value], "pool", [channels, 1, 1], window)
    restore = ir.make_node(
        "Reshape", [value, result_target], origin=node, output="", like=node.outputs[0]
    )
    ir.replace_nodes(model, [node], [*new_nodes, restore])
