"""How integer operators compute, as frozen values.

A target assigns one to each operator; operators and reference implementations read it. There is one
class per family of operators; `Arithmetic` itself is for operators that only move or requantize
data. The defaults are those of `generic`. The formulas are in docs/reference/numerics.md.
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
    "ReluArithmetic",
    "RequantArithmetic",
    "Requantization",
    "RoundingMode",
    "SoftmaxArithmetic",
    "SoftmaxDivision",
    "SoftmaxRowRule",
    "TableInputRule",
]


class LeftShiftBehavior(Enum):
    """Result of a requantization whose scales would need a left shift of the accumulator."""

    SHIFTED = "shifts left"
    UNSHIFTED = "does not shift left"
    ZERO = "gives 0 for a left shift"
    REFUSED = "refuses a left shift"


@dataclass(frozen=True)
class Requantization:
    """How an accumulator is converted to the output scale.

    shifts : by powers of two only; otherwise by a 31-bit multiplier, which allows any ratio.
    left : result of a left shift; ignored with a multiplier.
    rounding : of a right shift or a multiplication; None uses the node's quant_mode.
    bits : width of the result, whatever o_bits is; None uses o_bits.
    """

    shifts: bool = False
    left: LeftShiftBehavior = LeftShiftBehavior.SHIFTED
    rounding: RoundingMode | None = RoundingMode.HALF_UP
    bits: int | None = None

    def __str__(self) -> str:
        """Describe the value in phrases separated by commas, such as "shifts left".

        They are the treatment of left shifts or "multiplies", rounding if it is not half up, and a
        fixed width.
        """
        phrases = [self.left.value if self.shifts else "multiplies"]
        if self.rounding is None:
            phrases.append("rounds as the node specifies")
        elif self.rounding is not RoundingMode.HALF_UP:
            phrases.append(f"rounds {self.rounding.name.lower().replace('_', ' ')}")
        if self.bits is not None:
            phrases.append(f"always gives {self.bits} bits")
        return ", ".join(phrases)


@dataclass(frozen=True)
class Arithmetic:
    """Settings that all operators have; operators that only move integers ignore them."""

    requantize: Requantization = Requantization()

    def __str__(self) -> str:
        """Describe the fields that are set, separated by semicolons; "exact" if none is.

        Fields that are None or False are not set. The requantization comes first, except for the
        class `Arithmetic` itself.
        """
        phrases = [str(self.requantize)] if type(self) is not Arithmetic else []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                phrases.append(str(value.value))
            elif value is True:
                phrases.append(field.name.replace("_", " "))
            elif value is not None and value is not False:
                phrases.append(f"{field.name} {value}")
        return "; ".join(phrases) or "exact"


# ---- quantization and requantization -------------------------------------------------------------


class QuantFloatPrecision(Enum):
    """Floating-point precision in which a Quant computes."""

    DOUBLE = "in float64"
    PRODUCT = "the product in float32, the rest in float64"
    SINGLE = "every step in float32"


@dataclass(frozen=True)
class QuantArithmetic(Arithmetic):
    """Quant.

    float_precision : floating-point precision of the computation.
    max_bits : maximum output width.
    """

    float_precision: QuantFloatPrecision = QuantFloatPrecision.DOUBLE
    max_bits: int = 32


@dataclass(frozen=True)
class RequantArithmetic(Arithmetic):
    """Requant.

    wraps : a value that does not fit in a wider type loses its top bits instead of being saturated.
    """

    wraps: bool = False


# ---- layers, sums, quotients ---------------------------------------------------------------------


@dataclass(frozen=True)
class LayerArithmetic(Arithmetic):
    """Sums of products: layers with weights, and BmmInt.

    supports_int32 : inputs and weights of a fully connected layer may have 32 bits.
    """

    supports_int32: bool = False


@dataclass(frozen=True)
class MulArithmetic(Arithmetic):
    """Products of two activations: iqMul."""


class AddOperandPrecision(Enum):
    """Precision to which the two operands of a sum are converted before they are added."""

    FINE = "operands 2^16 times as fine as the result"
    INT8 = "operands requantized to 8 bits"
    WIDE = "operands requantized and not saturated"


@dataclass(frozen=True)
class AddArithmetic(Arithmetic):
    """Sums and differences of two activations: iqAdd and iqSub."""

    operands: AddOperandPrecision = AddOperandPrecision.FINE

    def __post_init__(self) -> None:
        """Raise ValueError if the operands are INT8 but the rounding is not half up."""
        if (
            self.operands is AddOperandPrecision.INT8
            and self.requantize.rounding is not RoundingMode.HALF_UP
        ):
            raise ValueError(
                "AddOperandPrecision.INT8 rounds half up; use AddOperandPrecision.WIDE for other "
                "roundings"
            )


@dataclass(frozen=True)
class ConcatArithmetic(Arithmetic):
    """iqCat.

    zeroes_larger_scales : an input of a larger scale than the output becomes 0.
    """

    zeroes_larger_scales: bool = False


class DivisionMethod(Enum):
    """How a quotient of two activations is computed."""

    RECIPROCAL = "the NPU's reciprocal"
    UNSCALED = "the NPU's reciprocal, scales ignored"
    SINGLE = "in float32"


@dataclass(frozen=True)
class DivArithmetic(Arithmetic):
    """Quotients of two activations: iqDiv."""

    quotient: DivisionMethod = DivisionMethod.RECIPROCAL


class AverageDivisor(Enum):
    """How the sum of a window is divided by its area."""

    ONE_ROUNDING = "one rounding"
    AREA = "shift or reciprocal"
    INT8_AREA = "shift, or reciprocal of the area in a signed byte"
    COUNTED = "one rounding, padding counted as the node specifies"
    SCALED_AREA = "one shift by scales and area, or reciprocal"


@dataclass(frozen=True)
class AveragePoolArithmetic(Arithmetic):
    """Averages over windows: AvgPool2dInt."""

    divisor: AverageDivisor = AverageDivisor.ONE_ROUNDING


@dataclass(frozen=True)
class PadArithmetic(Arithmetic):
    """iqPad.

    swapped : mode `reflect` repeats the edge, and mode `replicate` reflects.
    """

    swapped: bool = False


@dataclass(frozen=True)
class ReluArithmetic(Arithmetic):
    """Relu.

    shifts_to_output_scale : the input is shifted right by log2(scale_o / scale_x); otherwise the
    output keeps its scale.
    """

    shifts_to_output_scale: bool = False


# ---- activation tables ---------------------------------------------------------------------------


class ActivationTable(Enum):
    """A chip's tables of sigmoid and tanh: 16 linear segments each."""

    VENUS = "venus"
    ARCS = "arcs"
    VENUSA = "venusA"

    @property
    def input_fraction_bits(self) -> int:
        """The fractional bits of the table's input: 11 on venus, 27 on other chips."""
        return 11 if self is ActivationTable.VENUS else 27


