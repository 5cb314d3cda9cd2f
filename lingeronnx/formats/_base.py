"""What an integer operator is: the class every file of this package fills in.

One `Format` per integer operator, and one instance of each. It is the only reader and writer of that operator's names,
in every generation, and of its attributes; it says at which scales a node reads and writes, and which simulator kernel
computes it. It knows no float operator, no chip's limits and no graph around the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from simulator.kernel import Kernel

from ..errors import InternalError, ModelError
from ..graph import ir
from ..plan import Affine
from ..targets.arithmetic import Arithmetic, Left, Rounding
from .inference import Signature
from .real import Reals

__all__ = ["ALL_OUT", "QUANT_MODES", "RENAMED", "Attr", "Bound", "Format", "Unary", "affine", "attributes", "held_at",
           "other_zero", "with_axis", "zero_attribute", "zero_points"]  # fmt: skip

#: Attribute names of later generations -> the names used here.
RENAMED: Mapping[str, str] = MappingProxyType(
    {"x_bits": "data_bits", "w_bits": "parameter_bits", "stride": "strides", "scale_i": "scale_x"}
)

_REQUIRED = object()

#: A right shift that leaves 0 of every accumulator.
ALL_OUT = 62

#: The values of the attribute quant_mode.
QUANT_MODES: Mapping[str, Rounding] = MappingProxyType(
    {
        "floor_add": Rounding.HALF_UP,
        "floor": Rounding.DOWN,
        "ceil": Rounding.UP,
        "round": Rounding.HALF_EVEN,
    }
)

_Kind = TypeVar("_Kind", bound=Arithmetic)


@dataclass(frozen=True)
class Attr:
    """One attribute of an integer operator: name, kind (i, f, s, ints) and default (absent = required)."""

    name: str
    kind: str
    default: Any = _REQUIRED
    unit: str = ""

    @property
    def required(self) -> bool:
        """Whether a graph without it is wrong."""
        return self.default is _REQUIRED


def zero_attribute(key: str) -> Attr:
    """Return the attribute with the zero point of what `scale_<key>` is the scale of; absent it is 0."""
    return Attr(f"zero_point_{key}", "i", 0)


def zero_points(**held: Affine | None) -> dict[str, int]:
    """Return the attributes of `zero_attribute` for tensors held so; none for a zero point of 0."""
    return {f"zero_point_{key}": q.zero_point for key, q in held.items() if q is not None and q.zero_point}


def other_zero(attrs: Mapping[str, Any]) -> str | None:
    """Return the first of a node's attributes that hold a zero point other than 0, None where there is none."""
    return next((key for key, value in attrs.items() if key.startswith("zero_point") and value), None)


def held_at(attrs: Mapping[str, Any], key: str) -> Affine:
    """Return what the attribute `scale_<key>` says, with the zero point beside it and the width of the node."""
    bits = int(attrs.get("o_bits" if key == "o" else "data_bits") or 8)
    return affine(float(attrs[f"scale_{key}"]), bits, int(attrs.get(f"zero_point_{key}") or 0))


def affine(scale: float, bits: int, zero_point: int) -> Affine:
    """Return how attributes of a node say that a tensor is held; ModelError where no integers are held so."""
    try:
        return Affine(scale, bits, zero_point=zero_point)
    except ValueError as error:
        raise ModelError(f"attributes of a node say how integers are held: {error}") from error


