"""Semantics of single nodes: the kinds of tensors that a node consumes and produces.

Attributes are interpreted by the integer operators (`integer_ops`), under the attribute names of
all generations. Operators without a format count as float outside the quantized domains; inside
them their attributes decide. This module knows no graph.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from onnx import TensorProto, defs

from ...common.errors import LingerOnnxError
from ...ir import float_ops
from ...ir.attributes import AttributeValue
from ...operators.integer_ops import (
    ATTRIBUTE_RENAMES,
    BATCH_NORM2D,
    DEQUANT,
    GATHER,
    INTEGER_OPS,
    QUANT,
    TRAINING_ONLY_OPS,
    Format,
    find_integer_op_by_name,
)
from .graph_view import NodeView, TensorView, is_scale, same_scale

__all__ = [
    "FLOAT",
    "INTEGERS",
    "MISSING",
    "OTHER",
    "REAL",
    "REALS",
    "IntegerReader",
    "TensorKind",
    "TensorDemand",
    "current_attributes",
    "data_inputs",
    "get_kinds",
    "integer_type",
    "is_dequant",
    "always_passes_integers",
    "passes_integers_on_demand",
    "is_quant",
    "is_quantized",
    "merge_kinds",
    "produces_indices",
    "integer_operator",
    "make_op_view",
    "integer_inputs",
    "real_inputs",
    "has_output_scale",
    "read_scales",
    "standard_kind",
    "takes_element",
    "takes_indices",
    "takes_reals",
]

_DOMAINS = ("thinker", "linger")
INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)
REALS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)

#: Operators that accept integers as well as real numbers and produce indices or shapes.
INDEX_OPS = float_ops.INDEX_OPS | float_ops.SHAPE_QUERY_OPS
#: Operators that can pass integers on, and do so if an integer operator or a Dequant needs their
#: result; otherwise they run in float.
ON_DEMAND_OPS = (
    float_ops.DATA_MOVEMENT_OPS - float_ops.PERMUTATION_OPS - float_ops.SELECTION_OPS
    | float_ops.ELEMENT_SELECT_OPS
    | {"Gather", "Resize"}
)
#: Operators that always pass integers on, together with their scale.
PASS_THROUGH_OPS = {
    form.name for form in INTEGER_OPS if not form.domain
} - ON_DEMAND_OPS - INDEX_OPS | float_ops.PERMUTATION_OPS

#: Attribute names before the first generation -> current names. Batch normalization had separate
#: scales for its product and for its sum.
_LEGACY_ATTRIBUTE_NAMES = {
    **ATTRIBUTE_RENAMES,
    "scale_mul_x": "scale_x",
    "scale_mul_w": "scale_w",
    "scale_add_o": "scale_o",
}

_FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}
#: Opset of the schemas. Only the types of operands matter, and these have hardly changed since.
_OPSET = 13
_ELEMENTS = {
    "tensor(float)": TensorProto.FLOAT,
    "tensor(int64)": TensorProto.INT64,
    "tensor(bool)": TensorProto.BOOL,
    "tensor(int32)": TensorProto.INT32,
}


@dataclass(frozen=True)
class TensorKind:
    """The kind of values that a tensor contains: quantized integers, real numbers or indices.

    Attributes
    ----------
    category
        "integer" (quantized), "real", "other" (indices, masks) or "missing" (undefined).
    scale
        Scale of quantized integers, or None if it is unknown.
    bits
        Bit width of quantized integers.
    element_type
        ONNX element type if it is certain, else 0.
    """

    category: str
    scale: float | None = None
    bits: int = 8
    element_type: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether the tensor contains quantized integers, not real numbers, indices or nothing."""
        return self.category == "integer"

    @property
    def label(self) -> str:
        """The kind in reports: "int8", "int16", "int32", or a word such as "real numbers"."""
        if self.category == "integer":
            return f"int{8 * _storage_bytes(self.bits)}"
        return {"real": "real numbers", "other": "indices", "missing": "undefined"}[self.category]


REAL, OTHER, MISSING = TensorKind("real"), TensorKind("other"), TensorKind("missing")
FLOAT = TensorKind("real", element_type=TensorProto.FLOAT)


def get_kinds(
    tensors: Sequence[TensorView | None],
    kind_of: Mapping[TensorView, TensorKind],
    default: TensorKind = MISSING,
) -> list[TensorKind]:
    """Return the kinds of `tensors`.

    `default` for None and for those that `kind_of` does not have.
    """
    return [default if tensor is None else kind_of.get(tensor, default) for tensor in tensors]


