"""What networks are trained with.

How that software computes the operators of each dialect of graphs.
Both dialects compute most operators alike on every chip: exact sums, one rounding, which the node
may choose. The first dialect knew one chip; for others it has no curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..arithmetic import (
    ActivationTable,
    AddArithmetic,
    AddOperandPrecision,
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    ConcatArithmetic,
    DivArithmetic,
    DivisionMethod,
    GluArithmetic,
    GruArithmetic,
    GruVariant,
    LayerArithmetic,
    LayerNormArithmetic,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    MulArithmetic,
    PadArithmetic,
    QuantArithmetic,
    QuantFloatPrecision,
    RequantArithmetic,
    Requantization,
    SoftmaxArithmetic,
    SoftmaxDivision,
    SoftmaxRowRule,
    TableInputRule,
)

__all__ = ["make_training_arithmetic"]

_NODE_ROUNDING = Requantization(shifts=True, rounding=None)

_COMMON: Mapping[str, Arithmetic] = {
    "Quant": QuantArithmetic(_NODE_ROUNDING, QuantFloatPrecision.SINGLE),
    **dict.fromkeys(
        (
            "Dequant",
            "Relu",
            "MaxPool",
            "Clip",
            "Reshape",
            "Flatten",
            "Transpose",
            "Squeeze",
            "Unsqueeze",
            "Slice",
            "Split",
            "Gather",
            "Tile",
            "Expand",
        ),
        Arithmetic(),
    ),
    **dict.fromkeys(
        ("Conv2dInt", "Conv1dInt", "ConvTranspose2dInt", "LinearInt", "BmmInt", "BatchNorm2dInt"),
        LayerArithmetic(_NODE_ROUNDING),
    ),
    "iqMul": MulArithmetic(_NODE_ROUNDING),
    "iqAdd": AddArithmetic(_NODE_ROUNDING, AddOperandPrecision.WIDE),
    "iqCat": ConcatArithmetic(_NODE_ROUNDING),
    "AvgPool2dInt": AveragePoolArithmetic(_NODE_ROUNDING, AverageDivisor.COUNTED),
    "LayerNormInt": LayerNormArithmetic(_NODE_ROUNDING),
}

_V1_ARITHMETIC: Mapping[str, Arithmetic] = {
    **_COMMON,
    "Requant": RequantArithmetic(Requantization(shifts=True)),
    "iqPad": PadArithmetic(_NODE_ROUNDING),
    "iqDiv": DivArithmetic(_NODE_ROUNDING, DivisionMethod.SINGLE),
    "ShuffleChannel": Arithmetic(),
}

#: Chip's tables -> what dialect v1 had besides.
_V1_TABLE_ARITHMETIC: Mapping[ActivationTable, Mapping[str, Arithmetic]] = {
    ActivationTable.VENUS: {
        **dict.fromkeys(
            ("iqSigmoid", "iqTanh"),
            LutArithmetic(
                _NODE_ROUNDING, ActivationTable.VENUS, TableInputRule.WRAPPED, as_told=True
            ),
        ),
        "SoftmaxInt": SoftmaxArithmetic(
            _NODE_ROUNDING, SoftmaxDivision.NEWTON, SoftmaxRowRule.AXIS
        ),
        "LSTMInt": LstmArithmetic(
            _NODE_ROUNDING, ActivationTable.VENUS, trained=True, form=LstmFormat.Q7
        ),
        "GRUInt": GruArithmetic(
            _NODE_ROUNDING, ActivationTable.VENUS, trained=True, form=GruVariant.Q7
        ),
    }
}

#: Chip's tables -> how dialect v3 computes its softmax, LSTM and GRU.
_V3_VARIANTS = {
    ActivationTable.VENUS: (SoftmaxDivision.NEWTON, LstmFormat.Q15, GruVariant.Q15),
    ActivationTable.ARCS: (SoftmaxDivision.DIVIDE, LstmFormat.Q27, GruVariant.BEFORE),
    ActivationTable.VENUSA: (SoftmaxDivision.FUSED, LstmFormat.Q27, GruVariant.COMMON),
}


def _make_v3_arithmetic(table: ActivationTable, curves: tuple[str, ...]) -> dict[str, Arithmetic]:
    shares, lstm, gru = _V3_VARIANTS[table]
    reading = (
        TableInputRule.WRAPPED if table.input_fraction_bits == 11 else TableInputRule.SATURATED
    )
    return {
        **_COMMON,
        "QGlobalAveragePool2d": AveragePoolArithmetic(_NODE_ROUNDING, AverageDivisor.COUNTED),
        **dict.fromkeys(curves, LutArithmetic(_NODE_ROUNDING, table, reading, as_told=True)),
        "SoftmaxInt": SoftmaxArithmetic(_NODE_ROUNDING, shares, SoftmaxRowRule.AXIS),
        "GluInt": GluArithmetic(_NODE_ROUNDING, table, any_axis=True),
        "LSTMInt": LstmArithmetic(_NODE_ROUNDING, table, trained=True, form=lstm),
        "GRUInt": GruArithmetic(_NODE_ROUNDING, table, trained=True, form=gru),
    }


def make_training_arithmetic(
    table: ActivationTable, curves: tuple[str, ...] = ("iqSigmoid", "iqTanh")
) -> Mapping[int, Mapping[str, Arithmetic]]:
    """Return the column `training` of a chip with these tables and curves."""
    first = MappingProxyType({**_V1_ARITHMETIC, **_V1_TABLE_ARITHMETIC.get(table, {})})
    return MappingProxyType({1: first, 3: MappingProxyType(_make_v3_arithmetic(table, curves))})
