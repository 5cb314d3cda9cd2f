"""What one node of a damaged graph does with integers, and the kinds of tensors.

Attributes are read by the operators' own tables (`ops`), by any generation's names; what is not in
the tables counts as float outside the quantized domains, and inside them is told by its attributes.
Knows no graph.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from onnx import TensorProto, defs

from ..errors import LingerOnnxError
from ..formats import (
    ATTRIBUTE_RENAMES,
    BATCH_NORM2D,
    DEQUANT,
    GATHER,
    GRU,
    INTEGER_OPS,
    LSTM,
    QUANT,
    TRAINING_ONLY_OPS,
    Format,
    find_integer_op_by_name,
)
from ..graph import operators
from ..graph.attributes import AttributeValue
from .graph_view import NodeView, TensorView, is_scale, same_scale

__all__ = [
    "FLOAT",
    "INTEGERS",
    "MISSING",
    "OTHER",
    "REAL",
    "REALS",
    "RECURRENT",
    "TensorKind",
    "TensorDemand",
    "current_attributes",
    "data_inputs",
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

#: Those that look at integers as well as at real numbers, and give positions or sizes.
INDEX_OPS = operators.INDEX_OPS | operators.SHAPE_QUERY_OPS
#: Those that could hand integers on, and do where an integer operator (or a Dequant) needs their result; else they are
#: float.
ON_DEMAND_OPS = (
    operators.DATA_MOVEMENT_OPS - operators.PERMUTATION_OPS - operators.SELECTION_OPS
    | operators.ELEMENT_SELECT_OPS
    | {"Gather", "Resize"}
)
#: Those that do it wherever they get them, scale and all.
PASS_THROUGH_OPS = {
    form.name for form in INTEGER_OPS if not form.domain
} - ON_DEMAND_OPS - INDEX_OPS | operators.PERMUTATION_OPS
RECURRENT = {LSTM, GRU}

#: Names of attributes before the first generation -> today's: batch normalisation said the scales of its product and
#: of its sum apart.
_LEGACY_ATTRIBUTE_NAMES = {
    **ATTRIBUTE_RENAMES,
    "scale_mul_x": "scale_x",
    "scale_mul_w": "scale_w",
    "scale_add_o": "scale_o",
}


@dataclass(frozen=True)
class TensorKind:
    """What a tensor is: "integer" (scale None: not known), "real", "other" (indices, masks, constants) or "missing".

    element_type : the ONNX element type where it is certain, else 0
    """

    category: str
    scale: float | None = None
    bits: int = 8
    element_type: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether the tensor holds quantized integers."""
        return self.category == "integer"

    @property
    def text(self) -> str:
        """How reports name it."""
        names = {"real": "real numbers", "other": "indices", "missing": "written by nobody"}
        if self.category != "integer":
            return names[self.category]
        return f"int{8 if self.bits <= 8 else 16 if self.bits <= 16 else 32}"


REAL, OTHER, MISSING = TensorKind("real"), TensorKind("other"), TensorKind("missing")
FLOAT = TensorKind("real", element_type=TensorProto.FLOAT)


def integer_type(bits: int) -> int:
    """Return the ONNX element type that holds integers of `bits`."""
    return int(
        TensorProto.INT8 if bits <= 8 else TensorProto.INT16 if bits <= 16 else TensorProto.INT32
    )


@dataclass
class TensorDemand:
    """Who needs a tensor, seen through operators that hand on what they get.

    integer_readers : (scale or None, bits or None, node) for each integer operator; real : whether
    a float operator does dequant_scales : the scales of the Dequants behind it
    """

    integer_readers: list[tuple[float | None, int | None, NodeView | None]] = field(
        default_factory=list
    )
    real: bool = False
    dequant_scales: list[float | None] = field(default_factory=list)

    def scales(self) -> list[float]:
        """Return the different scales that integer operators read, or where there is none, that Dequants have."""
        scales: list[float] = []
        wanted: list[float | None] = [s for s, _, _ in self.integer_readers] or self.dequant_scales
        for scale in wanted:
            if is_scale(scale) and not any(same_scale(scale, other) for other in scales):
                scales.append(float(scale))
        return scales


def merge_kinds(kinds: Sequence[TensorKind]) -> TensorKind:
    """Return what several tensors are together: integers only where all are, of one scale."""
    if not kinds:
        return MISSING
    first = kinds[0]
    if all(k.is_integer for k in kinds):
        same = all(
            k.scale is None or first.scale is None or math.isclose(k.scale, first.scale)
            for k in kinds
        )
        return first if same else FLOAT
    whats = {k.category for k in kinds}
    if len(whats) == 1 or "real" not in whats and "integer" not in whats:
        return next((k for k in kinds if k.category != "missing"), first)
    return FLOAT if "integer" in whats else REAL


# ---- nodes --------------------------------------------------------------------------------------------------


