"""The mean or the maximum of a sequence is pooling over a line.

ReduceMean, ReduceMax over an axis of [N, A, B].
    axis 1    Transpose -> [N, B, A], then as axis 2
    axis 2    Reshape -> [N, A, 1, B], AveragePool or MaxPool 1 x B, Reshape -> [N, A] (or [N, A,
    1])

so that no operator but pooling divides or compares. GlobalAveragePool and GlobalMaxPool of [N, A,
B] likewise, and AveragePool and MaxPool of [N, A, B], with windows 1 x k: chips pool maps.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...graph.builder import SubgraphBuilder
from .._pass import PassResult, SkipReason

_POOL_OPS = ("AveragePool", "MaxPool")
_POOL_BY_REDUCTION = {"mean": "AveragePool", "max": "MaxPool"}
#: What pools a whole line -> the pool.
_POOL_BY_OP = {
    kind: _POOL_BY_REDUCTION[how]
    for kind, how in {**operators.REDUCTION_KINDS, **operators.POOL_KINDS}.items()
    if how in _POOL_BY_REDUCTION and kind not in _POOL_OPS
}


def convert_sequence_pools(model: ir.Model) -> PassResult:
    """Rewrite the pools, and the means and maxima over one axis of a sample, of the sequences in `model`."""
    changed, why = 0, list[SkipReason]()
    for node in list(model.graph):
        if node.op_type in _POOL_OPS and not node.domain:
            changed += _convert_1d_pool(model, node)
            continue
        shape = (
            ir.get_shape(node.inputs[0])
            if node.op_type in _POOL_BY_OP and not node.domain
            else None
        )
        if shape is None or len(shape) != 3 or not _is_float32(node):
            continue
        axes = (
            [2]
            if node.op_type.startswith("Global")
            else sorted(a % 3 for a in ir.get_axes(node) or ())
        )
        if axes not in ([1], [2]):
            continue
        if None in shape[1:]:
            why.append(
                SkipReason(
                    node, "the length of the sequence, or the number of channels, is not known"
                )
            )
            continue
        _replace_with_pool(model, node, axes[0])
        changed += 1
    return PassResult(changed, why)


def _is_float32(node: ir.Node) -> bool:
    kind = ir.require_input(node).dtype
    return kind is not None and kind.name == "FLOAT"


def _convert_1d_pool(model: ir.Model, node: ir.Node) -> bool:
    """Let the pool `node` of lines [N, A, B] pool maps [N, A, 1, B].

    False where it pools something else.
    """
    before, after = ir.get_shape(node.inputs[0]), ir.get_shape(node.outputs[0])
    whole = len(node.outputs) == 1 and ir.get_attr(node, "auto_pad", "NOTSET") == "NOTSET"
    if (
        not whole
        or before is None
        or after is None
        or len(before) != 3
        or None in (*before[1:], *after[1:])
    ):
        return False
    if not _is_float32(node):
        return False
    channels, length, places = int(before[1] or 1), int(before[2] or 1), int(after[2] or 1)
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    for name, other in (("kernel_shape", 1), ("strides", 1), ("dilations", 1)):
        if name in attributes:
            attributes[name] = [other, *attributes[name]]
    if "pads" in attributes:
        start, end = attributes["pads"]
        attributes["pads"] = [0, start, 0, end]
    make = SubgraphBuilder(model, node)
    line = make.reshape(ir.require_input(node), [channels, 1, length], "line")
    pool = make(node.op_type, [line], [line.shape[0], channels, 1, places], "pool", attributes)  # type: ignore[index]
    make.reshape(pool, [channels, places], "back")
    make.replace_node()
    return True


def _replace_with_pool(model: ir.Model, node: ir.Node, axis: int) -> None:
    """Put pooling over `axis` (1 or 2) in the place of `node`."""
    source, base = ir.require_input(node), node.outputs[0].name
    length, channels = (int(ir.require_shape(source)[a] or 1) for a in (axis, 3 - axis))
    batch = source.shape[0]  # type: ignore[index]
    keep = node.op_type.startswith("Global") or ir.get_attr(node, "keepdims", 1)
    kept = ([1, channels] if axis == 1 else [channels, 1]) if keep else [channels]
    line, back = (
        ir.add_initializer(
            model,
            ir.unique_tensor_name(model, f"{base}_{key}_shape"),
            np.array([0, *dims], np.int64),
        )
        for key, dims in (("line", [channels, 1, length]), ("back", kept))
    )
    window = {"kernel_shape": [1, length], "strides": [1, length]}
    steps: list[tuple[str, str, list[ir.Value], dict[str, list[int]], list[int]]] = [
        ("line", "Reshape", [line], {}, [channels, 1, length]),
        ("pool", _POOL_BY_OP[node.op_type], [], window, [channels, 1, 1]),
    ]
    if axis == 1:
        steps.insert(0, ("turned", "Transpose", [], {"perm": [0, 2, 1]}, [channels, length]))
    added, value = [], source
    for what, op_type, extra, attrs, dims in steps:
        new = ir.make_node(
            op_type,
            [value, *extra],
            attrs,
            origin=node,
            suffix=what,
            output=ir.unique_tensor_name(model, f"{base}_{what}"),
        )
        value = new.outputs[0]
        value.type, value.shape = node.outputs[0].type, ir.make_shape([batch, *dims])
        added.append(new)
    added.append(
        ir.make_node("Reshape", [value, back], origin=node, output="", like=node.outputs[0])
    )
    ir.replace_nodes(model, [node], added)
