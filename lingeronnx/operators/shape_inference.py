"""Signatures of the integer operators, and type and shape inference of their outputs.

An inference function takes the inference context of ONNX and sets the types of the outputs. If the
shapes are those of a standard operator, the inference of that operator is used
(`infer_like_standard`); the element type follows from a bit width or from the input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import onnx
from onnx import TensorProto, checker, defs, helper, shape_inference

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
    "infer_gru",
    "infer_lstm",
    "layer_output_type",
    "keep_input_shape",
    "infer_split",
    "type_of_bits",
]

#: Opset of the standard operators in integer graphs.
STANDARD_OPSET = 12


class InferenceContext(Protocol):
    """The methods of ONNX's context for inferring the outputs of one node that are used here."""

    def get_attribute(self, name: str) -> onnx.AttributeProto | None:
        """Return the attribute `name` of the node, or None if it has none."""

    def get_input_type(self, index: int) -> onnx.TypeProto | None:
        """Return the type of input `index` of the node, with its shape if known.

        None if it is unknown.
        """

    def get_input_data(self, index: int) -> onnx.TensorProto | None:
        """Return the value of input `index` of the node if it is constant, else None."""

    def has_input(self, index: int) -> bool:
        """Whether the node has an input `index` that is not omitted."""

    def get_num_inputs(self) -> int:
        """Return the number of inputs of the node, omitted ones included."""

    def get_num_outputs(self) -> int:
        """Return the number of outputs of the node."""

    def set_output_type(self, index: int, output_type: onnx.TypeProto) -> object:
        """Set the inferred type, with its shape if known, of output `index` of the node."""


_Value = TypeVar("_Value", int, list[int])

InferenceFunction = Callable[[InferenceContext], None]


class Signature(NamedTuple):
    """Inputs and outputs of an operator.

    Kinds of tensors: integer (int8 to int32), weight (int8, int16), bias and index (int32, int64),
    factors (uint8), number (any integer), real (float), result (integer, or float without scale_o),
    any.

    Attributes
    ----------
    inputs
        "name:kind" of each input, separated by spaces; "?" after the kind of an optional input, "*"
        after the kind of a repeated one.
    output
        Kind of the output; with "*", any number of outputs.
    infer
        Infers types and shapes of the outputs; None if there is no inference.
    """

    inputs: str
    output: str = "integer"
    infer: InferenceFunction | None = None


def _get_attribute(ctx: InferenceContext, name: str, default: _Value) -> _Value:
    """Return the value of attribute `name` of the node, or `default` if it has none."""
    attribute = ctx.get_attribute(name)
    return default if attribute is None else helper.get_attribute_value(attribute)


def _get_input_shape(ctx: InferenceContext, index: int) -> onnx.TensorShapeProto | None:
    """Return the shape of input `index` of the node, or None if it is unknown."""
    value_type = ctx.get_input_type(index)
    if value_type is None or not value_type.tensor_type.HasField("shape"):
        return None
    return value_type.tensor_type.shape


def _get_dim(shape: onnx.TensorShapeProto, axis: int) -> onnx.TensorShapeProto.Dimension:
    """Return the dimension of `shape` along `axis`, which may be negative.

    It can be changed in place.

    Raises
    ------
    onnx.shape_inference.InferenceError
        If the axis does not exist.
    """
    if not -len(shape.dim) <= axis < len(shape.dim):
        raise shape_inference.InferenceError(
            f"axis {axis} is out of range for a tensor of rank {len(shape.dim)}"
        )
    dim: onnx.TensorShapeProto.Dimension = shape.dim[axis]
    return dim


def _set_output_type(
    ctx: InferenceContext, elem: int, shape: onnx.TensorShapeProto | None, index: int = 0
) -> None:
    """Set element type `elem` and `shape` (None: unknown) of output `index` of the node."""
    result = onnx.TypeProto()
    result.tensor_type.elem_type = elem
    if shape is not None:
        result.tensor_type.shape.CopyFrom(shape)
    ctx.set_output_type(index, result)


def type_of_bits(ctx: InferenceContext, key: str = "o_bits") -> int:
    """Return the ONNX element type with the bits of attribute `key`: INT8, INT16 or INT32.

    The narrowest that is wide enough; 8 bits if the attribute is absent, INT32 for more than 16.
    """
    bits = _get_attribute(ctx, key, 8)
    if bits <= 8:
        return TensorProto.INT8
    return TensorProto.INT16 if bits <= 16 else TensorProto.INT32


