"""Whether the nodes of an integer graph are what their operators' formats say, before anything reads them.

A file may hold anything. Behind `check_nodes` an attribute that a format names has its kind, whole
numbers have at most 32 bits, a node has the inputs and outputs that its operator needs, and
constant weights and biases have types and axes of theirs. Values, sizes and scales are judged where
a node is bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx

from ..errors import ModelError
from ..graph import ir
from . import find_integer_op, is_quantized_domain
from ._base import ATTRIBUTE_RENAMES, Attr, Format

__all__ = ["check_nodes", "find_invalid_attributes", "min_input_count"]

_MAX_INT32 = 2**31 - 1  # what a packer, an executor and the simulator count with


def check_nodes(graph: ir.Model) -> None:
    """Raise ModelError, which names node and attribute, where a node of an integer graph is none of its operator."""
    for node in graph.graph:
        form = find_integer_op(node)
        if form is not None:
            _check_attributes(form, node)
        if form is not None and is_quantized_domain(node):
            _check_arity(form, node)
            _check_parameters(form, node)
        elif not node.domain and (form is None or not form.nonstandard_usage):
            _check_standard_node(node, ir.get_opset(graph))
        elif form is not None and (not node.inputs or node.inputs[0] is None):
            raise ModelError(f"{node.op_type} {node.name}: it has no input")
        if not any(value.name for value in node.outputs):
            raise ModelError(f"{node.op_type} {node.name}: it has no output")


def _check_attributes(form: Format, node: ir.Node) -> None:
    stated = {name: ir.get_attr(node, name) for name in node.attributes}
    for name, shown, wanted in find_invalid_attributes(form, stated):
        raise ModelError(
            f"{node.op_type} {node.name}: attribute {name} is {shown}; it must be {wanted}"
        )


def find_invalid_attributes(
    form: Format, stated: Mapping[str, object]
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, what it is, what it must be) of attributes that are none of their operator's kinds."""
    known = {spec.name: spec for spec in (*form.extra_attributes, *form.attributes)}
    for name, value in stated.items():
        spec = known.get(ATTRIBUTE_RENAMES.get(name, name))
        if spec is not None and value is not None and not _matches_type(spec, value, form):
            yield name, repr(value)[:60], _TYPE_DESCRIPTIONS[spec.kind]


_TYPE_DESCRIPTIONS = {
    "i": f"a whole number up to {_MAX_INT32}",
    "f": "a finite number",
    "s": "a text",
    "ints": f"a list of whole numbers up to {_MAX_INT32}",
    "floats": "a list of finite numbers",
}


def _matches_type(spec: Attr, value: object, form: Format) -> bool:
    many = isinstance(value, Sequence) and not isinstance(value, str)
    if spec.kind == "s":
        return isinstance(value, str)
    if spec.kind == "i":
        return _is_int32(value)
    if spec.kind == "f":
        per_channel = form.channel_axis is not None and spec.name == "scale_w"
        return _is_finite_number(value) or (
            per_channel and many and bool(value) and all(map(_is_finite_number, value))  # type: ignore[call-overload]
        )
    each = _is_int32 if spec.kind == "ints" else _is_finite_number
    return each(value) or (many and all(map(each, value)))  # type: ignore[call-overload]


def _is_int32(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= _MAX_INT32


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def min_input_count(form: Format) -> int:
    """Return how many inputs a node of an operator has at least."""
    return sum(not text.endswith(("?", "*")) for text in _signature_inputs(form)) or 1


def _signature_inputs(form: Format) -> list[str]:
    return ["x:any", "rest:any*"] if form.signature is None else form.signature.inputs.split()


def _check_arity(form: Format, node: ir.Node) -> None:
    """The inputs that the operator cannot do without are there, and no more than it knows."""
    told, needed = _signature_inputs(form), min_input_count(form)
    open_ended = any(text.endswith("*") for text in told)
    count = len(node.inputs)
    if count < needed or any(value is None for value in node.inputs[:needed]):
        raise ModelError(
            f"{node.op_type} {node.name}: it has {count} inputs, and needs {needed}; the file is "
            "damaged"
        )
    if (
        len(node.outputs) > 1
        and form.signature is not None
        and not form.signature.output.endswith("*")
    ):
        raise ModelError(
            f"{node.op_type} {node.name}: it has {len(node.outputs)} outputs, and gives one only"
        )
    if count > len(told) and not open_ended:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {count} inputs, and knows {len(told)} only"
        )


#: Of a bias, widths are judged where its node is: what `check` says of them.
_ALLOWED_DTYPES = {"weight": ("int8", "int16"), "bias": ("int8", "int16", "int32", "int64")}


def _check_parameters(form: Format, node: ir.Node) -> None:
    """Constant weights and biases have a type and a number of axes of their operator's, and at least one value."""
    for index, (kind, axes) in form.constant_parameters(node).items():
        array = ir.const_value(node.inputs[index])
        if array is None:
            continue
        where = f"{node.op_type} {node.name}: its {kind} '{ir.input_name(node, index)}'"
        if array.dtype.name not in _ALLOWED_DTYPES[kind]:
            raise ModelError(
                f"{where} is {array.dtype.name}; it must be {' or '.join(_ALLOWED_DTYPES[kind])}"
            )
        if axes and array.ndim not in axes:
            raise ModelError(
                f"{where} has {array.ndim} axes; it must have {' or '.join(map(str, axes))}"
            )
        if not array.size:
            raise ModelError(
                f"{where} has the sizes {list(array.shape)}; it holds nothing, the file is damaged"
            )


def _check_standard_node(node: ir.Node, opset: int) -> None:
    """The number of inputs is one that ONNX's operator takes, where onnx has it at all.

    Scales are numbers.
    """
    for name in node.attributes:
        if name.startswith("scale_") and not _is_finite_number(ir.get_attr(node, name)):
            shown = repr(ir.get_attr(node, name))[:60]
            raise ModelError(
                f"{node.op_type} {node.name}: attribute {name} is {shown}; it must be "
                f"{_TYPE_DESCRIPTIONS['f']}"
            )
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {len(node.inputs)} inputs; the operator takes "
            f"{schema.min_input} to "
            f"{schema.max_input}"
        )
    if schema.min_input and (not node.inputs or node.inputs[0] is None):
        raise ModelError(f"{node.op_type} {node.name}: its first input is missing")
