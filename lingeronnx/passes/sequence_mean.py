"""The mean of a sequence is an average over a line: ReduceMean over axis 1 of [N, T, C].

    Transpose -> [N, C, T], Reshape -> [N, C, 1, T], AveragePool 1 x T, Reshape -> [N, C] (or [N, 1, C])

so that no operator but pooling divides.
"""

from __future__ import annotations

from ..graph import ir
from ..graph.builder import Builder
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
        source, build = ir.source(node), Builder(model, node)
        batch = source.shape[0] if source.shape is not None else "N"
        value = build("Transpose", [source], [batch, channels, length], "turned", {"perm": [0, 2, 1]})
        value = build.reshape(value, [channels, 1, length], "line")
        window = {"kernel_shape": [1, length], "strides": [1, length]}
        value = build("AveragePool", [value], [batch, channels, 1, 1], "mean", window)
        build.reshape(value, [1, channels] if ir.attr(node, "keepdims", 1) else [channels], "back")
        build.done()
        changed += 1
    return Answer(changed, why)


def _axes(node: ir.Node) -> list[int] | None:
    axes = ir.axes(node)
    return None if axes is None else sorted(a % 3 for a in axes)