def _storage_bytes(bits: int) -> int:
    """Return the size in bytes of the integer type that stores `bits`: 1, 2 or 4."""
    if bits <= 8:
        return 1
    return 2 if bits <= 16 else 4


def integer_type(bits: int) -> int:
    """Return the ONNX element type that stores integers of `bits`: INT8, INT16 or INT32."""
    types = {1: TensorProto.INT8, 2: TensorProto.INT16, 4: TensorProto.INT32}
    return int(types[_storage_bytes(bits)])


class IntegerReader(NamedTuple):
    """An integer operator that reads a tensor, with the scale and bits it expects, if known."""

    scale: float | None
    bits: int | None
    node: NodeView | None


@dataclass
class TensorDemand:
    """The consumers of a tensor, including those behind operators that pass their input on.

    Attributes
    ----------
    integer_readers
        The integer operators that consume the tensor.
    real
        Whether a float operator consumes it.
    dequant_scales
        Scales of the Dequants that consume it.
    """

    integer_readers: list[IntegerReader] = field(default_factory=list)
    real: bool = False
    dequant_scales: list[float | None] = field(default_factory=list)

    def scales(self) -> list[float]:
        """Return the distinct scales that the integer readers of a tensor expect.

        Without integer readers, those of its Dequants. In order of appearance; unknown and invalid
        scales are omitted.
        """
        candidates = [reader.scale for reader in self.integer_readers] or self.dequant_scales
        scales: list[float] = []
        for candidate in candidates:
            if is_scale(candidate) and not any(same_scale(candidate, scale) for scale in scales):
                scales.append(float(candidate))
        return scales


def merge_kinds(kinds: Sequence[TensorKind]) -> TensorKind:
    """Return the kind of a tensor assembled from tensors of `kinds`, as by Concat.

    It is integer only if all are integers of one scale (an unknown one fits), else real if there
    are integers or real numbers among them. "missing" for an empty list.
    """
    if not kinds:
        return MISSING
    first = kinds[0]
    if all(kind.is_integer for kind in kinds):
        return first if _have_same_scale(kinds) else FLOAT
    categories = {kind.category for kind in kinds}
    if len(categories) > 1 and "integer" in categories:
        return FLOAT
    if len(categories) > 1 and "real" in categories:
        return REAL
    return next((kind for kind in kinds if kind.category != "missing"), first)


def _have_same_scale(kinds: Sequence[TensorKind]) -> bool:
    """Whether each known scale of `kinds` is close to the first one's.

    True if the first one is unknown.
    """
    first_scale = kinds[0].scale
    if first_scale is None:
        return True
    scales = [kind.scale for kind in kinds if kind.scale is not None]
    return all(math.isclose(scale, first_scale) for scale in scales)


# ---- nodes --------------------------------------------------------------------------------------


def integer_operator(node: NodeView) -> Format | None:
    """Return the format of an integer operator, found by its name in any generation.

    None for a float or unknown operator, and for those of the training side only. A standard
    operator counts as integer only if it is a Gather with a scale (from a quantized table).
    """
    form = find_integer_op_by_name(node.proto.op_type)
    if form is None or form in TRAINING_ONLY_OPS:
        return None
    if node.proto.domain not in (*_DOMAINS, "", "ai.onnx"):
        return None
    if form.domain and (node.proto.domain in _DOMAINS or node.is_standard):
        return form
    if form is GATHER and _has_scale(node):
        return form
    return None


def _has_scale(node: NodeView) -> bool:
    """Whether a Gather has a valid attribute `scale_o`, `scale_x` or `scale_w`."""
    scales = [node.attributes.get(name) for name in ("scale_o", "scale_x", "scale_w")]
    return any(is_scale(scale) for scale in scales)


def has_output_scale(op_format: Format) -> bool:
    """Whether an integer operator rescales its output to a scale of its own, in `scale_o`.

    If that attribute is missing, the output scale of such an operator is unknown; it is not the
    scale of the input.
    """
    if op_format is BATCH_NORM2D:
        return True
    return any(spec.name == "scale_o" and spec.is_required for spec in op_format.attributes)