def layer_output_type(ctx: InferenceContext) -> int:
    """Return the ONNX element type of a layer's output: float32 without scale_o, else by o_bits."""
    return TensorProto.FLOAT if ctx.get_attribute("scale_o") is None else type_of_bits(ctx)


def data_bits_type(ctx: InferenceContext) -> int:
    """Return the ONNX integer type with the bits of attribute `data_bits` (8 if absent)."""
    return type_of_bits(ctx, "data_bits")


def float32_type(ctx: InferenceContext) -> int:
    """Return the ONNX type float32 for the output of any node, whatever its inputs are."""
    return TensorProto.FLOAT


def int32_type(ctx: InferenceContext) -> int:
    """Return the ONNX type int32 for the output of any node, whatever its inputs are."""
    return TensorProto.INT32


def input_type(ctx: InferenceContext) -> int:
    """Return the ONNX element type of input 0 of the node; UNDEFINED if it is unknown."""
    value_type = ctx.get_input_type(0)
    return TensorProto.UNDEFINED if value_type is None else value_type.tensor_type.elem_type


def keep_input_shape(elem: Callable[[InferenceContext], int]) -> InferenceFunction:
    """Return an inference function that gives output 0 the shape of input 0.

    Its element type is what `elem` returns for the node. An unknown shape stays unknown.
    """
    return lambda ctx: _set_output_type(ctx, elem(ctx), _get_input_shape(ctx, 0))


def infer_like_standard(
    standard: str, element_type: Callable[[InferenceContext], int], **renamed: str
) -> InferenceFunction:
    """Return an inference function: the shapes that a standard operator infers in opset 12.

    It sets nothing if the type of input 0 is unknown.

    Parameters
    ----------
    standard
        Name of the standard operator.
    element_type
        Returns the element type of the outputs.
    **renamed
        Attribute of the standard operator -> attribute of the node, if their names differ.
    """

    def infer(ctx: InferenceContext) -> None:
        """Set the outputs of the node of `ctx` to the shapes that the standard operator would give.

        Their element type is that of the given function; the node's attributes count by their
        standard names. Nothing is set if input 0 is absent.
        """
        schema = defs.get_schema(standard, STANDARD_OPSET, "")
        names, types, data = _collect_inputs(ctx, schema)
        if not names or not names[0]:
            return
        outputs = [f"o{index}" for index in range(ctx.get_num_outputs())]
        node = helper.make_node(standard, names, outputs)
        for name in schema.attributes:
            node_attribute = ctx.get_attribute(renamed.get(name, name))
            if node_attribute is not None:
                attribute = node.attribute.add()
                attribute.CopyFrom(node_attribute)
                attribute.name = name
        try:
            results = shape_inference.infer_node_outputs(
                schema,
                node,
                types,
                data,
                opset_imports=[helper.make_opsetid("", STANDARD_OPSET)],
                ir_version=6,
            )
        except checker.ValidationError as error:  # such as a missing attribute
            raise shape_inference.InferenceError(str(error)) from error
        for index, name in enumerate(outputs):
            if name in results:
                inferred = results[name].tensor_type
                shape = inferred.shape if inferred.HasField("shape") else None
                _set_output_type(ctx, element_type(ctx), shape, index)

    return infer


def _collect_inputs(
    ctx: InferenceContext, schema: defs.OpSchema
) -> tuple[list[str], dict[str, onnx.TypeProto], dict[str, onnx.TensorProto]]:
    """Collect the inputs of a node for the inference of a standard operator.

    Returns
    -------
    names
        Name of each input, empty if its type is unknown.
    types
        Types by name; integer tensors count as float, so that the schema accepts them.
    data
        Constant inputs by name.
    """
    names, types, data = [], {}, {}
    for index in range(ctx.get_num_inputs()):
        value_type = ctx.get_input_type(index) if ctx.has_input(index) else None
        if value_type is None:
            names.append("")
            continue
        name = f"i{index}"
        names.append(name)
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if formal.type_str == schema.inputs[0].type_str:
            value_type.tensor_type.elem_type = TensorProto.FLOAT
        types[name] = value_type
        value = ctx.get_input_data(index)
        if value is not None:
            data[name] = value
    return names, types, data


def infer_concat(ctx: InferenceContext) -> None:
    """Infer the output of a concatenation along `dim` (older graphs) if present, else along `axis`.

    The element type follows from o_bits.
    """
    name = "dim" if ctx.get_attribute("dim") is not None else "axis"
    infer_like_standard("Concat", type_of_bits, axis=name)(ctx)


