"""How integer operators compute, as frozen values.

What a platform's row says, and operators and reference read.
One class per family of operators, each member of an enum with what it means beside it; `Arithmetic`
itself is for those that only move or requantize. The defaults are those of `generic`. What the
formulas are is told in docs/numerics.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from simulator.rounding import RoundingMode

__all__ = [
    "ActivationTable",
    "AddArithmetic",
    "AddOperandPrecision",
    "Arithmetic",
    "AverageDivisor",
    "AveragePoolArithmetic",
    "ConcatArithmetic",
    "DivArithmetic",
    "DivisionMethod",
    "GluArithmetic",
    "GruArithmetic",
    "GruVariant",
    "LayerArithmetic",
    "LayerNormArithmetic",
    "LeftShiftBehavior",
    "LstmArithmetic",
    "LstmFormat",
    "LutArithmetic",
    "MulArithmetic",
    "PadArithmetic",
    "QuantArithmetic",
    "QuantFloatPrecision",
    "RecurrentArithmetic",
    "RequantArithmetic",
    "Requantization",
    "RoundingMode",
    "SoftmaxArithmetic",
    "SoftmaxDivision",
    "SoftmaxRowRule",
    "TableInputRule",
]


class LeftShiftBehavior(Enum):
    """What comes out where the scales would need a shift to the left, seen from the accumulator."""

    SHIFTED = "shifts left"
    UNSHIFTED = "does not shift left"
    ZERO = "gives 0 for a shift to the left"
    REFUSED = "refuses a shift to the left"


@dataclass(frozen=True)
class Requantization:
    """How an accumulator becomes a result at another scale.

    shifts : by powers of two alone; otherwise by a multiplier of 31 bits, any ratio.
    left : what a shift to the left gives; nothing to a multiplier.
    rounding : of what a shift to the right or a multiplier cuts off; None: as the node says
    (quant_mode). bits : width of the result, whatever o_bits says; None: as it says.
    """

    shifts: bool = False
    left: LeftShiftBehavior = LeftShiftBehavior.SHIFTED
    rounding: RoundingMode | None = RoundingMode.HALF_UP
    bits: int | None = None

    def __str__(self) -> str:
        told = [self.left.value if self.shifts else "multiplies"]
        if self.rounding is not RoundingMode.HALF_UP:
            told.append(
                "rounds "
                + (
                    self.rounding.name.lower().replace("_", " ")
                    if self.rounding is not None
                    else "as the node says"
                )
            )
        return ", ".join(
            [*told, *([f"gives {self.bits} bits always"] if self.bits is not None else [])]
        )


@dataclass(frozen=True)
class Arithmetic:
    """What every operator has; those that move integers need nothing of it."""

    requantize: Requantization = Requantization()

    def __str__(self) -> str:
        told = [str(self.requantize)] if type(self) is not Arithmetic else []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                told.append(str(value.value))
            elif value is not None and value is not False:
                told.append(
                    f"{field.name} {value}" if value is not True else field.name.replace("_", " ")
                )
        return "; ".join(told) or "exact"


# ---- borders -----------------------------------------------------------------------------------------------------


class QuantFloatPrecision(Enum):
    """In which floating-point steps a real number becomes an integer."""

    DOUBLE = "in float64"
    PRODUCT = "the product in float32, the rest in float64"
    SINGLE = "every step in float32"


@dataclass(frozen=True)
class QuantArithmetic(Arithmetic):
    """Quant. widest : bits of the widest integers it can write."""

    real: QuantFloatPrecision = QuantFloatPrecision.DOUBLE
    widest: int = 32


@dataclass(frozen=True)
class RequantArithmetic(Arithmetic):
    """Requant. wraps : what does not fit a wider type loses its top bits instead of being saturated."""

    wraps: bool = False


# ---- layers, sums, quotients -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerArithmetic(Arithmetic):
    """Sums of products: layers with weights, BmmInt."""


@dataclass(frozen=True)
class MulArithmetic(Arithmetic):
    """Products of two activations: iqMul."""


class AddOperandPrecision(Enum):
    """In what the two operands of a sum meet."""

    FINE = "operands 2^16 times as fine as the result"
    BYTES = "operands requantized to 8 bits"
    WIDE = "operands requantized and not saturated"


@dataclass(frozen=True)
class AddArithmetic(Arithmetic):
    """Sums and differences of two activations: iqAdd and iqSub."""

    operands: AddOperandPrecision = AddOperandPrecision.FINE

    def __post_init__(self) -> None:
        if (
            self.operands is AddOperandPrecision.BYTES
            and self.requantize.rounding is not RoundingMode.HALF_UP
        ):
            raise ValueError(
                "operands in bytes are rounded half up; take Operands.WIDE for other roundings"
            )


@dataclass(frozen=True)
class ConcatArithmetic(Arithmetic):
    """iqCat. raises_only : an input of a larger scale than the output's becomes 0."""

    raises_only: bool = False


class DivisionMethod(Enum):
    """How a quotient of two activations is found."""

    RECIPROCAL = "the NPU's reciprocal"
    UNSCALED = "the NPU's reciprocal, scales ignored"
    SINGLE = "in float32"