def is_dequant(node: NodeView | None) -> bool:
    """Whether `node` is a Dequant of a quantized or the standard domain; False for None."""
    if node is None or node.proto.op_type != DEQUANT.name:
        return False
    return node.proto.domain in _DOMAINS or node.is_standard


def is_quant(node: NodeView) -> bool:
    """Whether `node` is a Quant of a quantized or the standard domain."""
    return node.proto.op_type == QUANT.name and (node.proto.domain in _DOMAINS or node.is_standard)


def is_quantized(node: NodeView) -> bool:
    """Whether `node` is a Dequant, a known integer operator, or any other of a quantized domain.

    Operators of such a domain that only pass integers on or produce indices do not count.
    """
    if is_dequant(node) or integer_operator(node) is not None:
        return True
    return node.proto.domain in _DOMAINS and not _is_integer_transparent(node)


def _is_integer_transparent(node: NodeView) -> bool:
    """Whether `node` is an operator that passes integers on, always or on demand, or gives indices.

    It must be of the standard or a quantized domain.
    """
    names = PASS_THROUGH_OPS | ON_DEMAND_OPS | INDEX_OPS
    return node.proto.op_type in names and (node.is_standard or node.proto.domain in _DOMAINS)


def produces_indices(node: NodeView) -> bool:
    """Whether `node` produces indices or shapes, and accepts integers as well as real numbers.

    It must be of the standard or a quantized domain.
    """
    return _is_integer_transparent(node) and node.proto.op_type in INDEX_OPS


def always_passes_integers(node: NodeView) -> bool:
    """Whether `node` returns integers of the same scale whenever its input is integer.

    These are the operators in `PASS_THROUGH_OPS`: Reshape, Transpose, Slice and the like, MaxPool,
    Relu, and a Clip if its bounds are absent or integer inputs.
    """
    if not _is_integer_transparent(node) or node.proto.op_type not in PASS_THROUGH_OPS:
        return False
    if node.proto.op_type != "Clip":
        return True
    bound_types = [tensor.constant_type for tensor in node.inputs[1:] if tensor is not None]
    if not all(bound_type in INTEGERS for bound_type in bound_types):
        return False
    return "min" not in node.attributes and "max" not in node.attributes


def passes_integers_on_demand(node: NodeView) -> bool:
    """Whether `node` passes integers on only if a consumer needs them, and otherwise runs in float.

    These are operators of the standard or a quantized domain that combine, repeat or select
    elements, such as Concat, Where, Gather and Resize; a Gather of a quantized table does not
    count.
    """
    return (
        _is_integer_transparent(node)
        and node.proto.op_type in ON_DEMAND_OPS
        and integer_operator(node) is None
    )


def data_inputs(node: NodeView) -> list[int]:
    """Return the indices of the inputs whose values `node` passes on if it passes integers on.

    All inputs of Concat, 1 and 2 of Where, otherwise 0; only those that exist.
    """
    input_count = len(node.inputs)
    if node.proto.op_type == "Concat":
        return list(range(input_count))
    if node.proto.op_type == "Where":
        return [1, 2][: max(input_count - 1, 0)]
    return [0][:input_count]


def current_attributes(node: NodeView) -> dict[str, Any]:
    """Return the attributes of the integer operator `node` under their current names.

    Missing optional attributes get their defaults, missing required ones None.
    """
    form = integer_operator(node)
    attributes = {
        _LEGACY_ATTRIBUTE_NAMES.get(name, name): value for name, value in node.attributes.items()
    }
    if form is GATHER and "scale_w" in attributes:  # the output has the scale of the table
        attributes.setdefault("scale_x", attributes["scale_w"])
    for spec in form.attributes if form is not None else ():
        attributes.setdefault(spec.name, None if spec.is_required else spec.default)
    return attributes


def integer_inputs(node: NodeView) -> list[int]:
    """Return the indices of the inputs of an integer operator that are computed activations.

    Constant and absent inputs are omitted.
    """
    indices = []
    for index in _activation_inputs(node):
        tensor = node.inputs[index] if index < len(node.inputs) else None
        if tensor is not None and tensor.constant_type is None:
            indices.append(index)
    return indices


def _activation_inputs(node: NodeView) -> Sequence[int]:
    """Return the input indices at which the integer operator of `node` takes activations.

    Only input 0 for LSTM and GRU, none for a Gather. For an operator without a known format these
    are all inputs if it has scales, else the first.
    """
    form = integer_operator(node)
    if form is None:
        has_scales = any(name.startswith("scale_") for name in node.attributes)
        return range(len(node.inputs)) if has_scales else [0]
    if form.states:
        return [0]  # lengths are indices, states may be either
    return [] if form is GATHER else form.kernel_inputs(make_op_view(node))


