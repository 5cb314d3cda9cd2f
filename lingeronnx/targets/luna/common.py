"""What the vendor's chips have in common: three NPUs of one family with the executor 3.0.4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from .._target import Support, rows
from ..arithmetic import (
    Arithmetic,
    Average,
    Concat,
    CurveArithmetic,
    Division,
    Divisor,
    Gate,
    LayerArithmetic,
    Left,
    NormArithmetic,
    Operands,
    Padding,
    Product,
    Quantizer,
    RealArithmetic,
    Requantize,
    Requantizer,
    RowsArithmetic,
    Sum,
)
from ..limits import (
    MatrixLimits,
    NormLimits,
    OperandLimits,
    RowLimits,
    SliceLimits,
    TransposeLimits,
)
from .faults import LunaFault
from .packing import Narrow, Packing

__all__ = [
    "ALSO", "COMMON_FAULTS", "EXECUTOR", "EXPONENTS", "LATER_FAULTS", "LATER_MODES", "LEFT", "MODES",
    "PLAIN", "REFUSE", "ROWS", "ZERO", "common", "later_average", "layers", "norm", "sums",
]  # fmt: skip

EXECUTOR = "3.0.4"
EXPONENTS = (-3, 16)

#: What becomes of a shift to the left, which the quantizer never writes.
PLAIN = Requantize(shifts=True, left=Left.UNSHIFTED)
LEFT = Requantize(shifts=True)
REFUSE = Requantize(shifts=True, left=Left.REFUSED)
ZERO = Requantize(shifts=True, left=Left.ZERO)

#: A row of T numbers: T^2 * 128^2 has to stay below 2^31.
_NORM = NormLimits(max_length=361, max_axes=2, epsilon=1e-5, lines=True)
ROWS = RowLimits(max_length=2048)


#: Bytes that are permuted in one piece. On venus rotations of more crash; elsewhere more was right in shared memory
#: alone, and other permutations of more were not measured on venus.
_WHOLE = 65536


def common(kind: Packing, *, raises_only: bool = False) -> dict[str, Support]:
    """Return what runs right on all three alike. raises_only : of iqCat, whether it cannot shift right."""
    broken = kind.move.broken + kind.move.between_convolutions
    return {
        **rows(Quantizer(PLAIN, RealArithmetic.PRODUCT, widest=16), "Quant"),
        **rows(
            Arithmetic(),
            "Dequant",
            "Relu",
            "Reshape",
            "Flatten",
            "Squeeze",
            "Unsqueeze",
            "Split",
            "Gather",
            "Tile",
            "Expand",
            "ArgMax",
        ),
        **rows(Requantizer(LEFT, wraps=True), "Requant"),
        **rows(Concat(LEFT, raises_only=raises_only), "iqCat"),
        **rows(Arithmetic(), "Transpose", limits=TransposeLimits(max_rank=4, broken=broken, whole=_WHOLE)),
        **rows(Arithmetic(), "Slice", limits=SliceLimits(steps=(1,))),
        "LinearInt": Support(LayerArithmetic(REFUSE), MatrixLimits(rank=3), weight_bits=_narrow(kind, "LinearInt")),
        **rows(LayerArithmetic(REFUSE), "BmmInt", limits=MatrixLimits(rank=3)),
        **rows(Product(REFUSE), "iqMul", limits=OperandLimits(per_channel=True)),
    }


def _narrow(kind: Packing, operator: str) -> tuple[int, ...]:
    """Return the widths below 8 of an operator's weights: those that the packer halves."""
    return (4,) if kind.narrow.get(operator) is Narrow.HALVED else ()


def layers(requantize: Requantize, kind: Packing) -> dict[str, Support]:
    """Return layers of two dimensions; a 2-D convolution writes saturated int8, whatever o_bits says."""
    convolution = LayerArithmetic(replace(requantize, bits=8))
    return {
        "Conv2dInt": Support(convolution, kind.conv, weight_bits=_narrow(kind, "Conv2dInt")),
        **rows(LayerArithmetic(requantize), "ConvTranspose2dInt"),
        **rows(LayerArithmetic(requantize), "BatchNorm2dInt"),
        **rows(Arithmetic(), "MaxPool", limits=kind.pool),
    }


def sums(requantize: Requantize, *, either: bool) -> dict[str, Support]:
    """Return sums and differences. either : whether either operand may be the one to be shifted."""
    limits = OperandLimits(images=False, either=either)
    return rows(Sum(requantize, Operands.BYTES), "iqAdd", "iqSub", limits=limits)


def later_average(kind: Packing) -> dict[str, Support]:
    """Return the average of arcs and venusA."""
    return rows(Average(PLAIN, Divisor.AREA), "AvgPool2dInt", limits=kind.pool)


#: Operators that are not on a chip's list, as a graph that has them is computed. Nothing here was measured.
ALSO: Mapping[str, Arithmetic] = MappingProxyType(
    {
        "Conv1dInt": LayerArithmetic(PLAIN),
        **dict.fromkeys(("Clip", "Resize", "ShuffleChannel", "iqTable"), Arithmetic()),
        "iqPad": Padding(PLAIN),
        "iqDiv": Division(PLAIN),
        "iqTanh": CurveArithmetic(PLAIN),
        "GluInt": Gate(PLAIN),
        "LogSoftmaxInt": RowsArithmetic(PLAIN),
    }
)

_MODE = MappingProxyType({"mode": "Non_t710_mode"})
MODES = {"iqAdd": _MODE, "iqSub": _MODE}
LATER_MODES = {**MODES, "LSTMInt": MappingProxyType({"batch_first": 0})}  # [1, T, I] is what these take for it

COMMON_FAULTS = (
    LunaFault.CLIP,
    LunaFault.SUB_PLACEMENT,
    LunaFault.AVGPOOL_SCALE,
    LunaFault.NORM_PLACEMENT,
    LunaFault.NORM_RANK,
    LunaFault.NORM_AREA,
    LunaFault.PRELU,
    LunaFault.UNUSED_INPUT,
    LunaFault.INPUT_TWICE,
    LunaFault.NO_CONSTANT,
    LunaFault.SHARED_CONSTANTS,
)
LATER_FAULTS = (
    *COMMON_FAULTS,
    LunaFault.AVGPOOL_GLOBAL,
    LunaFault.GRU_FORMAT,
    LunaFault.ADD_EXTERNAL,
    LunaFault.AFFINE_PLACEMENT,
    LunaFault.BATCH,
    LunaFault.NARROW_WEIGHTS,
)


def norm(factor_bits: int | None = None, min_length: int = 1) -> dict[str, Support]:
    """Return the row of LayerNormInt; factor_bits : width in which the packer wants the factor."""
    return rows(NormArithmetic(PLAIN, factor_bits), "LayerNormInt", limits=replace(_NORM, min_length=min_length))
