"""Parts taken from the front of a transposed tensor are taken before the transpose.

Fused queries, keys and values.
    [N, T, 3*H*D] -> Reshape [N, T, 3, H, D] -> Transpose [3, N, H, T, D] -> Gather i, or Split and
    Squeeze

becomes, for each part that is read,

    [N, T, 3*H*D] -> Slice i -> Reshape [N, T, H, D] -> Transpose [N, H, T, D]

so that the batch stays in front and no tensor has five axes.
"""

from __future__ import annotations

import math

import numpy as np

from ...graph import ir
from .._pass import PassResult, SkipReason


def slice_before_transpose(model: ir.Model) -> PassResult:
    """Rewrite the parts of transposed tensors of `model`, counted by the transposes that are gone."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        match = _match_unbind(node)
        if match is not None:
            _emit_slices(model, node, *match)
            changed += 1
        elif _moves_split_axis_first(node):
            why.append(
                SkipReason(
                    node,
                    "its parts are not all taken one by one, or do not lie side by side before it",
                )
            )
    return PassResult(changed, why)


def _moves_split_axis_first(node: ir.Node) -> bool:
    """Whether `node` is a Transpose that puts the batch behind an axis of a tensor that was just taken apart."""
    perm = ir.get_attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
    split = ir.producer(node.inputs[0]) if perm and len(perm) > 3 and perm[1] == 0 else None
    return split is not None and split.op_type == "Reshape"


def _match_unbind(
    node: ir.Node,
) -> tuple[ir.Value, list[int], list[tuple[int, list[ir.Node]]]] | None:
    """Return (the tensor before the reshape, the reshape's sizes, [(part, the nodes that take it)]) of a Transpose."""
    perm = ir.get_attr(node, "perm") if node.op_type == "Transpose" and not node.domain else None
    if not perm or len(perm) < 3 or perm[1] != 0:
        return None
    split = ir.producer(node.inputs[0])
    if (
        split is None
        or split.op_type != "Reshape"
        or ir.sole_consumer(split.outputs[0]) is not node
    ):
        return None
    whole, sizes = ir.get_shape(split.inputs[0]), ir.get_shape(split.outputs[0])
    axis = perm[0]
    if not whole or not sizes or None in whole[1:] or None in sizes[1:] or len(whole) != axis + 1:
        return None
    known = [int(d or 1) for d in sizes]
    if (
        whole[1:axis] != sizes[1:axis]
        or whole[axis] != math.prod(known[axis:])
        or node.outputs[0].is_graph_output()
    ):
        return None
    taken: list[tuple[int, list[ir.Node]]] = []
    for use in node.outputs[0].uses():
        parts = _match_taken_parts(use.node, use.idx, known[axis])
        if parts is None:
            return None
        taken += parts
    return (ir.require_input(split), known, taken) if taken else None


def _match_taken_parts(
    user: ir.Node, index: int, count: int
) -> list[tuple[int, list[ir.Node]]] | None:
    """Return [(part, nodes)] that `user` takes from axis 0, without that axis.

    None where it is no such use.
    """
    if user.domain or index != 0:
        return None
    if user.op_type == "Gather" and not ir.get_attr(user, "axis", 0):
        chosen = ir.const_value(user.inputs[1])
        fits = chosen is not None and chosen.ndim == 0 and -count <= int(chosen) < count
        return [(int(chosen) % count, [user])] if fits and chosen is not None else None
    if user.op_type != "Split" or ir.get_attr(user, "axis", 0) or len(user.outputs) != count:
        return None
    parts = []
    for part, value in enumerate(user.outputs):  # as many parts as there are: one each
        squeeze = ir.sole_consumer(value)
        if (
            squeeze is None
            or squeeze.op_type != "Squeeze"
            or squeeze.domain
            or ir.get_axes(squeeze) != [0]
        ):
            return None
        parts.append((part, [user, squeeze]))
    return parts


def _emit_slices(
    model: ir.Model,
    node: ir.Node,
    source: ir.Value,
    sizes: list[int],
    parts: list[tuple[int, list[ir.Node]]],
) -> None:
    perm = ir.get_attr(node, "perm")
    axis, split = perm[0], ir.producer(node.inputs[0])
    length, rest = math.prod(sizes[axis + 1 :]), [*sizes[1:axis], *sizes[axis + 1 :]]
    turn = [p - (p > axis) for p in perm[1:]]
    batch = source.shape[0] if source.shape is not None else "N"
    for part, nodes in parts:
        result, base = nodes[-1].outputs[0], nodes[-1].outputs[0].name
        ends = [
            ir.add_initializer(
                model, ir.unique_tensor_name(model, f"{base}_{key}"), np.array([value], np.int64)
            )
            for key, value in (
                ("start", part * length),
                ("end", (part + 1) * length),
                ("axis", axis),
            )
        ]
        target = ir.add_initializer(
            model, ir.unique_tensor_name(model, f"{base}_shape"), np.array([0, *rest], np.int64)
        )
        cut = ir.make_node(
            "Slice",
            [source, *ends],
            origin=nodes[-1],
            suffix="part",
            output=ir.unique_tensor_name(model, f"{base}_part"),
            like=source,
        )
        cut.outputs[0].shape = ir.make_shape([batch, *sizes[1:axis], length])
        apart = ir.make_node(
            "Reshape",
            [cut.outputs[0], target],
            origin=nodes[-1],
            suffix="apart",
            output=ir.unique_tensor_name(model, f"{base}_apart"),
            like=source,
        )
        apart.outputs[0].shape = ir.make_shape([batch, *rest])
        last = ir.make_node(
            "Transpose", apart.outputs, {"perm": turn}, origin=nodes[-1], output="", like=result
        )
        model.graph.insert_before(node, [cut, apart, last])
        name = result.name
        ir.replace_all_uses(result, last.outputs[0])
        last.outputs[0].name = name
    gone = {id(member): member for _, nodes in parts for member in reversed(nodes)}  # readers first
    model.graph.remove([*gone.values(), node, *([split] if split is not None else [])], safe=True)