def real_inputs(node: NodeView) -> list[int]:
    """Return the indices of the inputs of an integer operator that are real numbers nevertheless.

    These are the input of a Quant, and the states of recurrent layers with an attribute `scale_i`
    (first generation): from input 2 to the one before the first int8 constant. Else none.
    """
    if is_quant(node):
        return [0][: len(node.inputs)]
    form = integer_operator(node)
    if form is None or not form.states or "scale_i" not in node.attributes:
        return []
    for index, tensor in enumerate(node.inputs):
        is_weight = tensor is not None and tensor.constant_type == TensorProto.INT8
        if index and is_weight:
            return list(range(2, index))
    return []


def make_op_view(node: NodeView) -> Any:  # noqa: ANN401 - duck-typed ir.Node
    """Return a minimal substitute of an `ir.Node` for the functions of `integer_ops`.

    It has the operator, the name, and the names of inputs and outputs; constant inputs have a
    `const_value`.
    """

    def make_value_view(tensor: TensorView | None) -> SimpleNamespace | None:
        """Return a stand-in for an IR value with the tensor's name, or None for None.

        ``const_value.numpy()`` of a constant gives its element type.
        """
        if tensor is None:
            return None
        constant = None
        if tensor.constant_type is not None:
            constant = SimpleNamespace(numpy=lambda: tensor.constant_type)
        return SimpleNamespace(
            name=tensor.name,
            const_value=constant,
            is_graph_input=lambda: False,
            producer=lambda: None,
        )

    return SimpleNamespace(
        op_type=node.proto.op_type,
        name=node.proto.name,
        attributes={},
        inputs=[make_value_view(tensor) for tensor in node.inputs],
        outputs=[make_value_view(tensor) for tensor in node.outputs],
    )


def read_scales(node: NodeView) -> dict[int, float]:
    """Return input index -> scale, as far as the attributes of the integer operator `node` tell.

    They come from scale_x, scale_y and scale_x_<index>, and from the operator's format if it can
    read the attributes. Inputs without a valid scale are left out.
    """
    form, attrs = integer_operator(node), current_attributes(node)
    candidates: dict[int, AttributeValue] = {0: attrs.get("scale_x"), 1: attrs.get("scale_y")}
    for name, value in attrs.items():
        input_number = name.removeprefix("scale_x_")
        if input_number != name and input_number.isdigit():
            candidates[int(input_number)] = value
    if form is not None and _are_scales_valid(attrs):
        # The format cannot tell its input scales if a required attribute is missing.
        with contextlib.suppress(LingerOnnxError, KeyError, TypeError, ValueError):
            for index, qparams in form.input_qparams(attrs).items():
                candidates[index] = qparams.scale
    return {index: float(scale) for index, scale in candidates.items() if is_scale(scale)}


def _are_scales_valid(attrs: Mapping[str, AttributeValue]) -> bool:
    """Whether every attribute in `attrs` that is named scale_* and not None is a valid scale."""
    scales = [value for name, value in attrs.items() if name.startswith("scale_")]
    return all(is_scale(scale) for scale in scales if scale is not None)


def takes_reals(node: NodeView, index: int, input_kinds: Sequence[TensorKind]) -> bool:
    """Whether `node`, a float node or Quant, certainly needs real numbers at input `index`.

    By its ONNX schema: the input accepts float but no int8, or another input of the same type
    variable is real. `input_kinds` has the kinds of all inputs as far as known.
    """
    if node.proto.op_type == QUANT.name:
        return True
    formal = _formal_parameter(node, index)
    if formal is None or not (_FLOATS & set(formal.types)):
        return False
    if "tensor(int8)" not in formal.types:
        return True
    return any(kind.category == "real" for kind in _same_type_kinds(node, index, input_kinds))


