"""The mean of a sequence is an average over a line: ReduceMean over axis 1 of [N, T, C].

    Transpose -> [N, C, T], Reshape -> [N, C, 1, T], AveragePool 1 x T, Reshape -> [N, C] (or [N, 1, C])

so that no operator but pooling divides.
"""

from __future__ import annotations

import numpy as np

from ..graph import ir
from ._pass import Answer, Reason, refused


def sequence_mean(model: ir.Graph) -> Answer:
    """Rewrite the means over axis 1 of three-dimensional tensors of `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        shape = ir.shape(node.inputs[0]) if node.op_type == "ReduceMean" and not node.domain else None
        if shape is None or len(shape) != 3 or _axes(node) != [1]:
            continue
        if None in shape[1:]:
            why.append(refused(node, "the length of the sequence, or the number of channels, is not known"))
            continue
        length, channels = int(shape[1] or 1), int(shape[2] or 1)
        source, base, kind = ir.source(node), node.outputs[0].name, node.outputs[0].type
        batch = source.shape[0]  # type: ignore[index]
        target = [0, 1, channels] if ir.attr(node, "keepdims", 1) else [0, channels]
        sizes = {"line": [0, channels, 1, length], "back": target}
        line, back = (
            ir.add_initializer(model, ir.fresh_name(model, f"{base}_{key}_shape"), np.array(dims, np.int64))
            for key, dims in sizes.items()
        )
        steps: tuple[tuple[str, str, list[ir.Value], dict[str, list[int]], list[object]], ...] = (
            ("turned", "Transpose", [], {"perm": [0, 2, 1]}, [batch, channels, length]),
            ("line", "Reshape", [line], {}, [batch, channels, 1, length]),
            ("mean", "AveragePool", [], {"kernel_shape": [1, length], "strides": [1, length]}, [batch, channels, 1, 1]),
        )
        made, value = [], source
        for what, op_type, extra, attrs, dims in steps:
            new = ir.make_node(op_type, [value, *extra], attrs, of=node, what=what,
                               output=ir.fresh_name(model, f"{base}_{what}"))  # fmt: skip
            value = new.outputs[0]
            value.type, value.shape = kind, ir.oir_shape(dims)
            made.append(new)
        made.append(ir.make_node("Reshape", [value, back], of=node, output="", like=node.outputs[0]))
        ir.replace(model, [node], made)
        changed += 1
    return Answer(changed, why)


def _axes(node: ir.Node) -> list[int] | None:
    axes = ir.axes(node)
    return None if axes is None else sorted(a % 3 for a in axes)