def integer_operator(node: NodeView) -> Format | None:
    """Return the integer operator a node is, by any generation's name.

    None for a float or an unknown one.
    A standard operator counts as one only in a quantized domain, or where it reads a quantized
    table.
    """
    form = find_integer_op_by_name(node.proto.op_type)
    form = None if form in TRAINING_ONLY_OPS else form
    if form is None or node.proto.domain not in (*_DOMAINS, "", "ai.onnx"):
        return None
    if form.domain and (node.proto.domain in _DOMAINS or node.standard):
        return form
    if form is GATHER and any(is_scale(node.attributes.get(f"scale_{what}")) for what in "oxw"):
        return form
    return None


def has_output_scale(op_format: Format) -> bool:
    """Whether the operator has a scale of its own.

    Without scale_o it is unknown, not that of the input.
    """
    return op_format is BATCH_NORM2D or any(
        a.name == "scale_o" and a.is_required for a in op_format.attributes
    )


def is_dequant(node: NodeView | None) -> bool:
    """Whether a node is a Dequant."""
    return (
        node is not None
        and node.proto.op_type == DEQUANT.name
        and (node.proto.domain in _DOMAINS or node.standard)
    )


def is_quant(node: NodeView) -> bool:
    """Whether a node is a Quant."""
    return node.proto.op_type == QUANT.name and (node.proto.domain in _DOMAINS or node.standard)


def is_quantized(node: NodeView) -> bool:
    """Whether a node is an operator of the quantized generations, known or not."""
    if is_dequant(node) or integer_operator(node) is not None:
        return True
    return node.proto.domain in _DOMAINS and not _is_known_mover(node)


def _is_known_mover(node: NodeView) -> bool:
    """Whether a node hands integers on or looks at them, in whatever domain."""
    names = PASS_THROUGH_OPS | ON_DEMAND_OPS | INDEX_OPS
    return node.proto.op_type in names and (node.standard or node.proto.domain in _DOMAINS)


def produces_indices(node: NodeView) -> bool:
    """Whether a node takes integers as well as real numbers, and gives positions or sizes."""
    return _is_known_mover(node) and node.proto.op_type in INDEX_OPS


def always_passes_integers(node: NodeView) -> bool:
    """Whether a node hands integers on wherever it gets them.

    A Clip does with integer bounds only.
    """
    if not _is_known_mover(node) or node.proto.op_type not in PASS_THROUGH_OPS:
        return False
    if node.proto.op_type != "Clip":
        return True
    bounds = [t.constant for t in node.inputs[1:] if t is not None]
    return all(b in INTEGERS for b in bounds) and not {"min", "max"} & set(node.attributes)


def passes_integers_on_demand(node: NodeView) -> bool:
    """Whether a node hands integers on where somebody needs them."""
    return (
        _is_known_mover(node)
        and node.proto.op_type in ON_DEMAND_OPS
        and integer_operator(node) is None
    )


def data_inputs(node: NodeView) -> list[int]:
    """Return the inputs that an eager or lazy node hands on."""
    kind = node.proto.op_type
    if kind == "Concat":
        return list(range(len(node.inputs)))
    return [1, 2][: max(len(node.inputs) - 1, 0)] if kind == "Where" else [0][: len(node.inputs)]


def current_attributes(node: NodeView) -> dict[str, Any]:
    """Return the attributes of an integer node by their current names, with defaults.

    None for missing ones.
    """
    form = integer_operator(node)
    stated = {
        _LEGACY_ATTRIBUTE_NAMES.get(name, name): value for name, value in node.attributes.items()
    }
    if form is GATHER and "scale_w" in stated:  # the table's scale, which it hands on
        stated.setdefault("scale_x", stated["scale_w"])
    for spec in form.attributes if form is not None else ():
        stated.setdefault(spec.name, None if spec.is_required else spec.default)
    return stated


def integer_inputs(node: NodeView) -> list[int]:
    """Return the inputs of an integer node that carry integer activations."""
    form = integer_operator(node)
    if form is None:
        chosen: Sequence[int] = (
            range(len(node.inputs)) if any(n.startswith("scale_") for n in node.attributes) else [0]
        )
    elif form in RECURRENT:
        chosen = [0]  # lengths are indices, states may be either
    else:
        chosen = [] if form is GATHER else form.kernel_inputs(make_op_view(node))
    tensors = [(i, node.inputs[i]) for i in chosen if i < len(node.inputs)]
    return [i for i, tensor in tensors if tensor is not None and tensor.constant is None]


def real_inputs(node: NodeView) -> list[int]:
    """Return the inputs of a quantized node that carry real numbers.

    A Quant's, the first generation's states.
    """
    if is_quant(node):
        return [0][: len(node.inputs)]
    form = integer_operator(node)
    if form is None or form not in RECURRENT or "scale_i" not in node.attributes:
        return []
    weights = [
        i
        for i, t in enumerate(node.inputs)
        if i and t is not None and t.constant == TensorProto.INT8
    ]
    return list(range(2, weights[0] if weights else 2))


