"""Validate the nodes of an integer graph from a file against the operator definitions.

After `check_nodes`, known attributes have the right type, integers have at most 32 bits, nodes have
the inputs and outputs that their operators need, and constant weights and biases have valid dtypes
and ranks. Values, shapes and scales are checked when a kernel is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx

from ..common.errors import ModelError
from ..ir import ir
from ._integer_op import ATTRIBUTE_RENAMES, Attr, Format
from .integer_ops import find_integer_op, is_quantized_domain

__all__ = ["check_nodes", "find_invalid_attributes", "min_input_count"]

_MAX_INT32 = 2**31 - 1  # range of integers in packer, executor and simulator


def check_nodes(graph: ir.Model) -> None:
    """Raise ModelError for the first invalid node of the main graph.

    The message names node and attribute. A node without any named output is invalid too.
    """
    opset = ir.get_opset(graph)
    for node in graph.graph:
        _check_node(node, opset)
        if not any(value.name for value in node.outputs):
            raise ModelError(f"{node.op_type} {node.name}: it has no output")


def _check_node(node: ir.Node, opset: int) -> None:
    """Raise ModelError for invalid attributes, inputs or constant parameters of `node`.

    Of float nodes only standard operators are checked, against the schema of `opset`. Integer nodes
    in standard operators follow that schema too, unless graphs use the operator beyond the
    standard; then they only need an input.
    """
    form = find_integer_op(node)
    if form is None:
        if not node.domain:
            _check_standard_node(node, opset)
        return
    _check_attributes(form, node)
    _check_window(node)
    if is_quantized_domain(node):
        _check_arity(form, node)
        _check_parameters(form, node)
    elif not node.domain and not form.nonstandard_usage:
        _check_standard_node(node, opset)
    elif not node.inputs or node.inputs[0] is None:
        raise ModelError(f"{node.op_type} {node.name}: it has no input")


def _check_attributes(form: Format, node: ir.Node) -> None:
    """Raise ModelError for the first attribute of `node` with a wrong type for `form`."""
    attributes = {name: ir.get_attr(node, name) for name in node.attributes}
    for name, value, expected in find_invalid_attributes(form, attributes):
        raise ModelError(
            f"{node.op_type} {node.name}: attribute {name} is {value}; it must be {expected}"
        )


#: Values for each axis of the kernel in the attributes of a window.
_VALUES_PER_AXIS = {"strides": 1, "dilations": 1, "pads": 2}


def _check_window(node: ir.Node) -> None:
    """Raise ModelError if attributes of a window do not have the axes of its `kernel_shape`."""
    kernel = ir.get_attr(node, "kernel_shape")
    if not isinstance(kernel, list):
        return
    for name, count in _VALUES_PER_AXIS.items():
        values = ir.get_attr(node, name)
        if isinstance(values, list) and values and len(values) != count * len(kernel):
            raise ModelError(
                f"{node.op_type} {node.name}: attribute {name} has {len(values)} values; with "
                f"kernel_shape {kernel} it must have {count * len(kernel)}"
            )


def find_invalid_attributes(
    form: Format, attributes: Mapping[str, object]
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, expected type) of each attribute whose type is wrong for `form`, as text.

    Attributes that `form` does not know, and values of None, are not checked. Values are cut to 60
    characters.
    """
    specs = {spec.name: spec for spec in (*form.extra_attributes, *form.attributes)}
    for name, value in attributes.items():
        spec = specs.get(ATTRIBUTE_RENAMES.get(name, name))
        if spec is not None and value is not None and not _matches_type(spec, value, form):
            yield name, repr(value)[:60], _TYPE_DESCRIPTIONS[spec.kind]


_TYPE_DESCRIPTIONS = {
    "i": f"an integer up to {_MAX_INT32}",
    "f": "a finite number",
    "s": "a string",
    "ints": f"a list of integers up to {_MAX_INT32}",
    "floats": "a list of finite numbers",
}


def _matches_type(spec: Attr, value: object, form: Format) -> bool:
    """Whether `value` has the type that the attribute `spec` of the operator `form` must have.

    A list of integers may be given as one integer; a number may be a list only if it is `scale_w`
    of an operator with a channel axis, and not empty.
    """
    if spec.kind == "s":
        return isinstance(value, str)
    if spec.kind == "i":
        return _is_int32(value)
    is_element = _is_int32 if spec.kind == "ints" else _is_finite_number
    if is_element(value):
        return True
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    # Only weight scales may be lists, one scale per channel.
    may_be_list = form.channel_axis is not None and spec.name == "scale_w" and bool(value)
    return (spec.kind != "f" or may_be_list) and all(map(is_element, value))