@dataclass
class Bound:
    """An integer node as `Format.bind` sees it.

    attrs : attributes by their current names, defaults filled in
    consts : constant inputs by index
    arithmetic : how the platform, or the training side, computes this operator
    source_shapes : shape of each input, empty for an absent one
    source_types : dtype of each input, None for an absent one
    batched : whether axis 0 is the batch (declared 1), not a size of its own
    """

    node: ir.Node
    attrs: Mapping[str, Any]
    consts: Mapping[int, np.ndarray]
    arithmetic: Arithmetic
    source_shapes: Sequence[tuple[int, ...]] = ()
    batched: bool = True
    source_types: Sequence[np.dtype | None] = ()

    @property
    def where(self) -> str:
        """How errors name the node."""
        return f"{self.node.op_type} {self.node.name}"

    def ratio(self, *scales: float) -> float:
        """Return scale_o over the product of `scales`; ModelError when the operator has no scale_o."""
        return float(self.attrs["scale_o"]) / math.prod(float(s) for s in scales)

    def zero(self, key: str) -> int:
        """Return the integer that stands for 0 where `scale_<key>` is the scale."""
        return int(self.attrs.get(f"zero_point_{key}") or 0)

    def width(self, index: int = 0) -> int:
        """Return 8 or 16, the width of integer input `index`; ModelError for a wider one."""
        kind = self.source_types[index] if index < len(self.source_types) else None
        if kind is not None and kind.itemsize > 2:
            raise ModelError(f"{self.where}: its input is {kind}; it must be int8 or int16")
        return 8 if kind is None else 8 * kind.itemsize

    def how(self, kind: type[_Kind]) -> _Kind:
        """Return the arithmetic, of the class that the operator has; InternalError for a row that gives another."""
        if not isinstance(self.arithmetic, kind):
            raise InternalError(f"{self.where} has {type(self.arithmetic).__name__} where {kind.__name__} belongs")
        return self.arithmetic

    @property
    def rounding(self) -> Rounding:
        """How results are rounded: as the arithmetic has it, or leaves to the node, whose default is half up."""
        if self.arithmetic.requantize.rounding is not None:
            return self.arithmetic.requantize.rounding
        name = str(self.attrs.get("quant_mode") or "floor_add")
        if name not in QUANT_MODES:
            raise ModelError(f"{self.where}: quant_mode = '{name}'; it is one of {', '.join(QUANT_MODES)}")
        return QUANT_MODES[name]

    def rescale(self, ratio: float, bits: int | None = None, zero: int | None = None) -> Any:
        """Return the simulator's rescaling by `ratio` to `bits` (default the arithmetic's, o_bits, else 8).

        zero : the integer of the result that stands for 0, by default the node's zero_point_o.
        """
        from simulator.fixed import Rescale, Rounded

        how = self.arithmetic.requantize
        width = int(bits or how.bits or self.attrs.get("o_bits") or 8)
        zero = self.zero("o") if zero is None else zero
        if not how.shifts:
            return Rescale.from_ratio(ratio, width, zero, self.rounding)
        mantissa, exponent = math.frexp(ratio)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.where}: the scales give the ratio {ratio:g}, not a power of two; this platform shifts only"
            )
        shift = self._right(1 - exponent)
        if self.rounding is not Rounding.HALF_UP:
            if zero:
                raise ModelError(f"{self.where}: zero_point_o = {zero}; this platform rounds without a zero point")
            return Rounded(shift, width, self.rounding)
        return Rescale.from_shift(shift, width, zero)

    def weighted_rescale(self, channels: int, groups: int = 1) -> Any:
        """Return the rescaling of sums at scale_x * scale_w: one, or where scale_w is a list one for each output.

        channels : scales that a list must have; `groups` of outputs take the same ones. ModelError for a list of
        another length, and where the platform takes one scale for a weight.
        """
        from simulator.channels import ChannelRescale

        x, w = float(self.attrs["scale_x"]), self.attrs["scale_w"]
        if not isinstance(w, Sequence):
            return self.rescale(self.ratio(x, w))
        if self.arithmetic.requantize.shifts:
            raise ModelError(f"{self.where}: scale_w is a list of {len(w)}; this platform takes one scale for a weight")
        if len(w) != channels:
            raise ModelError(f"{self.where}: scale_w is a list of {len(w)}; the weight has {channels} channels")
        return ChannelRescale(tuple(self.rescale(self.ratio(x, scale)) for scale in w) * groups)

    def _right(self, shift: int) -> int:
        """Return the right shift that is computed for `shift`: what becomes of a negative one differs."""
        left = self.arithmetic.requantize.left
        if shift >= 0 or left is Left.SHIFTED:
            return shift
        if left is Left.REFUSED:
            raise ModelError(
                f"{self.where}: its scales need a shift of {-shift} to the left, which the executor refuses; lower "
                "scale_o"
            )
        return ALL_OUT if left is Left.ZERO else 0

    def exponent(self, key: str, scale: float) -> int:
        """Return log2 of `scale`, the attribute `key`; ModelError when it is not a power of two."""
        mantissa, exponent = math.frexp(scale)
        if mantissa != 0.5:
            raise ModelError(f"{self.where}: {key} = {scale:g} is not a power of two; this platform shifts only")
        return exponent - 1

    def constant(self, index: int, dtypes: str, what: str) -> np.ndarray:
        """Return constant input `index`; ModelError when it is absent, computed at run time or of another dtype."""
        array = self.consts.get(index)
        if array is None:
            raise ModelError(f"{self.where}: its {what} (input {index}) must be a constant")
        if array.dtype.name not in dtypes.split():
            raise ModelError(
                f"{self.where}: its {what} is {array.dtype.name}; it must be {' or '.join(dtypes.split())}"
            )
        return array

    def bias(self, index: int, size: int) -> np.ndarray | None:
        """Return the int32 bias at input `index` as int64 [size], or None when there is none."""
        name = self.node.inputs[index] if len(self.node.inputs) > index else None
        if name is None:
            return None
        array = self.constant(index, "int32 int64", "bias").astype(np.int64).reshape(-1)
        if len(array) != size:
            raise ModelError(f"{self.where}: its bias has {len(array)} values; the weight has {size} outputs")
        return array