@dataclass(frozen=True)
class DivArithmetic(Arithmetic):
    """Quotients of two activations: iqDiv."""

    quotient: DivisionMethod = DivisionMethod.RECIPROCAL


class AverageDivisor(Enum):
    """How the sum of a window becomes its average."""

    ONE_ROUNDING = "one rounding"
    AREA = "shift or reciprocal"
    AREA_IN_A_BYTE = "shift, or reciprocal of the area in a signed byte"
    COUNTED = "one rounding, padding counted as the node says"


@dataclass(frozen=True)
class AveragePoolArithmetic(Arithmetic):
    """Averages over windows: AvgPool2dInt."""

    divisor: AverageDivisor = AverageDivisor.ONE_ROUNDING


@dataclass(frozen=True)
class PadArithmetic(Arithmetic):
    """iqPad. swapped : `reflect` repeats the edge, and what is called `replicate` reflects."""

    swapped: bool = False


# ---- curves ------------------------------------------------------------------------------------------------------


class ActivationTable(Enum):
    """A chip's tables of sigmoid and tanh: 16 straight pieces each."""

    VENUS = "venus"
    ARCS = "arcs"
    VENUSA = "venusA"

    @property
    def input_fraction_bits(self) -> int:
        """Fractional bits of what goes in."""
        return 11 if self is ActivationTable.VENUS else 27


class TableInputRule(Enum):
    """How an input comes to the format of the table."""

    SATURATED = "input saturated"
    WRAPPED = "input not saturated, 0 beyond the table"
    RIGHT_ONLY = "int16 input, never shifted left"
    NOTHING = "every input reads as 0"


@dataclass(frozen=True)
class LutArithmetic(Arithmetic):
    """iqSigmoid, iqTanh and their kin.

    As_told : the output has the node's scale and width, not 7 fractional bits.
    """

    table: ActivationTable = ActivationTable.VENUSA
    reading: TableInputRule = TableInputRule.SATURATED
    as_told: bool = False


@dataclass(frozen=True)
class GluArithmetic(Arithmetic):
    """GluInt. table : of the sigmoid. any_axis : gates other axes than the last as well."""

    table: ActivationTable = ActivationTable.VENUSA
    any_axis: bool = False


# ---- rows --------------------------------------------------------------------------------------------------------


class SoftmaxDivision(Enum):
    """How a softmax gets from exponentials to their shares of the sum.

    Values are the kernel's words.
    """

    DIVIDE = "divide"
    FUSED = "fused"
    NEWTON = "newton"


class SoftmaxRowRule(Enum):
    """What a row of a softmax is."""

    FROM_AXIS = "rows of all axes from axis on"
    FROM_FIRST = "rows of all axes from axis on, a positive axis read as 1"
    AXIS = "rows of one axis"


@dataclass(frozen=True)
class SoftmaxArithmetic(Arithmetic):
    """Operators over rows: SoftmaxInt and LogSoftmaxInt."""

    shares: SoftmaxDivision = SoftmaxDivision.DIVIDE
    row: SoftmaxRowRule = SoftmaxRowRule.FROM_AXIS


@dataclass(frozen=True)
class LayerNormArithmetic(Arithmetic):
    """LayerNormInt. factor_bits : width in which the packer wants the factor; None: the plan's."""

    factor_bits: int | None = None


# ---- recurrent layers --------------------------------------------------------------------------------------------


class LstmFormat(Enum):
    """Formats of sums, gates, cell and state; values are the kernels' words.

    WIDE is Q27, but where the state has more than 8 bits f*c is not cut to 32 bits.
    """

    Q27 = "q27"
    WIDE = "wide"
    Q11 = "q11"
    Q15 = "q15"
    Q7 = "q7"


class GruVariant(Enum):
    """What a gated recurrent unit computes.

    Values of the training side's are its kernel's words.
    """

    DEFINED = "as it is defined"
    HALVED = "the state halved in every step"
    HALVED_APART = "the state halved in every step, and left out of two gates"
    Q15 = "q15"
    Q7 = "q7"
    BEFORE = "before"
    COMMON = "common"


@dataclass(frozen=True)
class RecurrentArithmetic(Arithmetic):
    """What LSTMInt and GRUInt share.

    table : of sigmoid and tanh. trained : scales, axes and states as the training side's library
    reads them. from_zero : lengths and states that are given are not computed.
    """

    table: ActivationTable = ActivationTable.ARCS
    trained: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class LstmArithmetic(RecurrentArithmetic):
    """LSTMInt. gates : in which order weights and biases have them."""

    form: LstmFormat = LstmFormat.Q27
    gates: str = "ifgo"

    def __post_init__(self) -> None:
        _check_gates(self.gates, "ifgo")


@dataclass(frozen=True)
class GruArithmetic(RecurrentArithmetic):
    """GRUInt. gates : in which order weights and biases have them."""

    form: GruVariant = GruVariant.DEFINED
    gates: str = "rzn"

    def __post_init__(self) -> None:
        _check_gates(self.gates, "rzn")


def _check_gates(gates: str, known: str) -> None:
    if sorted(gates) != sorted(known):
        raise ValueError(f"gates '{gates}' are not those of '{known}' in some order")
