"""Rewrite a graph to an older opset, exactly.

Most operators of two opsets differ in the types that they accept only. What else changed is undone
here for the operators that a graph from `normalize` may contain: sizes and axes that became inputs,
the meaning of the axis of Softmax, and attributes that were added, if they have their defaults.
Everything else is an error that names the node.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from ..common.errors import ModelError
from . import ir
from .builder import SubgraphBuilder

__all__ = ["lower_opset"]


def lower_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return a copy of `model` whose standard operators have the forms of the older `opset`.

    It computes the same values. Operators of other domains stay, and so do all names.

    Raises
    ------
    ModelError
        If an operator does not exist in `opset`, or has no form there that computes the same.
    """
    copy = model.clone()
    current = copy.graph.opset_imports[""]
    nodes = list(copy.graph.all_nodes())
    for function in copy.functions.values():
        nodes += function.all_nodes()
    for node in nodes:
        if not node.domain:
            _lower_node(copy, node, current, opset)
    copy.graph.opset_imports[""] = opset
    for function in copy.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = opset
    ir.remove_unused(copy)
    return copy


def _lower_node(model: ir.Model, node: ir.Node, current: int, opset: int) -> None:
    """Give `node`, of opset `current`, the form of `opset`, in place.

    Raises ModelError if there is none.
    """
    if node.op_type in _REPLACEMENTS and not _exists(node, opset):
        _REPLACEMENTS[node.op_type](model, node)
        return
    if not _exists(node, opset):
        raise _make_error(node, opset, "the operator does not exist there")
    old = onnx.defs.get_schema(node.op_type, opset)
    new = onnx.defs.get_schema(node.op_type, current)
    if old.since_version == new.since_version:
        return
    rewrite = _REWRITES.get(node.op_type)
    if rewrite is not None:
        reason = rewrite(model, node)
        if reason:
            raise _make_error(node, opset, reason)
    _lower_attributes(node, old, new, opset)
    _check_inputs(node, old, opset)


def _exists(node: ir.Node, opset: int) -> bool:
    """Whether the operator of `node` exists in `opset`."""
    try:
        return not onnx.defs.get_schema(node.op_type, opset).deprecated
    except onnx.defs.SchemaError:
        return False


def _make_error(node: ir.Node, opset: int, reason: str) -> ModelError:
    """Return the error that `node` has no form in `opset`, for a `reason`."""
    return ModelError(f"{node.op_type} {node.name} cannot be written in opset {opset}: {reason}")


def _lower_attributes(
    node: ir.Node, old: onnx.defs.OpSchema, new: onnx.defs.OpSchema, opset: int
) -> None:
    """Remove attributes that schema `old` lacks, and write out defaults that changed, in place.

    Raises ModelError for an attribute that has an effect and does not exist in `opset`.
    """
    for name in list(node.attributes):
        if name in old.attributes:
            continue
        if not _is_default(node, name, new):
            raise _make_error(node, opset, f"its attribute '{name}' does not exist there")
        del node.attributes[name]
    for name in old.attributes.keys() & new.attributes.keys():
        default = new.attributes[name].default_value
        if name not in node.attributes and default != old.attributes[name].default_value:
            ir.set_attr(node, name, onnx.helper.get_attribute_value(default))


def _is_default(node: ir.Node, name: str, schema: onnx.defs.OpSchema) -> bool:
    """Whether attribute `name` of `node` has the default value of `schema`."""
    default = schema.attributes[name].default_value
    if not default.name:
        return False
    expected = onnx.helper.get_attribute_value(default)
    if isinstance(expected, bytes):
        expected = expected.decode()
    return bool(ir.get_attr(node, name) == expected)


def _check_inputs(node: ir.Node, old: onnx.defs.OpSchema, opset: int) -> None:
    """Raise ModelError if schema `old` has no such input of `node`, or not of its type."""
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        if index >= old.max_input:
            raise _make_error(node, opset, f"its input {index} does not exist there")
        formal = old.inputs[min(index, len(old.inputs) - 1)]
        if value.dtype is None:
            continue
        element_type = onnx.helper.tensor_dtype_to_string(int(value.dtype))
        onnx_type = f"tensor({element_type.removeprefix('TensorProto.').lower()})"
        if onnx_type not in formal.types:
            raise _make_error(node, opset, f"its input '{formal.name}' cannot be {onnx_type} there")


# ---- operators ----------------------------------------------------------------------------------


def _make_input_to_attribute(name: str) -> Callable[[ir.Model, ir.Node], str]:
    """Return a function (model, node) -> reason that turns the input 1 into the attribute `name`.

    The input must be a constant; the reason says that it is not, and is "" otherwise.
    """

    def rewrite(_model: ir.Model, node: ir.Node) -> str:
        """Turn input 1 of `node` into an attribute; return why it cannot be, or ""."""
        value = node.inputs[1] if len(node.inputs) > 1 else None
        if value is None:
            return ""
        array = ir.const_value(value)
        if array is None:
            return f"'{name}' is an attribute there, but is computed here"
        node.resize_inputs(1)
        ir.set_attr(node, name, [int(number) for number in array.reshape(-1)])
        return ""

    return rewrite


def _lower_reduction(model: ir.Model, node: ir.Node) -> str:
    """Turn the axes of a reduction into an attribute; return why they cannot be, or "".

    Empty axes mean all of them there, and here with `noop_with_empty_axes` none.
    """
    reason = _make_input_to_attribute("axes")(model, node)
    if not ir.get_attr(node, "axes", None):
        node.attributes.pop("axes", None)
    return reason