class TableInputRule(Enum):
    """How an input is converted to the input format of the table."""

    SATURATED = "input saturated"
    WRAPPED = "input not saturated, 0 beyond the table"
    RIGHT_SHIFT_ONLY = "int16 input, never shifted left"
    ALWAYS_ZERO = "every input reads as 0"


@dataclass(frozen=True)
class LutArithmetic(Arithmetic):
    """iqSigmoid, iqTanh and similar operators.

    uses_node_format : the output has the scale and width of the node instead of 7 fractional bits.
    rounds_twice : the value of the table is rounded to 32 bits first, then to the output.
    supports_int32 : the input may have 32 bits.
    """

    table: ActivationTable = ActivationTable.VENUSA
    input_rule: TableInputRule = TableInputRule.SATURATED
    uses_node_format: bool = False
    rounds_twice: bool = False
    supports_int32: bool = False


@dataclass(frozen=True)
class GluArithmetic(Arithmetic):
    """GluInt.

    table : the sigmoid table.
    any_axis : supports axes other than the last.
    gate_bits : width of the gate, with one fractional bit less; None is 16.
    """

    table: ActivationTable = ActivationTable.VENUSA
    any_axis: bool = False
    gate_bits: int | None = None


# ---- operators over rows -------------------------------------------------------------------------


class SoftmaxDivision(Enum):
    """How a softmax divides the exponentials by their sum.

    The values are options of the kernel.
    """

    DIVIDE = "divide"
    FUSED = "fused"
    NEWTON = "newton"