def attributes(form: Format, node: ir.Node) -> dict[str, Any]:
    """Return the attributes of an integer node by current names with defaults; ModelError for a missing one."""
    given = {RENAMED.get(name, name): ir.attr(node, name) for name in node.attributes}
    for spec in form.attributes:
        if spec.name not in given:
            if spec.required:
                raise ModelError(f"{node.op_type} {node.name}: attribute {spec.name} is missing")
            given[spec.name] = spec.default
        value = given[spec.name]
        if spec.name.startswith("scale_") and value is not None:
            _check_scale(form, node, spec.name, value)
        if spec.name.endswith("_bits") and value is not None and not 2 <= value <= 32:
            raise ModelError(f"{node.op_type} {node.name}: {spec.name} = {value}; it must be 2 to 32")
    return given


def _check_scale(form: Format, node: ir.Node, name: str, value: Any) -> None:
    many = isinstance(value, Sequence)
    if many and (form.channel_axis is None or name != "scale_w"):
        raise ModelError(f"{node.op_type} {node.name}: {name} is a list of {len(value)}; it must be one number")
    for scale in value if many else (value,):
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(f"{node.op_type} {node.name}: {name} = {scale:g}; a scale is a positive number")


class Format:
    """One integer operator. Subclasses override what differs; the defaults fit an operator that moves data.

    name : what it is called, in the domain `domain` ("" is ONNX's own).
    third : its name in graphs of generation 3 (domain `linger`), None where that has no other.
    aliases : further names that some generation has for it.
    kind : the class of arithmetic that a platform's row has for it.
    attributes : what a node says of itself, its scales and widths among them.
    weight_scales : the attributes that hold the scales of constant inputs, with the indices of these.
    channel_axis : the axis of its weight (input 1) along which there may be a scale for each element, None: one scale.
    zero_points : whether the integers that it reads and writes may have another zero point than 0.
    width : the attribute with the number of bits of what it writes.
    leaves : whether what it writes is real where a node has no scale_o.
    signature : what it reads and writes; None: as ONNX's operator of that name, on integers.
    further : attributes that some generation writes and that mean nothing for the numbers.
    exempt : how graphs use ONNX's own operator beyond the standard. exempt_by : where they do so, with this attribute.
    unsaid : attributes that generation 1 leaves out where they say 8.
    third_attributes : attributes that have another name in generation 3.
    between : whether real numbers between its input and output give other integers than it by more than rounding.
    """

    name: str
    third: str | None = None
    aliases: tuple[str, ...] = ()
    domain = "thinker"
    kind: type[Arithmetic] = Arithmetic
    attributes: tuple[Attr, ...] = ()
    weight_scales: Mapping[str, int] = MappingProxyType({"scale_w": 1})
    channel_axis: int | None = None
    zero_points = False
    width = "o_bits"
    leaves = False
    signature: Signature | None = None
    further: tuple[Attr, ...] = ()
    exempt = ""
    exempt_by = ""
    unsaid: tuple[str, ...] = ()
    third_attributes: Mapping[str, str] = MappingProxyType({"data_bits": "x_bits", "parameter_bits": "w_bits"})
    between = False

    def __repr__(self) -> str:
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, today's first."""
        return (self.name, *(() if self.third is None else (self.third,)), *self.aliases)

    @cached_property
    def known(self) -> frozenset[str]:
        """The names of all attributes that a node may have, but for those that its platform wants on it."""
        return frozenset(spec.name for spec in (*self.attributes, *self.further))

    def whole(self, node: ir.Node) -> bool:
        """Whether limits can be judged: all inputs that a node needs have known sizes, and lists are lists."""
        told = ["x:any"] if self.signature is None else self.signature.inputs.split()
        count = max(sum(not text.endswith(("?", "*")) for text in told), 1)
        sized = len(node.inputs) >= count and all(ir.shape(value) is not None for value in node.inputs[:count])
        lists = (ir.attr(node, spec.name) for spec in self.attributes if spec.kind == "ints")
        return sized and all(value is None or isinstance(value, Sequence) for value in lists)

    def operands(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that the simulator's kernel reads."""
        return [0]

    def bind(self, bound: Bound) -> Kernel:
        """Return the simulator kernel that computes a node; ModelError for a node that cannot be computed."""
        raise NotImplementedError(self.name)

    def bits(self, attrs: Mapping[str, Any]) -> int | None:
        """Return the width of what is written, None where it is that of input 0."""
        found = attrs.get(self.width)
        return None if found is None else int(found)

    def out_scale(self, attrs: Mapping[str, Any], scales: Sequence[Affine | None]) -> Affine | None:
        """Return the scale of the output (counts per unit), given the input tensors' scales; None for real numbers."""
        return held_at(attrs, "o") if attrs.get("scale_o") is not None else (scales[0] if scales else None)

    def out_scales(self, bound: Bound, scales: Sequence[Affine | None]) -> list[Affine | None]:
        """Return the scale of every output, the same for all by default."""
        return [self.out_scale(bound.attrs, scales)] * len(bound.node.outputs)

    def reals(self, bound: Bound) -> list[int]:
        """Return the indices of outputs that the kernel gives as integers and the graph has as real numbers."""
        return []

    def read_scales(self, attrs: Mapping[str, Any]) -> dict[int, Affine]:
        """Return the scale at which each input is read, by input index, where an attribute says so."""
        return {} if attrs.get("scale_x") is None else {0: held_at(attrs, "x")}

    # ---- in real numbers -------------------------------------------------------------------------------------------

    def meaning(self, real: Reals) -> list[ir.Value]:
        """Return the real values of a node's outputs, in nodes of standard operators that `real` makes.

        An operator that moves integers means itself. Raises ModelError where standard operators have no such thing.
        """
        if self.domain:
            raise ModelError(f"{real.bound.where}: standard operators have no counterpart")
        read = set(self.operands(real.node))
        return real.same(*(real.input(i) if i in read else real.given(i) for i in range(len(real.node.inputs))))

    # ---- the other generation --------------------------------------------------------------------------------------

    @property
    def first(self) -> Format:
        """The operator that it is in generation 1."""
        return self

    def to_third(self, attrs: Mapping[str, Any], inputs: int) -> dict[str, Any]:
        """Return the attributes of generation 3, under today's names, of a node of generation 1 with so many inputs."""
        scaled = attrs.get("scale_o") is not None
        widths = {"data_bits": 8, "o_bits": 8 if scaled else None}
        return {**widths, **attrs}

    def to_first(self, attrs: Mapping[str, Any], node: ir.Node) -> dict[str, Any]:
        """Return the attributes of generation 1 of a `node` of generation 3, both under today's names."""
        kept = dict(attrs)
        kept.pop("zero_point", None)
        return {key: value for key, value in kept.items() if value != 8 or not (key in self.unsaid or key[:2] == "x_")}

    def obstacle(self, attrs: Mapping[str, Any], node: ir.Node) -> str | None:
        """Return why generation 1 has no such node as this `node` of generation 3, or None."""
        return None


class Unary(Format):
    """One tensor in, one out, each with a scale and a width of its own."""

    def scales(self, x: Affine, o: Affine) -> dict[str, Any]:
        """Return the attributes of a node that reads `x` and writes `o`."""
        held = {"data_bits": x.bits, "o_bits": o.bits, "scale_x": x.scale, "scale_o": o.scale}
        return {**held, **zero_points(x=x, o=o)}


def with_axis(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes whose axis is called so; older graphs call it dim."""
    held = dict(attrs)
    dim = held.pop("dim", None)
    return {**held, "axis": dim if held.get("axis") is None else held["axis"]}