def _lower_split(model: ir.Model, node: ir.Node) -> str:
    """Turn the sizes of a Split into an attribute, also those that `num_outputs` implies.

    Returns why they cannot be, or "".
    """
    reason = _make_input_to_attribute("split")(model, node)
    if reason or "split" in node.attributes:
        node.attributes.pop("num_outputs", None)
        return reason
    axis, shape = ir.get_attr(node, "axis", 0), ir.get_shape(node.inputs[0])
    size = shape[axis] if shape is not None else None
    count = ir.get_attr(node, "num_outputs", len(node.outputs))
    node.attributes.pop("num_outputs", None)
    if size is None:
        return "the size of the axis is not known"
    largest = -(-size // count)
    ir.set_attr(node, "split", [*[largest] * (count - 1), size - largest * (count - 1)])
    return ""


def _lower_softmax(model: ir.Model, node: ir.Node) -> str:
    """Transpose the axis of a Softmax to the end, where it means the same in all opsets.

    Returns why it cannot be, or "".
    """
    shape = ir.get_shape(node.inputs[0])
    axis = int(ir.get_attr(node, "axis", -1))
    if shape is None:
        return "the rank is not known" if axis != -1 else _set_axis(node, -1)
    rank = len(shape)
    axis %= rank
    if axis == rank - 1:
        return _set_axis(node, axis)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    moved = [shape[index] for index in order]
    build = SubgraphBuilder(model, node)
    before = build("Transpose", [node.inputs[0]], moved, "axis_last", {"perm": order})
    result = build(node.op_type, [before], moved, "on_last_axis", {"axis": rank - 1})
    build("Transpose", [result], list(shape), "axis_back", {"perm": order})
    build.replace_node()
    return ""


def _set_axis(node: ir.Node, axis: int) -> str:
    """Set the attribute `axis` of `node`, whose default changed, and return ""."""
    ir.set_attr(node, "axis", axis)
    return ""


def _lower_resize(model: ir.Model, node: ir.Node) -> str:
    """Give a Resize the inputs `roi` and `scales`, empty where they are absent; return ""."""
    for index, name in ((1, "roi"), (2, "scales")):
        if len(node.inputs) <= index:
            node.resize_inputs(index + 1)
        if node.inputs[index] is None:
            tensor_name = ir.unique_tensor_name(model, f"{node.outputs[0].name}_{name}")
            empty = ir.add_initializer(model, tensor_name, np.zeros(0, np.float32))
            node.replace_input_with(index, empty)
    return ""


def _replace_hard_swish(model: ir.Model, node: ir.Node) -> None:
    """Replace a HardSwish by x HardSigmoid(x), with slope 1/6 and offset 1/2, in place."""
    shape = list(ir.require_shape(node.outputs[0]))
    build = SubgraphBuilder(model, node)
    gate = build("HardSigmoid", [node.inputs[0]], shape, "gate", {"alpha": 1 / 6, "beta": 0.5})
    build("Mul", [node.inputs[0], gate], shape, "gated")
    build.replace_node()


def _replace_layer_norm(model: ir.Model, node: ir.Node) -> None:
    """Replace a LayerNormalization by (x - mean) / sqrt(variance + epsilon) scale + bias, in place.

    Only its first output may be used, as in a graph for inference.
    """
    shape = list(ir.require_shape(node.outputs[0]))
    first_axis = int(ir.get_attr(node, "axis", -1)) % len(shape)
    axes = list(range(first_axis, len(shape)))
    reduced = [*shape[:first_axis], *[1] * len(axes)]
    build = SubgraphBuilder(model, node)
    x = ir.require_input(node)
    mean = build("ReduceMean", [x], reduced, "mean", {"axes": axes})
    centred = build("Sub", [x, mean], shape, "centred")
    squares = build("Mul", [centred, centred], shape, "squares")
    variance = build("ReduceMean", [squares], reduced, "variance", {"axes": axes})
    epsilon = build.constant(np.float32(ir.get_attr(node, "epsilon", 1e-5)).reshape(1), "epsilon")
    positive = build("Add", [variance, epsilon], reduced, "positive")
    deviation = build("Sqrt", [positive], reduced, "deviation")
    result = build("Div", [centred, deviation], shape, "normalized")
    for op_type, operand in zip(("Mul", "Add"), node.inputs[1:], strict=False):
        if operand is not None:
            result = build(op_type, [result, operand], shape, op_type.lower())
    build.replace_node()


#: Operators that older opsets lack -> the function that replaces a node.
_REPLACEMENTS: dict[str, Callable[[ir.Model, ir.Node], None]] = {
    "HardSwish": _replace_hard_swish,
    "LayerNormalization": _replace_layer_norm,
}

#: Operator -> the function that gives a node the older form, and returns why it has none.
_REWRITES: dict[str, Callable[[ir.Model, ir.Node], str]] = {
    **dict.fromkeys(
        (
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceMax",
            "ReduceMean",
            "ReduceMin",
            "ReduceProd",
            "ReduceSum",
            "ReduceSumSquare",
        ),
        _lower_reduction,
    ),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _lower_softmax),
    "Resize": _lower_resize,
    "Split": _lower_split,
    "Squeeze": _make_input_to_attribute("axes"),
    "Unsqueeze": _make_input_to_attribute("axes"),
}
