"""The mean or the maximum of a sequence is pooling over a line: ReduceMean, ReduceMax over an axis of [N, A, B].

    axis 1    Transpose -> [N, B, A], then as axis 2
    axis 2    Reshape -> [N, A, 1, B], AveragePool or MaxPool 1 x B, Reshape -> [N, A] (or [N, A, 1])

so that no operator but pooling divides or compares. GlobalAveragePool and GlobalMaxPool of [N, A, B] likewise, and
AveragePool and MaxPool of [N, A, B], with windows 1 x k: chips pool maps.
"""

from __future__ import annotations

import numpy as np

from ...graph import ir, operators
from ...graph.builder import Builder
from .._pass import Answer, Reason

_WINDOWS = ("AveragePool", "MaxPool")
_OF = {"mean": "AveragePool", "max": "MaxPool"}
#: What pools a whole line -> the pool.
_POOLS = {
    kind: _OF[how]
    for kind, how in {**operators.REDUCES, **operators.POOLS}.items()
    if how in _OF and kind not in _WINDOWS
}


def sequence_pool(model: ir.Graph) -> Answer:
    """Rewrite the pools, and the means and maxima over one axis of a sample, of the sequences in `model`."""
    changed, why = 0, list[Reason]()
    for node in list(model.graph):
        if node.op_type in _WINDOWS and not node.domain:
            changed += _window(model, node)
            continue
        shape = ir.shape(node.inputs[0]) if node.op_type in _POOLS and not node.domain else None
        if shape is None or len(shape) != 3 or not _real(node):
            continue
        axes = [2] if node.op_type.startswith("Global") else sorted(a % 3 for a in ir.axes(node) or ())
        if axes not in ([1], [2]):
            continue
        if None in shape[1:]:
            why.append(Reason(node, "the length of the sequence, or the number of channels, is not known"))
            continue
        _pool(model, node, axes[0])
        changed += 1
    return Answer(changed, why)


def _real(node: ir.Node) -> bool:
    kind = ir.source(node).dtype
    return kind is not None and kind.name == "FLOAT"


def _window(model: ir.Graph, node: ir.Node) -> bool:
    """Let the pool `node` of lines [N, A, B] pool maps [N, A, 1, B]; False where it pools something else."""
    before, after = ir.shape(node.inputs[0]), ir.shape(node.outputs[0])
    whole = len(node.outputs) == 1 and ir.attr(node, "auto_pad", "NOTSET") == "NOTSET"
    if not whole or before is None or after is None or len(before) != 3 or None in (*before[1:], *after[1:]):
        return False
    if not _real(node):
        return False
    channels, length, places = int(before[1] or 1), int(before[2] or 1), int(after[2] or 1)
    attributes = {name: ir.attr(node, name) for name in node.attributes}
    for name, other in (("kernel_shape", 1), ("strides", 1), ("dilations", 1)):
        if name in attributes:
            attributes[name] = [other, *attributes[name]]
    if "pads" in attributes:
        start, end = attributes["pads"]
        attributes["pads"] = [0, start, 0, end]
    make = Builder(model, node)
    line = make.reshape(ir.source(node), [channels, 1, length], "line")
    pool = make(node.op_type, [line], [line.shape[0], channels, 1, places], "pool", attributes)  # type: ignore[index]
    make.reshape(pool, [channels, places], "back")
    make.done()
    return True


def _pool(model: ir.Graph, node: ir.Node, axis: int) -> None:
    """Put pooling over `axis` (1 or 2) in the place of `node`."""
    source, base = ir.source(node), node.outputs[0].name
    length, channels = (int(ir.known_shape(source)[a] or 1) for a in (axis, 3 - axis))
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
    added, value = [], source
    for what, op_type, extra, attrs, dims in steps:
        new = ir.make_node(
            op_type, [value, *extra], attrs, of=node, what=what, output=ir.fresh_name(model, f"{base}_{what}")
        )
        value = new.outputs[0]
        value.type, value.shape = node.outputs[0].type, ir.oir_shape([batch, *dims])
        added.append(new)
    added.append(ir.make_node("Reshape", [value, back], of=node, output="", like=node.outputs[0]))
    ir.replace(model, [node], added)
