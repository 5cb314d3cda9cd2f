"""What the integer operators read and write.

Signatures, and the types and shapes of outputs for ONNX's inference.
A rule is a function of ONNX's inference context that writes the outputs' types. Where the sizes are
those of a standard operator, that operator's own rule is asked (`infer_like_standard`); the element
type follows from a width or from the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import onnx
from onnx import TensorProto, defs, helper, shape_inference

__all__ = [
    "STANDARD_OPSET",
    "InferenceFunction",
    "Signature",
    "infer_argmax",
    "infer_concat",
    "infer_glu",
    "input_type",
    "int32_type",
    "infer_like_standard",
    "infer_linear",
    "data_bits_type",
    "float32_type",
    "infer_recurrent",
    "layer_output_type",
    "keep_input_shape",
    "infer_split",
    "type_of_bits",
]

#: The opset whose standard operators the format takes over.
STANDARD_OPSET = 12


class InferenceContext(Protocol):
    """What is used of ONNX's inference context."""

    def get_attribute(self, name: str) -> onnx.AttributeProto | None: ...
    def get_input_type(self, index: int) -> onnx.TypeProto | None: ...
    def get_input_data(self, index: int) -> onnx.TensorProto | None: ...
    def has_input(self, index: int) -> bool: ...
    def get_num_inputs(self) -> int: ...
    def get_num_outputs(self) -> int: ...
    def set_output_type(self, index: int, output_type: onnx.TypeProto) -> object: ...


_Value = TypeVar("_Value", int, list[int])

InferenceFunction = Callable[[InferenceContext], None]


@dataclass(frozen=True)
class Signature:
    """What an operator reads and writes.

    inputs : "name:kind" of each, "?" after the kind of an optional one, "*" after that of any
    number output : kind, likewise; infer : how types and sizes of the outputs follow from the
    inputs' (None: they do not)

    Kinds: integer (int8 to int32), weight (int8, int16), bias and index (int32, int64), factors
    (uint8), number (any integer), real, result (integer, or real without scale_o), any.
    """

    inputs: str
    output: str = "integer"
    infer: InferenceFunction | None = None


def _get_attribute(ctx: InferenceContext, name: str, default: _Value) -> _Value:
    """Return an attribute's value."""
    attribute = ctx.get_attribute(name)
    return default if attribute is None else helper.get_attribute_value(attribute)


def _get_input_shape(ctx: InferenceContext, index: int) -> onnx.TensorShapeProto | None:
    """Return the shape of an input, None when it is not known."""
    value_type = ctx.get_input_type(index)
    return (
        value_type.tensor_type.shape
        if value_type is not None and value_type.tensor_type.HasField("shape")
        else None
    )


def _get_dim(shape: onnx.TensorShapeProto, axis: int) -> onnx.TensorShapeProto.Dimension:
    """Return the size along an axis; an error for an axis that is not there."""
    if not -len(shape.dim) <= axis < len(shape.dim):
        raise shape_inference.InferenceError(f"there is no axis {axis} of {len(shape.dim)}")
    return shape.dim[axis]


def _set_output_type(
    ctx: InferenceContext, elem: int, shape: onnx.TensorShapeProto | None, index: int = 0
) -> None:
    """Write type and shape of an output."""
    result = onnx.TypeProto()
    result.tensor_type.elem_type = elem
    if shape is not None:
        result.tensor_type.shape.CopyFrom(shape)
    ctx.set_output_type(index, result)


def type_of_bits(ctx: InferenceContext, key: str = "o_bits") -> int:
    """Return the type of `key` bits, 8 unless said."""
    bits = _get_attribute(ctx, key, 8)
    return TensorProto.INT8 if bits <= 8 else TensorProto.INT16 if bits <= 16 else TensorProto.INT32


def layer_output_type(ctx: InferenceContext) -> int:
    """Return the type of a layer's output: real without scale_o."""
    return TensorProto.FLOAT if ctx.get_attribute("scale_o") is None else type_of_bits(ctx)


def data_bits_type(ctx: InferenceContext) -> int:
    """Return the type of `data_bits`."""
    return type_of_bits(ctx, "data_bits")


def float32_type(ctx: InferenceContext) -> int:
    """Return float32."""
    return TensorProto.FLOAT


def int32_type(ctx: InferenceContext) -> int:
    """Return int32, whatever is read."""
    return TensorProto.INT32


def input_type(ctx: InferenceContext) -> int:
    """Return the type of input 0: scales and widths pass through."""
    value_type = ctx.get_input_type(0)
    return TensorProto.UNDEFINED if value_type is None else value_type.tensor_type.elem_type


def keep_input_shape(elem: Callable[[InferenceContext], int]) -> InferenceFunction:
    """Return an inference: the shape of input 0."""
    return lambda ctx: _set_output_type(ctx, elem(ctx), _get_input_shape(ctx, 0))