def _is_int32(value: object) -> bool:
    """Whether `value` is an integer of at most 2^31 - 1 in magnitude."""
    return isinstance(value, int) and abs(value) <= _MAX_INT32


def _is_finite_number(value: object) -> bool:
    """Whether `value` is an integer or a finite float."""
    return isinstance(value, int | float) and math.isfinite(value)


def min_input_count(form: Format) -> int:
    """Return the number of inputs that a node of the operator `form` must have, at least 1."""
    return sum(not text.endswith(("?", "*")) for text in _signature_inputs(form)) or 1


def _signature_inputs(form: Format) -> list[str]:
    """Return the inputs of the operator `form` as "name:kind", with "?" or "*" at the end.

    "?" marks an optional input, "*" a repeated one. Without signature: one required input and any
    number of further ones.
    """
    return ["x:any", "rest:any*"] if form.signature is None else form.signature.inputs.split()


def _check_arity(form: Format, node: ir.Node) -> None:
    """Raise ModelError if `node` has a wrong number of inputs or outputs for the operator `form`.

    Required inputs must be present; further ones are allowed up to the signature's number, any
    number if one is repeated. More than one output is an error if the signature has one.
    """
    inputs, min_count = _signature_inputs(form), min_input_count(form)
    label, count = f"{node.op_type} {node.name}", len(node.inputs)
    if count < min_count or any(value is None for value in node.inputs[:min_count]):
        raise ModelError(
            f"{label}: it has {count} inputs and needs {min_count}; the file is damaged"
        )
    has_one_output = form.signature is not None and not form.signature.output.endswith("*")
    if has_one_output and len(node.outputs) > 1:
        raise ModelError(f"{label}: it has {len(node.outputs)} outputs; the operator has one")
    if count > len(inputs) and not any(text.endswith("*") for text in inputs):
        raise ModelError(f"{label}: it has {count} inputs; the operator has at most {len(inputs)}")


#: The bits of a bias are checked together with its node.
_BIAS_DTYPES = ("int8", "int16", "int32", "int64")


def _check_parameters(form: Format, node: ir.Node) -> None:
    """Raise ModelError for a constant weight or bias of `node` of wrong dtype or rank, or empty.

    Computed ones are not checked.
    """
    for index, (kind, axes) in form.constant_parameters(node).items():
        array = ir.const_value(node.inputs[index])
        if array is None:
            continue
        where = f"{node.op_type} {node.name}: its {kind} '{ir.input_name(node, index)}'"
        dtypes = form.weight_dtypes if kind == "weight" else _BIAS_DTYPES
        if array.dtype.name not in dtypes:
            raise ModelError(f"{where} is {array.dtype.name}; it must be {' or '.join(dtypes)}")
        if axes and array.ndim not in axes:
            raise ModelError(
                f"{where} has {array.ndim} axes; it must have {' or '.join(map(str, axes))}"
            )
        if not array.size:
            raise ModelError(
                f"{where} has shape {list(array.shape)} and no elements; the file is damaged"
            )


def _check_standard_node(node: ir.Node, opset: int) -> None:
    """Raise ModelError if the standard `node` has invalid scales or a wrong number of inputs.

    Attributes "scale_..." must be finite numbers. The number of inputs is compared with the schema
    in `opset`, and the first input must be present; not checked if the operator does not exist
    there.
    """
    for name in node.attributes:
        if name.startswith("scale_") and not _is_finite_number(ir.get_attr(node, name)):
            value = repr(ir.get_attr(node, name))[:60]
            raise ModelError(
                f"{node.op_type} {node.name}: attribute {name} is {value}; it must be "
                f"{_TYPE_DESCRIPTIONS['f']}"
            )
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {len(node.inputs)} inputs; the operator takes "
            f"{schema.min_input} to {schema.max_input}"
        )
    if schema.min_input and (not node.inputs or node.inputs[0] is None):
        raise ModelError(f"{node.op_type} {node.name}: its first input is missing")
