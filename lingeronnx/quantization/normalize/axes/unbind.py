"""Slice a tensor before it is transposed, for parts taken from the first axis after the Transpose.

Exporters write fused queries, keys and values as

    [N, T, 3*H*D] -> Reshape [N, T, 3, H, D] -> Transpose [3, N, H, T, D] -> Gather i, or Split or
    Slice, and Squeeze

This becomes, for each part that is used,

    [N, T, 3*H*D] -> Slice i -> Reshape [N, T, H, D] -> Transpose [N, H, T, D]

so that the batch stays first and no tensor has five axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ....ir import ir
from ....operators.selection.integer_op import sliced_positions
from .._pass import PassResult, SkipReason


class _Part(NamedTuple):
    """Index `position` on the first axis of a transposed tensor, and the nodes that select it.

    The last of `nodes` returns the selected part.
    """

    position: int
    nodes: list[ir.Node]


def slice_before_transpose(model: ir.Model) -> PassResult:
    """Slice tensors of `model` before a Transpose whose first axis is read index by index.

    In place; counted by removed Transposes. A Reshape splits the last axis (as for query, key and
    value), and the Transpose moves one of the new axes before the batch; each index then becomes a
    Slice, a Reshape and a smaller Transpose. Others of this form are skipped with a reason.
    """
    changes, skipped = 0, list[SkipReason]()
    for node in list(model.graph):
        reshape = _match_split_reshape(node)
        parts = None if reshape is None else _match_parts(node, reshape)
        if reshape is not None and parts:
            _emit_slices(model, node, reshape, parts)
            changes += 1
        elif _moves_split_axis_first(node):
            reason = "its parts are not all selected one by one, or are not adjacent before it"
            skipped.append(SkipReason(node, reason))
    return PassResult(changes, skipped)


def _moves_split_axis_first(node: ir.Node) -> bool:
    """Whether `node` is a Transpose of a Reshape's output that puts the batch on axis 1.

    It must have more than three axes; then another axis lies before the batch.
    """
    perm = ir.get_attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
    if not perm or len(perm) <= 3 or perm[1] != 0:
        return False
    producer = ir.producer(node.inputs[0])
    return producer is not None and producer.op_type == "Reshape"


def _match_split_reshape(node: ir.Node) -> ir.Node | None:
    """Return the Reshape before a Transpose whose first axis can be sliced before it, or None.

    The Reshape splits the last axis of its input, and the Transpose moves the first of the new axes
    before the batch.
    """
    if not ir.is_standard_op(node, "Transpose") or node.outputs[0].is_graph_output():
        return None
    perm = ir.get_attr(node, "perm")
    if not perm or len(perm) < 3 or perm[1] != 0:
        return None
    reshape = ir.producer(node.inputs[0])
    if reshape is None or reshape.op_type != "Reshape":
        return None
    if ir.sole_consumer(reshape.outputs[0]) is not node:
        return None
    return reshape if _splits_last_axis(reshape, perm[0]) else None


def _splits_last_axis(reshape: ir.Node, axis: int) -> bool:
    """Whether `reshape` splits `axis`, the last axis of its input, and leaves the axes before it.

    False if a dimension other than the batch is unknown in input or output.
    """
    source_shape, split_shape = ir.get_shape(reshape.inputs[0]), ir.get_shape(reshape.outputs[0])
    if not source_shape or not split_shape or len(source_shape) != axis + 1:
        return False
    if None in source_shape[1:] or None in split_shape[1:]:
        return False
    if source_shape[1:axis] != split_shape[1:axis]:
        return False
    return source_shape[axis] == math.prod(int(dim or 1) for dim in split_shape[axis:])


def _match_parts(node: ir.Node, reshape: ir.Node) -> list[_Part] | None:
    """Return the parts that all consumers of a Transpose select from its first axis, by consumer.

    `reshape` computes the input of `node`. None if a consumer is not a Gather or Split that selects
    single elements of that axis. Not all elements need be selected.
    """
    axis = ir.get_attr(node, "perm")[0]
    count = int(ir.require_shape(reshape.outputs[0])[axis] or 1)
    parts: list[_Part] = []
    for use in node.outputs[0].uses():
        selected = _match_selected_parts(use.node, use.idx, count)
        if selected is None:
            return None
        parts += selected
    return parts


def _match_selected_parts(user: ir.Node, input_index: int, count: int) -> list[_Part] | None:
    """Return the indices of axis 0, of size `count`, that `user` selects without keeping that axis.

    `user` reads the tensor as its input `input_index`, which must be 0. It must be a Gather with a
    scalar constant index, a Split into `count` outputs each of which is only squeezed, or a Slice
    of one position that is only squeezed; else None.
    """
    if input_index != 0 or ir.get_attr(user, "axis", 0):
        return None
    if ir.is_standard_op(user, "Slice"):
        return _match_squeezed_slice(user)
    if ir.is_standard_op(user, "Gather"):
        index = ir.const_value(user.inputs[1])
        if index is None or index.ndim or not -count <= int(index) < count:
            return None
        return [_Part(int(index) % count, [user])]
    if ir.is_standard_op(user, "Split") and len(user.outputs) == count:
        return _match_squeezed_outputs(user)
    return None


def _match_squeezed_outputs(split: ir.Node) -> list[_Part] | None:
    """Return one part per output of `split` if the only consumer of each squeezes axis 0.

    The part contains Split and Squeeze. None if one output is used in another way.
    """
    parts = []
    for position, value in enumerate(split.outputs):
        squeeze = ir.sole_consumer(value)
        if not ir.is_standard_op(squeeze, "Squeeze") or ir.get_axes(squeeze) != [0]:
            return None
        parts.append(_Part(position, [split, squeeze]))
    return parts


def _match_squeezed_slice(node: ir.Node) -> list[_Part] | None:
    """Return the part of a Slice of one position along axis 0 that only a Squeeze of it reads.

    None if the Slice selects or its output is used in another way.
    """
    positions = sliced_positions(node, 0)
    squeeze = ir.sole_consumer(node.outputs[0])
    if positions is None or len(positions) != 1:
        return None
    if not ir.is_standard_op(squeeze, "Squeeze") or ir.get_axes(squeeze) != [0]:
        return None
    return [_Part(positions[0], [node, squeeze])]


def _emit_slices(model: ir.Model, node: ir.Node, reshape: ir.Node, parts: list[_Part]) -> None:
    """Replace `reshape`, the Transpose `node` and the selecting nodes of `parts` by slices.

    Each part becomes a Slice of the Reshape's input, a Reshape and a Transpose, and keeps the name
    of its result. The replaced nodes are removed.
    """
    source = ir.require_input(reshape)
    perm = ir.get_attr(node, "perm")
    axis = perm[0]
    sizes = [int(dim or 1) for dim in ir.require_shape(reshape.outputs[0])]
    length = math.prod(sizes[axis + 1 :])
    part_sizes = [*sizes[1:axis], *sizes[axis + 1 :]]
    part_perm = [source_axis - (source_axis > axis) for source_axis in perm[1:]]
    batch = source.shape[0] if source.shape is not None else "N"
    for part in parts:
        origin = part.nodes[-1]
        result, base = origin.outputs[0], origin.outputs[0].name
        bounds = {
            "start": part.position * length,
            "end": (part.position + 1) * length,
            "axis": axis,
        }
        operands = [
            ir.add_initializer(
                model, ir.unique_tensor_name(model, f"{base}_{key}"), np.array([bound], np.int64)
            )
            for key, bound in bounds.items()
        ]
        target = ir.add_initializer(
            model,
            ir.unique_tensor_name(model, f"{base}_shape"),
            np.array([0, *part_sizes], np.int64),
        )
        slice_node = ir.make_node(
            "Slice",
            [source, *operands],
            origin=origin,
            suffix="part",
            output=ir.unique_tensor_name(model, f"{base}_part"),
            like=source,
        )
        slice_node.outputs[0].shape = ir.Shape([batch, *sizes[1:axis], length])
        split_node = ir.make_node(
            "Reshape",
            [slice_node.outputs[0], target],
            origin=origin,
            suffix="apart",
            output=ir.unique_tensor_name(model, f"{base}_apart"),
            like=source,
        )
        split_node.outputs[0].shape = ir.Shape([batch, *part_sizes])
        transpose = ir.make_node(
            "Transpose",
            split_node.outputs,
            {"perm": part_perm},
            origin=origin,
            output="",
            like=result,
        )
        model.graph.insert_before(node, [slice_node, split_node, transpose])
        name = result.name
        result.replace_all_uses_with(transpose.outputs[0], replace_graph_outputs=True)
        transpose.outputs[0].name = name
    removed: dict[int, ir.Node] = {}
    for part in parts:
        removed.update((id(member), member) for member in reversed(part.nodes))  # consumers first
    model.graph.remove([*removed.values(), node, reshape], safe=True)
