"""What an operator is to the quantizer: the class every file of this package fills in.

One `Op` per integer operator. It is the only reader and writer of that operator's attributes, in every generation of
names; it says which float operators become it, which limits it has, which tensors it ties, how it is lowered and which
simulator kernel computes it. It knows nothing of passes, files or commands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ..emit import Lowering
from ..errors import InternalError, ModelError
from ..graph import ir
from ..plan import QParams
from ..platforms import Platform
from ..platforms.arithmetic import Arithmetic, Left, Rounding

__all__ = [
    "ALL_OUT", "QUANT_MODES", "Attr", "Bound", "Constraint", "Op", "Tie", "Violation", "attributes", "fixed_batch",
]  # fmt: skip

#: Attribute names of later generations -> the names used here.
RENAMED = {"x_bits": "data_bits", "w_bits": "parameter_bits", "stride": "strides", "scale_i": "scale_x"}

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


@dataclass(frozen=True)
class Tie:
    """Two tensors that must share a scale; `governs` names the one whose statistics count, None for both."""

    first: str
    second: str
    governs: str | None = None


Constraint = Callable[[ir.Node, Platform], Any]


@dataclass(frozen=True)
class Violation:
    """A limit of the platform that a node breaks: what the user reads."""

    node: str
    op_type: str
    tensor: str
    rule: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.op_type} {self.node} -> {self.tensor}: {self.rule}; here {self.value}; {self.remedy}"

    @property
    def brief(self) -> str:
        """The rule and the value, without the place."""
        return f"{self.rule}; here {self.value}"


@dataclass
class Bound:
    """An integer node as `Op.bind` sees it.

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

    def rescale(self, ratio: float, bits: int | None = None) -> Any:
        """Return the simulator's rescaling by `ratio` to `bits` (default the arithmetic's, o_bits, else 8)."""
        from simulator.fixed import Rescale, Rounded

        how = self.arithmetic.requantize
        width = int(bits or how.bits or self.attrs.get("o_bits") or 8)
        if not how.shifts:
            return Rescale.from_ratio(ratio, width)
        mantissa, exponent = math.frexp(ratio)
        if mantissa != 0.5:
            raise ModelError(
                f"{self.where}: the scales give the ratio {ratio:g}, not a power of two; this platform shifts only"
            )
        shift = self._right(1 - exponent)
        if self.rounding is not Rounding.HALF_UP:
            return Rounded(shift, width, self.rounding)
        return Rescale.from_shift(shift, width)

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


def attributes(op: Op, node: ir.Node) -> dict[str, Any]:
    """Return the attributes of an integer node by current names with defaults; ModelError for a missing one."""
    given = {RENAMED.get(name, name): ir.attr(node, name) for name in node.attributes}
    for spec in op.attributes:
        if spec.name not in given:
            if spec.required:
                raise ModelError(f"{node.op_type} {node.name}: attribute {spec.name} is missing")
            given[spec.name] = spec.default
        value = given[spec.name]
        if spec.name.startswith("scale_") and value is not None:
            _check_scale(op, node, spec.name, value)
        if spec.name.endswith("_bits") and value is not None and not 2 <= value <= 32:
            raise ModelError(f"{node.op_type} {node.name}: {spec.name} = {value}; it must be 2 to 32")
    return given


def _check_scale(op: Op, node: ir.Node, name: str, value: Any) -> None:
    many = isinstance(value, Sequence)
    if many and (op.channel_axis is None or name != "scale_w"):
        raise ModelError(f"{node.op_type} {node.name}: {name} is a list of {len(value)}; it must be one number")
    for scale in value if many else (value,):
        if not (math.isfinite(scale) and scale > 0):
            raise ModelError(f"{node.op_type} {node.name}: {name} = {scale:g}; a scale is a positive number")