def infer_like_standard(
    standard: str, element_type: Callable[[InferenceContext], int], **renamed: str
) -> InferenceFunction:
    """Return an inference: the shape that ONNX's operator `standard` gives.

    renamed : attributes of the standard operator -> ours, where the names differ.
    """

    def infer(ctx: InferenceContext) -> None:
        schema = defs.get_schema(standard, STANDARD_OPSET, "")
        types, data, names = {}, {}, []
        for index in range(ctx.get_num_inputs()):
            value_type = ctx.get_input_type(index) if ctx.has_input(index) else None
            names.append(f"i{index}" if value_type is not None else "")
            if value_type is None:
                continue
            formal = schema.inputs[min(index, len(schema.inputs) - 1)]
            if formal.type_str == schema.inputs[0].type_str:
                value_type.tensor_type.elem_type = TensorProto.FLOAT
            types[names[-1]] = value_type
            value = ctx.get_input_data(index)
            if value is not None:
                data[names[-1]] = value
        if not names or not names[0]:
            return
        outputs = [f"o{index}" for index in range(ctx.get_num_outputs())]
        node = helper.make_node(standard, names, outputs)
        for name in schema.attributes:
            found = ctx.get_attribute(renamed.get(name, name))
            if found is not None:
                attribute = node.attribute.add()
                attribute.CopyFrom(found)
                attribute.name = name
        results = shape_inference.infer_node_outputs(
            schema,
            node,
            types,
            data,
            opset_imports=[helper.make_opsetid("", STANDARD_OPSET)],
            ir_version=6,
        )
        for index, name in enumerate(outputs):
            if name in results:
                found = results[name].tensor_type
                _set_output_type(
                    ctx, element_type(ctx), found.shape if found.HasField("shape") else None, index
                )

    return infer


def infer_concat(ctx: InferenceContext) -> None:
    """Concat along `dim`, which older graphs call so, or `axis`."""
    name = "dim" if ctx.get_attribute("dim") is not None else "axis"
    infer_like_standard("Concat", type_of_bits, axis=name)(ctx)


def infer_linear(ctx: InferenceContext) -> None:
    """[..., I] times [O, I]."""
    x, weight = _get_input_shape(ctx, 0), _get_input_shape(ctx, 1)
    shape = None
    if x is not None and weight is not None:
        shape = onnx.TensorShapeProto()
        shape.CopyFrom(x)
        _get_dim(shape, -1).CopyFrom(_get_dim(weight, 0))
    _set_output_type(ctx, layer_output_type(ctx), shape)


def infer_glu(ctx: InferenceContext) -> None:
    """Half of the axis `dim`."""
    x = _get_input_shape(ctx, 0)
    shape = None
    if x is not None:
        shape = onnx.TensorShapeProto()
        shape.CopyFrom(x)
        size = _get_dim(shape, _get_attribute(ctx, "dim", -1))
        if size.HasField("dim_value"):
            size.dim_value //= 2
    _set_output_type(ctx, type_of_bits(ctx), shape)


def infer_split(ctx: InferenceContext) -> None:
    """Parts by `infer_split`, by a list `dims`, or equal ones."""
    count, x = ctx.get_num_outputs(), _get_input_shape(ctx, 0)
    axis = _get_attribute(ctx, "axis", 0)
    none: list[int] = []
    sizes = _get_attribute(ctx, "split", none) or _get_attribute(ctx, "dims", none) or None
    if x is not None and (sizes is None or len(sizes) != count):
        whole = _get_dim(x, axis).dim_value
        sizes = (
            [-(-whole // count)] * (count - 1) + [whole - -(-whole // count) * (count - 1)]
            if whole
            else None
        )
    for index in range(count):
        shape = None
        if x is not None and sizes is not None:
            shape = onnx.TensorShapeProto()
            shape.CopyFrom(x)
            _get_dim(shape, axis).dim_value = sizes[index]
        _set_output_type(ctx, input_type(ctx), shape, index)


def infer_argmax(ctx: InferenceContext) -> None:
    """[2, 1, .., 1] of the input's rank."""
    x = _get_input_shape(ctx, 0)
    shape = None
    if x is not None:
        shape = helper.make_tensor_type_proto(
            TensorProto.INT32, [2, *[1] * (len(x.dim) - 1)]
        ).tensor_type.shape
    _set_output_type(ctx, TensorProto.INT32, shape)


def infer_recurrent(ctx: InferenceContext) -> None:
    """The sequence, the last state of each row, and the cell of an LSTM."""
    x, units = _get_input_shape(ctx, 0), _get_attribute(ctx, "hidden_size", 0)
    sequence = state = None
    if x is not None and len(x.dim) == 3:
        sequence, state = onnx.TensorShapeProto(), onnx.TensorShapeProto()
        sequence.CopyFrom(x)
        state.CopyFrom(x)
        time = 1 if _get_attribute(ctx, "batch_first", 0) or x.dim[0].dim_value == 1 else 0
        state.dim[time].Clear()
        state.dim[time].dim_value = 1
        for shape in (sequence, state):
            shape.dim[2].Clear()
            shape.dim[2].dim_value = units
    for index in range(ctx.get_num_outputs()):
        elem = TensorProto.INT32 if index == 2 else layer_output_type(ctx)
        if index:
            elem = _get_attribute(ctx, "state_type", elem)
        _set_output_type(ctx, elem, state if index else sequence, index)