def infer_linear(ctx: InferenceContext) -> None:
    """Infer the output of a fully connected layer: x [..., I] and weight [O, I] -> [..., O].

    The shape is unknown if one of theirs is. The element type is float without scale_o, else by
    o_bits.
    """
    x, weight = _get_input_shape(ctx, 0), _get_input_shape(ctx, 1)
    shape = None
    if x is not None and weight is not None:
        shape = onnx.TensorShapeProto()
        shape.CopyFrom(x)
        _get_dim(shape, -1).CopyFrom(_get_dim(weight, 0))
    _set_output_type(ctx, layer_output_type(ctx), shape)


def infer_glu(ctx: InferenceContext) -> None:
    """Infer the output of a GLU, which halves the size of axis `dim` (-1 by default), rounded down.

    The element type follows from o_bits.
    """
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
    """Infer the outputs of a Split with sizes from `split` or `dims`, by default equal ones.

    The default is taken too if the number of sizes is not that of outputs; equal sizes are rounded
    up, and the last output gets the remainder. Element type: that of input 0.
    """
    count, x = ctx.get_num_outputs(), _get_input_shape(ctx, 0)
    axis = _get_attribute(ctx, "axis", 0)
    empty: list[int] = []
    sizes = _get_attribute(ctx, "split", empty) or _get_attribute(ctx, "dims", empty) or None
    if x is not None and (sizes is None or len(sizes) != count):
        total = _get_dim(x, axis).dim_value
        chunk_size = -(-total // count)
        last_size = total - chunk_size * (count - 1)
        sizes = [chunk_size] * (count - 1) + [last_size] if total else None
    for index in range(count):
        shape = None
        if x is not None and sizes is not None:
            shape = onnx.TensorShapeProto()
            shape.CopyFrom(x)
            _get_dim(shape, axis).dim_value = sizes[index]
        _set_output_type(ctx, input_type(ctx), shape, index)


def infer_argmax(ctx: InferenceContext) -> None:
    """Infer the output of the vendor's ArgMax: int32 [2, 1, ..., 1] of the rank of the input."""
    x = _get_input_shape(ctx, 0)
    shape = None
    if x is not None:
        shape = helper.make_tensor_type_proto(
            TensorProto.INT32, [2, *[1] * (len(x.dim) - 1)]
        ).tensor_type.shape
    _set_output_type(ctx, TensorProto.INT32, shape)


def infer_lstm(ctx: InferenceContext) -> None:
    """Infer the outputs of an LSTM: the sequence, the last state of each sample, and its cell.

    Without batch_first, the chips read x [1, T, I] as batch first, but the arithmetic of the
    training library reads it as one step of T samples. The state is [1, ?, H] then.
    """
    _infer_recurrent(ctx, may_be_batch_first=True)


def infer_gru(ctx: InferenceContext) -> None:
    """Infer the outputs of a GRU: the sequence, and the last state of each sample."""
    _infer_recurrent(ctx, may_be_batch_first=False)


def _infer_recurrent(ctx: InferenceContext, may_be_batch_first: bool) -> None:
    """Infer the outputs of a recurrent layer: the sequence, the last state, and the cell.

    With `may_be_batch_first`, x [1, T, I] may be batch first even without the attribute, so that
    the batch of the state is unknown. Shapes are unknown unless that of x is known and of rank 3.
    """
    x, hidden_size = _get_input_shape(ctx, 0), _get_attribute(ctx, "hidden_size", 0)
    sequence = state = None
    if x is not None and len(x.dim) == 3:
        time_axis = 1 if _get_attribute(ctx, "batch_first", 0) else 0
        sequence = _replace_dim(x, axis=2, size=hidden_size)
        state = _replace_dim(sequence, axis=time_axis, size=1)
        if time_axis == 0 and may_be_batch_first and x.dim[0].dim_value == 1 != x.dim[1].dim_value:
            state.dim[1].Clear()
    for index in range(ctx.get_num_outputs()):
        element_type = TensorProto.INT32 if index == 2 else layer_output_type(ctx)
        if index:
            element_type = _get_attribute(ctx, "state_type", element_type)
        _set_output_type(ctx, element_type, state if index else sequence, index)


def _replace_dim(shape: onnx.TensorShapeProto, axis: int, size: int) -> onnx.TensorShapeProto:
    """Return a copy of `shape` with the fixed size `size` at `axis`."""
    replaced = onnx.TensorShapeProto()
    replaced.CopyFrom(shape)
    replaced.dim[axis].Clear()
    replaced.dim[axis].dim_value = size
    return replaced