class Op:
    """One integer operator. Subclasses override what differs; the defaults fit an operator that moves data."""

    name: str
    #: What a row says of it.
    kind: type[Arithmetic] = Arithmetic
    domain = "thinker"
    floats: tuple[tuple[str, str], ...] = ()  # (domain, op type) of the float operators it computes
    aliases: tuple[str, ...] = ()  # names in other generations
    attributes: tuple[Attr, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    #: How a positive factor on the inputs acts: "passes" to the output, "absorbed" by a weight, or "fixed" (none).
    factor = "passes"
    #: Whether it only moves data: between float operators there is no point in quantizing it.
    moves = False
    #: Whether its results are integers of its inputs, chosen or cut off: it rounds nothing.
    keeps = False
    #: The attributes that hold the scales of constant inputs, with the indices of these.
    weight_scales: Mapping[str, int] = MappingProxyType({"scale_w": 1})
    #: The axis of its weight (input 1) along which there may be a scale for each element, None where there is none.
    channel_axis: int | None = None
    #: Whether the host does it, in float, where no integer operator follows.
    head = False
    #: Whether an output that leaves the integers may be wider than the rest, or float.
    wide = False
    #: The least |y| that no output exceeds, where there is one.
    bound: float | None = None
    #: The |y| that is never exceeded: above 8 bits no room is left for more.
    reach: float | None = None

    # ---- float side ------------------------------------------------------------------------------------------------

    def data(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that carry activations."""
        return [0]

    def results(self, node: ir.Node) -> list[int]:
        """Return the indices of the outputs that are integers at a scale of the plan."""
        return [0]

    def parameters(self, node: ir.Node) -> list[int]:
        """Return the indices of the quantized weight inputs (not biases, which are derived)."""
        return []

    def reject(self, node: ir.Node) -> str | None:
        """Return why this float node is not this operator on any platform, or None."""
        return None

    def available(self, row: Platform) -> bool:
        """Whether `row` has what this operator is lowered to."""
        return row.runs(self.name)

    def absence(self, node: ir.Node, row: Platform) -> str:
        """Return the reason that a user reads where `available` says no."""
        return f"{row.name} has no {self.name}"

    def ties(self, node: ir.Node, row: Platform) -> list[Tie]:
        """Return the scales this float node ties together on `row`; by default input and output."""
        return [Tie(ir.read_name(node), ir.written_name(node))]

    def ceiling(self, node: ir.Node, exponent: Callable[[str], int]) -> int | None:
        """Return the largest exponent a shifting platform allows the output, given those of other tensors."""
        return None

    def below(self, node: ir.Node) -> float | None:
        """Return how far below its inputs' least value the output has to reach, or None where that does not matter."""
        return None

    def macs(self, node: ir.Node) -> int:
        """Return the multiply-accumulates of one sample."""
        return 0

    def lower(self, node: ir.Node, low: Lowering) -> None:
        """Emit the integer form of the float `node`; by default the same standard operator on integers."""
        low.emit(self, node, low.inputs(node), {a: ir.attr(node, a) for a in node.attributes}, domain="")

    # ---- integer side ----------------------------------------------------------------------------------------------

    def operands(self, node: ir.Node) -> list[int]:
        """Return the indices of the inputs that the simulator's kernel reads."""
        return self.data(node)

    def bind(self, bound: Bound) -> Any:
        """Return the simulator kernel that computes an integer node."""
        raise NotImplementedError(self.name)

    def out_scale(self, attrs: Mapping[str, Any], scales: Sequence[float | None]) -> float | None:
        """Return the scale of the output, given the input tensors' scales."""
        scale = attrs.get("scale_o")
        return float(scale) if scale is not None else (scales[0] if scales else None)

    def out_scales(self, bound: Bound, scales: Sequence[float | None]) -> list[float | None]:
        """Return the scale of every output, the same for all by default."""
        return [self.out_scale(bound.attrs, scales)] * len(bound.node.outputs)

    def reals(self, bound: Bound) -> list[int]:
        """Return the indices of outputs that the kernel gives as integers and the graph has as real numbers."""
        return []

    def read_scales(self, attrs: Mapping[str, Any]) -> dict[int, float]:
        """Return the scale at which each input is read, by input index, where an attribute says so."""
        scale = attrs.get("scale_x")
        return {} if scale is None else {0: float(scale)}

    # ---- both sides ------------------------------------------------------------------------------------------------

    def violations(self, node: ir.Node, row: Platform) -> list[Violation]:
        """Return the limits of `row` that `node` (float or integer) breaks."""
        found = []
        for constraint in self.constraints:
            value = constraint(node, row)
            if value is not None:
                rule, remedy = rule_text(constraint, row)
                found.append(Violation(str(node.name), node.op_type, ir.written_name(node), rule, str(value), remedy))
        return found


def rule_text(constraint: Constraint, row: Platform) -> tuple[str, str]:
    """Return (rule, remedy) of a constraint, filled in from the row: its docstring, split at the bar."""
    text = " ".join((constraint.__doc__ or "").split()).format(row=row)
    rule, _, remedy = text.partition(" | ")
    return rule.rstrip("."), remedy.rstrip(".") or "change the model or leave the node in float"


def fixed_batch(target: Sequence[int]) -> list[int]:
    """Return a Reshape target with the batch axis as the chip has it: 1."""
    return [1 if i == 0 and d in (0, -1) else int(d) for i, d in enumerate(target)]


def qparams_text(q: QParams) -> str:
    """Return a scale as people read it."""
    return f"2^{q.exponent}" if q.exponent is not None else f"{q.scale:.6g}"