def make_op_view(node: NodeView) -> Any:  # noqa: ANN401 - in the place of an ir.Node
    """Return what `ops` needs to see of a node.

    Its inputs, constant or not, and how many outputs it has.
    """

    def value(tensor: TensorView | None) -> SimpleNamespace | None:
        if tensor is None:
            return None
        constant = (
            None if tensor.constant is None else SimpleNamespace(numpy=lambda: tensor.constant)
        )
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
        inputs=[value(t) for t in node.inputs],
        outputs=[value(t) for t in node.outputs],
    )


def read_scales(node: NodeView) -> dict[int, float]:
    """Return the scale at which an integer node reads each input, where an attribute says so."""
    form, attrs = integer_operator(node), current_attributes(node)
    by_input: dict[int, AttributeValue] = {0: attrs.get("scale_x"), 1: attrs.get("scale_y")}
    for name, value in attrs.items():
        if name.startswith("scale_x_") and name[8:].isdigit():
            by_input[int(name[8:])] = value
    if form is not None and all(
        is_scale(v) for k, v in attrs.items() if k.startswith("scale_") and v is not None
    ):
        # Where a scale is missing nothing is said.
        with contextlib.suppress(LingerOnnxError, KeyError, TypeError, ValueError):
            by_input.update({index: q.scale for index, q in form.input_qparams(attrs).items()})
    return {index: float(scale) for index, scale in by_input.items() if is_scale(scale)}


def takes_reals(node: NodeView, index: int, others: Sequence[TensorKind]) -> bool:
    """Whether a float node certainly needs real numbers at input `index`.

    Others are the kinds of all its inputs.
    """
    if node.proto.op_type == QUANT.name:
        return True
    formal = _formal_parameter(node, index)
    if formal is None or not (_FLOATS & set(formal.types)):
        return False
    if "tensor(int8)" not in formal.types:
        return True
    mates = [
        k for i, k in enumerate(others) if i != index and _type_variable(node, i) == formal.type_str
    ]
    return any(kind.category == "real" for kind in mates)


def takes_element(
    node: NodeView, index: int, kind: TensorKind, others: Sequence[TensorKind]
) -> bool:
    """Whether a standard node can take indices of `kind` at input `index`.

    Others are the kinds of all its inputs.
    """
    formal = _formal_parameter(node, index)
    if formal is None or kind.element_type not in TensorProto.DataType.values():
        return False
    mates = [
        k for i, k in enumerate(others) if i != index and _type_variable(node, i) == formal.type_str
    ]
    allowed = f"tensor({TensorProto.DataType.Name(kind.element_type).lower()})" in formal.types
    return allowed and not any(mate.category == "real" or mate.is_integer for mate in mates)


def takes_indices(node: NodeView, index: int) -> bool:
    """Whether input `index` of a standard node takes no real numbers at all, such as a shape or an axis."""
    formal = _formal_parameter(node, index)
    return formal is not None and not (_FLOATS & set(formal.types))


_FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}


def _schema(node: NodeView) -> defs.OpSchema | None:
    if not node.standard:
        return None
    try:
        return defs.get_schema(node.proto.op_type, max_inclusive_version=_OPSET, domain="")
    except defs.SchemaError:
        return None


_OPSET = (
    13  # types of inputs and outputs, not their number, are asked for: those changed little since
)


def _formal_parameter(node: NodeView, index: int) -> defs.OpSchema.FormalParameter | None:
    schema = _schema(node)
    if schema is None or not schema.inputs:
        return None
    last = schema.inputs[-1]
    if index < len(schema.inputs):
        return schema.inputs[index]
    return last if last.option == defs.OpSchema.FormalParameterOption.Variadic else None


def _type_variable(node: NodeView, index: int) -> str:
    formal = _formal_parameter(node, index)
    return "" if formal is None else str(formal.type_str)


def standard_kind(node: NodeView, index: int, kinds: Sequence[TensorKind]) -> TensorKind:
    """Return the kind of output `index` of a float node, given what it reads (integers count as dequantized)."""
    schema = _schema(node)
    if schema is None or not schema.outputs:
        return REAL
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    if formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
        return REAL
    cast = node.attributes.get("to")
    if node.proto.op_type == "Cast" and isinstance(cast, int):
        return TensorKind("real" if cast in REALS else "other", element_type=cast)
    if formal.type_str in _ELEMENTS:
        elem = _ELEMENTS[formal.type_str]
        return FLOAT if elem == TensorProto.FLOAT else TensorKind("other", element_type=elem)
    for i, kind in enumerate(kinds):
        if _type_variable(node, i) == formal.type_str and node.inputs[i] is not None:
            return FLOAT if kind.is_integer else kind if kind.category != "missing" else REAL
    types = set(formal.types)
    return REAL if types & _FLOATS else _ELEMENTS_OF.get(frozenset(types), OTHER)


_ELEMENTS = {
    f"tensor({name})": elem
    for name, elem in (("float", 1), ("int64", 7), ("bool", 9), ("int32", 6))
}
_ELEMENTS_OF = {
    frozenset({text}): TensorKind("other", element_type=elem)
    for text, elem in _ELEMENTS.items()
    if elem != 1
}
