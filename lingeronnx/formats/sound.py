"""Whether the nodes of an integer graph are what their operators' formats say, before anything reads them.

A file may hold anything. Behind `check_nodes` an attribute that a format names has its kind, whole numbers have at most
32 bits, a node has the inputs and outputs that its operator needs, and constant weights and biases have types and axes
of theirs. Values, sizes and scales are judged where a node is bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx

from ..errors import ModelError
from ..graph import ir
from . import integer_format, is_quantized_domain
from ._base import RENAMED, Attr, Format

__all__ = ["check_nodes", "needed_inputs", "wrong_attributes"]

_LARGEST = 2**31 - 1  # what a packer, an executor and the simulator count with


def check_nodes(graph: ir.Graph) -> None:
    """Raise ModelError, which names node and attribute, where a node of an integer graph is none of its operator."""
    for node in graph.graph:
        form = integer_format(node)
        if form is not None:
            _check_attributes(form, node)
        if form is not None and is_quantized_domain(node):
            _check_arity(form, node)
            _check_parameters(form, node)
        elif not node.domain and (form is None or not form.exempt):
            _check_standard(node, ir.opset(graph))
        elif form is not None and (not node.inputs or node.inputs[0] is None):
            raise ModelError(f"{node.op_type} {node.name}: it has no input")
        if not any(value.name for value in node.outputs):
            raise ModelError(f"{node.op_type} {node.name}: it has no output")


def _check_attributes(form: Format, node: ir.Node) -> None:
    stated = {name: ir.attr(node, name) for name in node.attributes}
    for name, shown, wanted in wrong_attributes(form, stated):
        raise ModelError(f"{node.op_type} {node.name}: attribute {name} is {shown}; it must be {wanted}")


def wrong_attributes(form: Format, stated: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, what it is, what it must be) of attributes that are none of their operator's kinds."""
    known = {spec.name: spec for spec in (*form.further, *form.attributes)}
    for name, value in stated.items():
        spec = known.get(RENAMED.get(name, name))
        if spec is not None and value is not None and not _is_kind(spec, value, form):
            yield name, repr(value)[:60], _WORDS[spec.kind]


_WORDS = {"i": f"a whole number up to {_LARGEST}", "f": "a finite number", "s": "a text",
          "ints": f"a list of whole numbers up to {_LARGEST}", "floats": "a list of finite numbers"}  # fmt: skip


def _is_kind(spec: Attr, value: object, form: Format) -> bool:
    many = isinstance(value, Sequence) and not isinstance(value, str)
    if spec.kind == "s":
        return isinstance(value, str)
    if spec.kind == "i":
        return _whole(value)
    if spec.kind == "f":
        per_channel = form.channel_axis is not None and spec.name == "scale_w"
        return _real(value) or (per_channel and many and bool(value) and all(map(_real, value)))  # type: ignore[call-overload]
    each = _whole if spec.kind == "ints" else _real
    return each(value) or (many and all(map(each, value)))  # type: ignore[call-overload]


def _whole(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= _LARGEST


def _real(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def needed_inputs(form: Format) -> int:
    """Return how many inputs a node of an operator has at least."""
    return sum(not text.endswith(("?", "*")) for text in _told(form)) or 1


def _told(form: Format) -> list[str]:
    return ["x:any", "rest:any*"] if form.signature is None else form.signature.inputs.split()


def _check_arity(form: Format, node: ir.Node) -> None:
    """The inputs that the operator cannot do without are there, and no more than it knows."""
    told, needed = _told(form), needed_inputs(form)
    open_ended = any(text.endswith("*") for text in told)
    count = len(node.inputs)
    if count < needed or any(value is None for value in node.inputs[:needed]):
        raise ModelError(f"{node.op_type} {node.name}: it has {count} inputs, and needs {needed}; the file is damaged")
    if len(node.outputs) > 1 and form.signature is not None and not form.signature.output.endswith("*"):
        raise ModelError(f"{node.op_type} {node.name}: it has {len(node.outputs)} outputs, and gives one only")
    if count > len(told) and not open_ended:
        raise ModelError(f"{node.op_type} {node.name}: it has {count} inputs, and knows {len(told)} only")


#: Of a bias, widths are judged where its node is: what `check` says of them.
_STORED = {"weight": ("int8", "int16"), "bias": ("int8", "int16", "int32", "int64")}


def _check_parameters(form: Format, node: ir.Node) -> None:
    """Constant weights and biases have a type and a number of axes of their operator's, and at least one value."""
    for index, (kind, axes) in form.parameters(node).items():
        array = ir.const(node.inputs[index])
        if array is None:
            continue
        where = f"{node.op_type} {node.name}: its {kind} '{ir.read_name(node, index)}'"
        if array.dtype.name not in _STORED[kind]:
            raise ModelError(f"{where} is {array.dtype.name}; it must be {' or '.join(_STORED[kind])}")
        if axes and array.ndim not in axes:
            raise ModelError(f"{where} has {array.ndim} axes; it must have {' or '.join(map(str, axes))}")
        if not array.size:
            raise ModelError(f"{where} has the sizes {list(array.shape)}; it holds nothing, the file is damaged")


def _check_standard(node: ir.Node, opset: int) -> None:
    """The number of inputs is one that ONNX's operator takes, where onnx has it at all; scales are numbers."""
    for name in node.attributes:
        if name.startswith("scale_") and not _real(ir.attr(node, name)):
            shown = repr(ir.attr(node, name))[:60]
            raise ModelError(f"{node.op_type} {node.name}: attribute {name} is {shown}; it must be {_WORDS['f']}")
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return
    if not schema.min_input <= len(node.inputs) <= schema.max_input:
        raise ModelError(
            f"{node.op_type} {node.name}: it has {len(node.inputs)} inputs; the operator takes {schema.min_input} to "
            f"{schema.max_input}"
        )
    if schema.min_input and (not node.inputs or node.inputs[0] is None):
        raise ModelError(f"{node.op_type} {node.name}: its first input is missing")
