"""Shapes and element types of a graph that may be wrong, by ONNX's own inference, and where they contradict the file.

Works on a copy without large constants and without the file's notes on tensors inside the graph,
which may be stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from ..formats import BATCH_NORM2D, CONV1D, CONV2D, CONV_TRANSPOSE2D, GRU, LAYER_NORM, LINEAR, LSTM
from ..graph import operators
from ..schemas import register_schemas, to_checkable_model
from .graph_view import GraphView, NodeView, node_label
from .node_semantics import integer_operator

__all__ = ["Sizes", "dims_of", "find_shape_conflicts", "infer_shapes", "shapes_conflict"]

_MAX_KEPT_ELEMENTS = 1024  # values; larger constants are no shapes
Dims = tuple[int | None, ...]
Sizes = dict[str, tuple[int, Dims | None]]

#: Operators whose sizes nobody should tell: the executor's ArgMax differs from ONNX's, branches from one another.
_UNINFERRED_OPS = operators.CONTROL_FLOW_OPS | {"ArgMax"}
_UNKNOWN_DOMAIN = "lingeronnx.unknown"

#: Where an integer layer's input meets its weight: operator -> (axis of the input, axis of the weight, grouped).
_WIDTH_AXES = {
    CONV2D.name: (1, 1, True),
    CONV1D.name: (1, 1, True),
    CONV_TRANSPOSE2D.name: (1, 0, False),
    LINEAR.name: (-1, -1, False),
    BATCH_NORM2D.name: (1, 0, False),
    LAYER_NORM.name: (-1, -1, False),
    LSTM.name: (-1, -1, False),
    GRU.name: (-1, -1, False),
}


def infer_shapes(model: ModelProto) -> Sizes:
    """Return {tensor: (element type, dims or None)} of the main graph, as far as anything is known."""
    copy = _strip_for_inference(model)
    try:
        register_schemas()
        done = shape_inference.infer_shapes(
            to_checkable_model(copy), check_type=False, strict_mode=False, data_prop=True
        )
    except Exception:  # inference gives up on what is damaged too badly: then nothing is known
        return {}
    graph = done.graph
    sizes: Sizes = {t.name: (t.data_type, tuple(int(d) for d in t.dims)) for t in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        known = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            sizes.setdefault(value.name, (known.elem_type, dims_of(value)))
    return sizes


def _strip_for_inference(model: ModelProto) -> ModelProto:
    copy = ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    for node in graph.node:
        if node.op_type in _UNINFERRED_OPS and node.domain in ("", "ai.onnx"):
            node.domain = _UNKNOWN_DOMAIN
            del node.attribute[:]
    copy.opset_import.append(helper.make_opsetid(_UNKNOWN_DOMAIN, 1))
    graph.input.extend(model.graph.input)
    for value in graph.input:
        if any(
            dim.dim_value < 0 for dim in value.type.tensor_type.shape.dim
        ):  # at which ONNX ends the process
            value.type.tensor_type.ClearField("shape")
    graph.output.extend(ValueInfoProto(name=value.name) for value in model.graph.output)
    for tensor in model.graph.initializer:
        if any(dim < 0 for dim in tensor.dims):
            continue
        small = (
            sum(map(abs, tensor.dims)) <= _MAX_KEPT_ELEMENTS
            and len(tensor.raw_data) <= 8 * _MAX_KEPT_ELEMENTS
        )
        graph.initializer.append(
            tensor
            if small and tensor.data_location != TensorProto.EXTERNAL
            else TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        )
    return copy


def dims_of(value: ValueInfoProto) -> Dims | None:
    """Return the declared sizes of a tensor, None for those that are no numbers, and None where there are none."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    return tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim)


def shapes_conflict(one: Dims | None, other: Dims | None) -> bool:
    """Whether two shapes cannot be the same.

    Axis 0 may be the batch and counts only where both say more than 1.
    """
    if one is None or other is None:
        return False
    if len(one) != len(other):
        return True
    pairs = list(zip(one, other, strict=True))
    return any(
        a is not None and b is not None and a != b and (i or min(a, b) > 1)
        for i, (a, b) in enumerate(pairs)
    )


def find_shape_conflicts(
    model: ModelProto, view: GraphView, unwritten_value_info: Sequence[ValueInfoProto] = ()
) -> set[str]:
    """Return what does not fit together.

    Declared outputs, widths of layers, numbers of elements, sizes of operands.
    unwritten_value_info : what the file says of tensors that nobody writes, under the names they
    are read by now
    """
    sizes = infer_shapes(model)
    conflicting = set(_strict_inference_errors(model))
    for value in (*model.graph.output, *unwritten_value_info):
        have = sizes.get(value.name, (0, None))[1]
        if shapes_conflict(dims_of(value), have):
            conflicting.add(f"'{value.name}' should be {_format_dims(dims_of(value))}")
    for node in view.main.nodes:
        shapes = [sizes.get(name, (0, None))[1] for name in node.proto.input]
        conflicting.update(
            f"{node.label}: {what}"
            for what in _find_misfits(node.proto, shapes, sizes, _operator_name(node))
        )
    return conflicting


def _operator_name(node: NodeView) -> str:
    """Return today's name of an integer operator, else the node's own."""
    op = integer_operator(node)
    return op.name if op is not None else node.proto.op_type


def _find_misfits(
    proto: onnx.NodeProto, shapes: Sequence[Dims | None], sizes: Sizes, name: str
) -> Iterator[str]:
    if name in _WIDTH_AXES and len(shapes) > 1:
        axis, other, grouped = _WIDTH_AXES[name]
        matrix = name in (LSTM.name, GRU.name)  # which have lengths and states before their weights
        weight = next(
            (s for s in shapes[1:] if s is not None and (not matrix or len(s) == 2)), None
        )
        group = next((int(a.i) for a in proto.attribute if a.name == "group"), 1) if grouped else 1
        x = shapes[0]
        if x is not None and weight:
            if not -len(x) <= axis < len(x) or (name.startswith("Conv") and len(x) != len(weight)):
                yield "rank"
            else:
                have, want = x[axis], weight[other]
                if have is not None and want is not None and have != want * group:
                    yield "width"
    if name in ("Reshape", "Flatten") and proto.output and shapes:
        counts = [
            _element_count(shapes[0]),
            _element_count(sizes.get(proto.output[0], (0, None))[1]),
        ]
        if None not in counts and counts[0] != counts[1]:
            yield "number of elements"


def _element_count(dims: Dims | None) -> int | None:
    if dims is None or None in dims:
        return None
    total = 1
    for d in dims:
        total *= d or 0
    return total


def _strict_inference_errors(model: ModelProto) -> Iterator[str]:
    """Yield what strict inference stumbles over first."""
    try:
        register_schemas()
        shape_inference.infer_shapes(
            to_checkable_model(_strip_for_inference(model)),
            check_type=False,
            strict_mode=True,
            data_prop=True,
        )
    except Exception as error:
        text = " ".join(str(error).split())
        names = sorted(
            (node_label(n) for n in model.graph.node if n.name and n.name in text),
            key=len,
            reverse=True,
        )
        yield f"sizes of {names[0]}" if names else text


def _format_dims(dims: Dims | None) -> str:
    return "?" if dims is None else "[" + ",".join("?" if d is None else str(d) for d in dims) + "]"