def takes_element(
    node: NodeView, index: int, kind: TensorKind, input_kinds: Sequence[TensorKind]
) -> bool:
    """Whether `node` accepts indices of `kind` at input `index`, by its ONNX schema.

    The schema must list the element type, and the other inputs of the same type variable
    (`input_kinds` has the kinds of all inputs) must not be integers or real numbers. False without
    a schema.
    """
    formal = _formal_parameter(node, index)
    if formal is None or kind.element_type not in TensorProto.DataType.values():
        return False
    if f"tensor({TensorProto.DataType.Name(kind.element_type).lower()})" not in formal.types:
        return False
    same_type_kinds = _same_type_kinds(node, index, input_kinds)
    return not any(other.category == "real" or other.is_integer for other in same_type_kinds)


def takes_indices(node: NodeView, index: int) -> bool:
    """Whether input `index` of `node` is only for indices: its schema allows no float type.

    False if the schema is unknown.
    """
    formal = _formal_parameter(node, index)
    return formal is not None and not (_FLOATS & set(formal.types))


def _same_type_kinds(
    node: NodeView, index: int, input_kinds: Sequence[TensorKind]
) -> list[TensorKind]:
    """Return the kinds of the other inputs of `node` that must have the same type as input `index`.

    They have the same type variable in the ONNX schema. `input_kinds` has the kind of each input,
    in order.
    """
    type_variable = _type_variable(node, index)
    return [
        kind
        for other_index, kind in enumerate(input_kinds)
        if other_index != index and _type_variable(node, other_index) == type_variable
    ]


def _schema(node: NodeView) -> defs.OpSchema | None:
    """Return the newest ONNX schema, up to opset `_OPSET`, of a standard operator.

    None for operators of other domains, and for unknown ones.
    """
    if not node.is_standard:
        return None
    try:
        return defs.get_schema(node.proto.op_type, max_inclusive_version=_OPSET, domain="")
    except defs.SchemaError:
        return None


def _formal_parameter(node: NodeView, index: int) -> defs.OpSchema.FormalParameter | None:
    """Return the schema entry of input `index`; the last one also for further variadic inputs.

    None if the schema has no such input or there is no schema.
    """
    schema = _schema(node)
    if schema is None or not schema.inputs:
        return None
    if index < len(schema.inputs):
        return schema.inputs[index]
    last = schema.inputs[-1]
    return last if last.option == defs.OpSchema.FormalParameterOption.Variadic else None


def _type_variable(node: NodeView, index: int) -> str:
    """Return the type or type variable of input `index` of `node` in its schema.

    "" without a schema.
    """
    formal = _formal_parameter(node, index)
    return "" if formal is None else str(formal.type_str)


def standard_kind(node: NodeView, index: int, kinds: Sequence[TensorKind]) -> TensorKind:
    """Return the kind of output `index` of the float node `node`, by its ONNX schema.

    `kinds` are those of the inputs; integers count as dequantized. Real without a schema; the
    target type for Cast; else that of the input with the same type variable, or of the types that
    the schema lists.
    """
    schema = _schema(node)
    if schema is None or not schema.outputs:
        return REAL
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    if formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
        return REAL
    cast_type = node.attributes.get("to")
    if node.proto.op_type == "Cast" and isinstance(cast_type, int):
        return TensorKind("real" if cast_type in REALS else "other", element_type=cast_type)
    if formal.type_str in _ELEMENTS:
        return _kind_of_element_type(_ELEMENTS[formal.type_str])
    for input_index, kind in enumerate(kinds):
        if node.inputs[input_index] is None:
            continue
        if _type_variable(node, input_index) == formal.type_str:
            return _dequantized_kind(kind)
    return _kind_of_types(set(formal.types))


def _kind_of_element_type(element_type: int) -> TensorKind:
    """Return the kind of a tensor of this ONNX `element_type`: FLOAT for float, else "other"."""
    if element_type == TensorProto.FLOAT:
        return FLOAT
    return TensorKind("other", element_type=element_type)


def _kind_of_types(types: set[str]) -> TensorKind:
    """Return the kind of a schema output that has one of `types`, ONNX type strings.

    Real if a float type is among them, that of the element type if there is only one, else OTHER.
    """
    if types & _FLOATS:
        return REAL
    only_type = types.pop() if len(types) == 1 else ""
    return _kind_of_element_type(_ELEMENTS[only_type]) if only_type in _ELEMENTS else OTHER


def _dequantized_kind(kind: TensorKind) -> TensorKind:
    """Return the kind of a float result with the type of an operand of `kind`.

    FLOAT for integers, REAL for an undefined operand, else `kind`.
    """
    if kind.is_integer:
        return FLOAT
    return REAL if kind.category == "missing" else kind
