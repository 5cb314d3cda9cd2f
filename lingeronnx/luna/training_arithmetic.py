"""Arithmetic of the vendor's training software, for each dialect of graphs.

Both dialects compute most operators alike on every chip: exact sums, then one rounding, whose mode
the node may choose. The first dialect supported one chip; for other chips it has no table-based
activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..targets.arithmetic import (
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

#: Operators that dialect v1 has for one chip only, by the chip's activation tables.
_V1_TABLE_ARITHMETIC: Mapping[ActivationTable, Mapping[str, Arithmetic]] = {
    ActivationTable.VENUS: {
        **dict.fromkeys(
            ("iqSigmoid", "iqTanh"),
            LutArithmetic(
                _NODE_ROUNDING, ActivationTable.VENUS, TableInputRule.WRAPPED, uses_node_format=True
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

#: Variants of softmax, LSTM and GRU in dialect v3, by the chip's activation tables.
_V3_VARIANTS = {
    ActivationTable.VENUS: (SoftmaxDivision.NEWTON, LstmFormat.Q15, GruVariant.Q15),
    ActivationTable.ARCS: (SoftmaxDivision.DIVIDE, LstmFormat.Q27, GruVariant.BEFORE),
    ActivationTable.VENUSA: (SoftmaxDivision.FUSED, LstmFormat.Q27, GruVariant.COMMON),
}


def _make_v3_arithmetic(
    table: ActivationTable, activations: tuple[str, ...]
) -> dict[str, Arithmetic]:
    """Return operator -> arithmetic of the training software for dialect v3 and a chip's `table`.

    `activations` are the operators that use the table with their node's scale and width; their
    input wraps if the table has 11 fractional bits, otherwise it saturates.
    """
    division, lstm, gru = _V3_VARIANTS[table]
    input_rule = (
        TableInputRule.WRAPPED if table.input_fraction_bits == 11 else TableInputRule.SATURATED
    )
    return {
        **_COMMON,
        "QGlobalAveragePool2d": AveragePoolArithmetic(_NODE_ROUNDING, AverageDivisor.COUNTED),
        **dict.fromkeys(
            activations, LutArithmetic(_NODE_ROUNDING, table, input_rule, uses_node_format=True)
        ),
        "SoftmaxInt": SoftmaxArithmetic(_NODE_ROUNDING, division, SoftmaxRowRule.AXIS),
        "GluInt": GluArithmetic(_NODE_ROUNDING, table, any_axis=True),
        "LSTMInt": LstmArithmetic(_NODE_ROUNDING, table, trained=True, form=lstm),
        "GRUInt": GruArithmetic(_NODE_ROUNDING, table, trained=True, form=gru),
    }


def make_training_arithmetic(
    table: ActivationTable, activations: tuple[str, ...] = ("iqSigmoid", "iqTanh")
) -> Mapping[int, Mapping[str, Arithmetic]]:
    """Build the `training` field of a target: dialect version (1, 3) -> operator -> arithmetic.

    Parameters
    ----------
    table : ActivationTable
        The chip's activation tables.
    activations : tuple of str
        Operators of dialect v3 that are computed from those tables.
    """
    v1_arithmetic = MappingProxyType({**_V1_ARITHMETIC, **_V1_TABLE_ARITHMETIC.get(table, {})})
    return MappingProxyType(
        {1: v1_arithmetic, 3: MappingProxyType(_make_v3_arithmetic(table, activations))}
    )
