"""The mean or the maximum of a sequence is pooling over a line: ReduceMean, ReduceMax over an axis of [N, A, B].

    axis 1    Transpose -> [N, B, A], then as axis 2
    axis 2    Reshape -> [N, A, 1, B], AveragePool or MaxPool 1 x B, Reshape -> [N, A] (or [N, A, 1])

so that no operator but pooling divides or compares. GlobalAveragePool and GlobalMaxPool of [N, A, B] likewise.
"""

from __future__ import annotations

import numpy as np

from ..graph import ir
from ._pass import Answer, Reason, refused

_POOLS = {
    "GlobalAveragePool": "AveragePool", "GlobalMaxPool": "MaxPool", "ReduceMax": "MaxPool", "ReduceMean": "AveragePool",
}  # fmt: skip


def sequence_pool(model: ir.Graph) -> Answer:
    """Rewrite the means and maxima over one axis of a sample of three-dimensional tensors of `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        shape = ir.shape(node.inputs[0]) if node.op_type in _POOLS and not node.domain else None
        if shape is None or len(shape) != 3 or not _real(node):
            continue
        axes = [2] if node.op_type.startswith("Global") else sorted(a % 3 for a in ir.axes(node) or ())
        if axes not in ([1], [2]):
            continue
        if None in shape[1:]:
            why.append(refused(node, "the length of the sequence, or the number of channels, is not known"))
            continue
        _pool(model, node, axes[0])
        changed += 1
    return Answer(changed, why)


def _real(node: ir.Node) -> bool:
    kind = ir.source(node).dtype
    return kind is not None and kind.name == "FLOAT"


def _pool(model: ir.Graph, node: ir.Node, axis: int) -> None:
    """Put pooling over `axis` (1 or 2) in the place of `node`."""
    source, base = ir.source(node), node.outputs[0].name
    length, channels = (int((ir.shape(source) or ())[a] or 1) for a in (axis, 3 - axis))
    batch = source.shape[0]  # type: ignore[index]
    keep = node.op_type.startswith("Global") or ir.attr(node, "keepdims", 1)
    kept = ([1, channels] if axis == 1 else [channels, 1]) if keep else [channels]
    line, back = (
        ir.add_initializer(model, ir.fresh_name(model, f"{base}_{key}_shape"), np.array([0, *dims], np.int64))
        for key, dims in (("line", [channels, 1, length]), ("back", kept))
    )
    window = {"kernel_shape": [1, length], "strides": [1, length]}
    steps: list[tuple[str, str, list[ir.Value], dict[str, list[int]], list[int]]] = [
        ("line", "Reshape", [line], {}, [channels, 1, length]),
        ("pool", _POOLS[node.op_type], [], window, [channels, 1, 1]),
    ]
    if axis == 1:
        steps.insert(0, ("turned", "Transpose", [], {"perm": [0, 2, 1]}, [channels, length]))
    made, value = [], source
    for what, op_type, extra, attrs, dims in steps:
        new = ir.make_node(
            op_type, [value, *extra], attrs, of=node, what=what, output=ir.fresh_name(model, f"{base}_{what}")
        )
        value = new.outputs[0]
        value.type, value.shape = node.outputs[0].type, ir.oir_shape([batch, *dims])
        made.append(new)
    made.append(ir.make_node("Reshape", [value, back], of=node, output="", like=node.outputs[0]))
    ir.replace(model, [node], made)