class SoftmaxRowRule(Enum):
    """Which elements form a row of a softmax."""

    FROM_AXIS = "rows of all axes from axis on"
    FROM_FIRST = "rows of all axes from axis on, a positive axis read as 1"
    AXIS = "rows of one axis"


@dataclass(frozen=True)
class SoftmaxArithmetic(Arithmetic):
    """Operators over rows: SoftmaxInt and LogSoftmaxInt."""

    division: SoftmaxDivision = SoftmaxDivision.DIVIDE
    row: SoftmaxRowRule = SoftmaxRowRule.FROM_AXIS


@dataclass(frozen=True)
class LayerNormArithmetic(Arithmetic):
    """LayerNormInt.

    factor_bits : width of the factor that the packer needs; None uses the width of the plan.
    fraction_bits : 15 if normalized values have 15 fractional bits and 32 bits; None for 10 and 16.
    """

    factor_bits: int | None = None
    fraction_bits: int | None = None


# ---- recurrent layers ----------------------------------------------------------------------------


class LstmFormat(Enum):
    """Fixed-point formats of sums, gates, cell and state; the values are options of the kernels.

    WIDE is Q27, except that f*c is not clipped to 32 bits if the state has more than 8 bits. The
    Q15 of training software does not saturate the products of Q15_CLIPPED_CELL (a cell of 16 bits)
    and Q15_WIDE_CELL (32 bits).
    """

    Q27 = "q27"
    WIDE = "wide"
    Q11 = "q11"
    Q15 = "q15"
    Q7 = "q7"
    Q15_CLIPPED_CELL = "q15, the cell clipped at 1"
    Q15_WIDE_CELL = "q15, a cell of 32 bits"

    @property
    def kernel_option(self) -> str:
        """The option of the executor's kernel: for most formats their value."""
        options = {
            LstmFormat.Q15_CLIPPED_CELL: "q15",
            LstmFormat.Q15_WIDE_CELL: "q15_wide",
        }
        return options.get(self, self.value)


class GruVariant(Enum):
    """Variants of a gated recurrent unit.

    The values of the training variants are options of the kernel.
    """

    DEFINED = "as it is defined"
    HALVED = "the state halved in every step"
    HALVED_NOT_IN_GATES = "the state halved in every step, and left out of two gates"
    Q15 = "q15"
    Q7 = "q7"
    BEFORE = "before"
    COMMON = "common"
    CANDIDATE_WEIGHTED = "sums in Q11, z weighs the candidate"
    RESET_BEFORE = "sums in Q27, the state reset before the product"
    RESET_AFTER = "sums at the finer of their scales, the product reset"


@dataclass(frozen=True)
class RecurrentArithmetic(Arithmetic):
    """Settings that LSTMInt and GRUInt share.

    table : of sigmoid and tanh.
    trained : scales, axes and states are interpreted as by the training library.
    from_zero : optional sequence lengths and initial states are ignored.
    """

    table: ActivationTable = ActivationTable.ARCS
    trained: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class LstmArithmetic(RecurrentArithmetic):
    """LSTMInt.

    gates : order of the gates in weights and biases.
    follows_batch_first : whether the attribute alone decides which axis is time; otherwise an input
    [1, T, I] has the time on axis 1 in any case.
    """

    form: LstmFormat = LstmFormat.Q27
    gates: str = "ifgo"
    follows_batch_first: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError unless `gates` is a permutation of "ifgo"."""
        _check_gates(self.gates, "ifgo")


@dataclass(frozen=True)
class GruArithmetic(RecurrentArithmetic):
    """GRUInt.

    gates : order of the gates in weights and biases.
    """

    form: GruVariant = GruVariant.DEFINED
    gates: str = "rzn"

    def __post_init__(self) -> None:
        """Raise ValueError unless `gates` is a permutation of "rzn"."""
        _check_gates(self.gates, "rzn")


def _check_gates(gates: str, known: str) -> None:
    """Raise ValueError unless `gates` is a permutation of the letters in `known`."""
    if sorted(gates) != sorted(known):
        raise ValueError(f"gates must be a permutation of '{known}'; got '{gates}'")
