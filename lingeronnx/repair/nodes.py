"""What one node of a damaged graph does with integers, and the kinds of tensors.

Attributes are read by the operators' own tables (`ops`), by any generation's names; what is not in the tables counts
as float outside the quantized domains, and inside them is told by its attributes. Knows no graph.
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
    BATCH_NORM2D,
    DEQUANT,
    FORMATS,
    GATHER,
    GRU,
    LSTM,
    QUANT,
    RENAMED,
    TRAINED_ONLY,
    Format,
    format_named,
)
from ..graph import operators
from ..graph.attributes import Attribute
from .view import NodeView, TensorView, is_scale, same_scale

__all__ = [
    "FLOAT", "INTEGERS", "MISSING", "OTHER", "REAL", "REALS", "RECURRENT", "Kind", "Wants",
    "current", "data", "integer_type", "is_dequant", "is_eager", "is_lazy", "is_quant", "is_quantized", "joined",
    "looks", "operator", "plain", "positions", "reals_read", "rescales", "scales_read", "standard_kind",
    "takes_element", "takes_indices", "takes_reals",
]  # fmt: skip

_DOMAINS = ("thinker", "linger")
INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32)
REALS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)

#: Those that look at integers as well as at real numbers, and give positions or sizes.
INDEXING = operators.PLACES | operators.SIZES
#: Those that could hand integers on, and do where an integer operator (or a Dequant) needs their result; else they are
#: float.
LAZY = operators.MOVES - operators.WHOLE - operators.PARTS | operators.CHOICES | {"Gather", "Resize"}
#: Those that do it wherever they get them, scale and all.
EAGER = {form.name for form in FORMATS if not form.domain} - LAZY - INDEXING | operators.WHOLE
RECURRENT = {LSTM, GRU}

#: Names of attributes before the first generation -> today's: batch normalisation said the scales of its product and
#: of its sum apart.
_LEGACY = {**RENAMED, "scale_mul_x": "scale_x", "scale_mul_w": "scale_w", "scale_add_o": "scale_o"}


@dataclass(frozen=True)
class Kind:
    """What a tensor is: "integer" (scale None: not known), "real", "other" (indices, masks, constants) or "missing".

    elem : the ONNX element type where it is certain, else 0
    """

    what: str
    scale: float | None = None
    bits: int = 8
    elem: int = 0

    @property
    def integer(self) -> bool:
        """Whether the tensor holds quantized integers."""
        return self.what == "integer"

    @property
    def text(self) -> str:
        """How reports name it."""
        names = {"real": "real numbers", "other": "indices", "missing": "written by nobody"}
        if self.what != "integer":
            return names[self.what]
        return f"int{8 if self.bits <= 8 else 16 if self.bits <= 16 else 32}"


REAL, OTHER, MISSING = Kind("real"), Kind("other"), Kind("missing")
FLOAT = Kind("real", elem=TensorProto.FLOAT)


def integer_type(bits: int) -> int:
    """Return the ONNX element type that holds integers of `bits`."""
    return int(TensorProto.INT8 if bits <= 8 else TensorProto.INT16 if bits <= 16 else TensorProto.INT32)


@dataclass
class Wants:
    """Who needs a tensor, seen through operators that hand on what they get.

    integers : (scale or None, bits or None, node) for each integer operator; real : whether a float operator does
    dequants : the scales of the Dequants behind it
    """

    integers: list[tuple[float | None, int | None, NodeView | None]] = field(default_factory=list)
    real: bool = False
    dequants: list[float | None] = field(default_factory=list)

    def scales(self) -> list[float]:
        """Return the different scales that integer operators read, or where there is none, that Dequants have."""
        scales: list[float] = []
        wanted: list[float | None] = [s for s, _, _ in self.integers] or self.dequants
        for scale in wanted:
            if is_scale(scale) and not any(same_scale(scale, other) for other in scales):
                scales.append(float(scale))
        return scales


def joined(kinds: Sequence[Kind]) -> Kind:
    """Return what several tensors are together: integers only where all are, of one scale."""
    if not kinds:
        return MISSING
    first = kinds[0]
    if all(k.integer for k in kinds):
        same = all(k.scale is None or first.scale is None or math.isclose(k.scale, first.scale) for k in kinds)
        return first if same else FLOAT
    whats = {k.what for k in kinds}
    if len(whats) == 1 or "real" not in whats and "integer" not in whats:
        return next((k for k in kinds if k.what != "missing"), first)
    return FLOAT if "integer" in whats else REAL


# ---- nodes --------------------------------------------------------------------------------------------------


def operator(node: NodeView) -> Format | None:
    """Return the integer operator a node is, by any generation's name; None for a float or an unknown one.

    A standard operator counts as one only in a quantized domain, or where it reads a quantized table.
    """
    form = format_named(node.proto.op_type)
    form = None if form in TRAINED_ONLY else form
    if form is None or node.proto.domain not in (*_DOMAINS, "", "ai.onnx"):
        return None
    if form.domain and (node.proto.domain in _DOMAINS or node.standard):
        return form
    if form is GATHER and any(is_scale(node.attributes.get(f"scale_{what}")) for what in "oxw"):
        return form
    return None


def rescales(form: Format) -> bool:
    """Whether the operator has a scale of its own: without scale_o it is unknown, not that of the input."""
    return form is BATCH_NORM2D or any(a.name == "scale_o" and a.required for a in form.attributes)


def is_dequant(node: NodeView | None) -> bool:
    """Whether a node is a Dequant."""
    return node is not None and node.proto.op_type == DEQUANT.name and (node.proto.domain in _DOMAINS or node.standard)


def is_quant(node: NodeView) -> bool:
    """Whether a node is a Quant."""
    return node.proto.op_type == QUANT.name and (node.proto.domain in _DOMAINS or node.standard)


def is_quantized(node: NodeView) -> bool:
    """Whether a node is an operator of the quantized generations, known or not."""
    if is_dequant(node) or operator(node) is not None:
        return True
    return node.proto.domain in _DOMAINS and not _known_mover(node)


def _known_mover(node: NodeView) -> bool:
    """Whether a node hands integers on or looks at them, in whatever domain."""
    names = EAGER | LAZY | INDEXING
    return node.proto.op_type in names and (node.standard or node.proto.domain in _DOMAINS)


def looks(node: NodeView) -> bool:
    """Whether a node takes integers as well as real numbers, and gives positions or sizes."""
    return _known_mover(node) and node.proto.op_type in INDEXING


def is_eager(node: NodeView) -> bool:
    """Whether a node hands integers on wherever it gets them; a Clip does with integer bounds only."""
    if not _known_mover(node) or node.proto.op_type not in EAGER:
        return False
    if node.proto.op_type != "Clip":
        return True
    bounds = [t.constant for t in node.inputs[1:] if t is not None]
    return all(b in INTEGERS for b in bounds) and not {"min", "max"} & set(node.attributes)


def is_lazy(node: NodeView) -> bool:
    """Whether a node hands integers on where somebody needs them."""
    return _known_mover(node) and node.proto.op_type in LAZY and operator(node) is None


def data(node: NodeView) -> list[int]:
    """Return the inputs that an eager or lazy node hands on."""
    kind = node.proto.op_type
    if kind == "Concat":
        return list(range(len(node.inputs)))
    return [1, 2][: max(len(node.inputs) - 1, 0)] if kind == "Where" else [0][: len(node.inputs)]


def current(node: NodeView) -> dict[str, Any]:
    """Return the attributes of an integer node by their current names, with defaults; None for missing ones."""
    form = operator(node)
    stated = {_LEGACY.get(name, name): value for name, value in node.attributes.items()}
    if form is GATHER and "scale_w" in stated:  # the table's scale, which it hands on
        stated.setdefault("scale_x", stated["scale_w"])
    for spec in form.attributes if form is not None else ():
        stated.setdefault(spec.name, None if spec.required else spec.default)
    return stated


def positions(node: NodeView) -> list[int]:
    """Return the inputs of an integer node that carry integer activations."""
    form = operator(node)
    if form is None:
        chosen: Sequence[int] = range(len(node.inputs)) if any(n.startswith("scale_") for n in node.attributes) else [0]
    elif form in RECURRENT:
        chosen = [0]  # lengths are indices, states may be either
    else:
        chosen = [] if form is GATHER else form.operands(plain(node))
    tensors = [(i, node.inputs[i]) for i in chosen if i < len(node.inputs)]
    return [i for i, tensor in tensors if tensor is not None and tensor.constant is None]


def reals_read(node: NodeView) -> list[int]:
    """Return the inputs of a quantized node that carry real numbers: a Quant's, the first generation's states."""
    if is_quant(node):
        return [0][: len(node.inputs)]
    form = operator(node)
    if form is None or form not in RECURRENT or "scale_i" not in node.attributes:
        return []
    weights = [i for i, t in enumerate(node.inputs) if i and t is not None and t.constant == TensorProto.INT8]
    return list(range(2, weights[0] if weights else 2))


def plain(node: NodeView) -> Any:  # noqa: ANN401 - in the place of an ir.Node
    """Return what `ops` needs to see of a node: its inputs, constant or not, and how many outputs it has."""

    def value(tensor: TensorView | None) -> SimpleNamespace | None:
        if tensor is None:
            return None
        constant = None if tensor.constant is None else SimpleNamespace(numpy=lambda: tensor.constant)
        return SimpleNamespace(
            name=tensor.name, const_value=constant, is_graph_input=lambda: False, producer=lambda: None
        )

    return SimpleNamespace(
        op_type=node.proto.op_type,
        name=node.proto.name,
        attributes={},
        inputs=[value(t) for t in node.inputs],
        outputs=[value(t) for t in node.outputs],
    )


def scales_read(node: NodeView) -> dict[int, float]:
    """Return the scale at which an integer node reads each input, where an attribute says so."""
    form, attrs = operator(node), current(node)
    by_input: dict[int, Attribute] = {0: attrs.get("scale_x"), 1: attrs.get("scale_y")}
    for name, value in attrs.items():
        if name.startswith("scale_x_") and name[8:].isdigit():
            by_input[int(name[8:])] = value
    if form is not None and all(is_scale(v) for k, v in attrs.items() if k.startswith("scale_") and v is not None):
        # Where a scale is missing nothing is said.
        with contextlib.suppress(LingerOnnxError, KeyError, TypeError, ValueError):
            by_input.update({index: q.scale for index, q in form.read_scales(attrs).items()})
    return {index: float(scale) for index, scale in by_input.items() if is_scale(scale)}


def takes_reals(node: NodeView, index: int, others: Sequence[Kind]) -> bool:
    """Whether a float node certainly needs real numbers at input `index`: others are the kinds of all its inputs."""
    if node.proto.op_type == QUANT.name:
        return True
    formal = _formal(node, index)
    if formal is None or not (_FLOATS & set(formal.types)):
        return False
    if "tensor(int8)" not in formal.types:
        return True
    mates = [k for i, k in enumerate(others) if i != index and _name(node, i) == formal.type_str]
    return any(kind.what == "real" for kind in mates)


def takes_element(node: NodeView, index: int, kind: Kind, others: Sequence[Kind]) -> bool:
    """Whether a standard node can take indices of `kind` at input `index`: others are the kinds of all its inputs."""
    formal = _formal(node, index)
    if formal is None or kind.elem not in TensorProto.DataType.values():
        return False
    mates = [k for i, k in enumerate(others) if i != index and _name(node, i) == formal.type_str]
    allowed = f"tensor({TensorProto.DataType.Name(kind.elem).lower()})" in formal.types
    return allowed and not any(mate.what == "real" or mate.integer for mate in mates)


def takes_indices(node: NodeView, index: int) -> bool:
    """Whether input `index` of a standard node takes no real numbers at all, such as a shape or an axis."""
    formal = _formal(node, index)
    return formal is not None and not (_FLOATS & set(formal.types))


_FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}


def _schema(node: NodeView) -> defs.OpSchema | None:
    if not node.standard:
        return None
    try:
        return defs.get_schema(node.proto.op_type, max_inclusive_version=_OPSET, domain="")
    except defs.SchemaError:
        return None


_OPSET = 13  # types of inputs and outputs, not their number, are asked for: those changed little since


def _formal(node: NodeView, index: int) -> defs.OpSchema.FormalParameter | None:
    schema = _schema(node)
    if schema is None or not schema.inputs:
        return None
    last = schema.inputs[-1]
    if index < len(schema.inputs):
        return schema.inputs[index]
    return last if last.option == defs.OpSchema.FormalParameterOption.Variadic else None


def _name(node: NodeView, index: int) -> str:
    formal = _formal(node, index)
    return "" if formal is None else str(formal.type_str)


def standard_kind(node: NodeView, index: int, kinds: Sequence[Kind]) -> Kind:
    """Return the kind of output `index` of a float node, given what it reads (integers count as dequantized)."""
    schema = _schema(node)
    if schema is None or not schema.outputs:
        return REAL
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    if formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous:
        return REAL
    cast = node.attributes.get("to")
    if node.proto.op_type == "Cast" and isinstance(cast, int):
        return Kind("real" if cast in REALS else "other", elem=cast)
    if formal.type_str in _ELEMENTS:
        elem = _ELEMENTS[formal.type_str]
        return FLOAT if elem == TensorProto.FLOAT else Kind("other", elem=elem)
    for i, kind in enumerate(kinds):
        if _name(node, i) == formal.type_str and node.inputs[i] is not None:
            return FLOAT if kind.integer else kind if kind.what != "missing" else REAL
    types = set(formal.types)
    return REAL if types & _FLOATS else _ELEMENTS_OF.get(frozenset(types), OTHER)


_ELEMENTS = {f"tensor({name})": elem for name, elem in (("float", 1), ("int64", 7), ("bool", 9), ("int32", 6))}
_ELEMENTS_OF = {frozenset({text}): Kind("other", elem=elem) for text, elem in _ELEMENTS.items() if elem != 1}
