"""What networks are trained with: how that software computes the operators of each dialect of graphs.

Both dialects compute most operators alike on every chip: exact sums, one rounding, which the node may choose. The
first dialect knew one chip; for others it has no curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..arithmetic import (
    Arithmetic,
    Average,
    Concat,
    CurveArithmetic,
    Division,
    Divisor,
    Gate,
    Gru,
    GruForm,
    LayerArithmetic,
    Lstm,
    LstmForm,
    NormArithmetic,
    Operands,
    Padding,
    Product,
    Quantizer,
    QuotientArithmetic,
    Reading,
    RealArithmetic,
    Requantize,
    Requantizer,
    RowArithmetic,
    RowsArithmetic,
    Shares,
    Sum,
    Table,
)

__all__ = ["trained"]

_TOLD = Requantize(shifts=True, rounding=None)

_COMMON: Mapping[str, Arithmetic] = {
    "Quant": Quantizer(_TOLD, RealArithmetic.SINGLE),
    **dict.fromkeys(
        ("Dequant", "Relu", "MaxPool", "Clip", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice",
         "Split", "Gather", "Tile", "Expand"), Arithmetic(),
    ),
    **dict.fromkeys(
        ("Conv2dInt", "Conv1dInt", "ConvTranspose2dInt", "LinearInt", "BmmInt", "BatchNorm2dInt"),
        LayerArithmetic(_TOLD),
    ),
    "iqMul": Product(_TOLD),
    "iqAdd": Sum(_TOLD, Operands.WIDE),
    "iqCat": Concat(_TOLD),
    "AvgPool2dInt": Average(_TOLD, Divisor.COUNTED),
    "LayerNormInt": NormArithmetic(_TOLD),
}  # fmt: skip

_FIRST: Mapping[str, Arithmetic] = {
    **_COMMON,
    "Requant": Requantizer(Requantize(shifts=True)),
    "iqPad": Padding(_TOLD),
    "iqDiv": Division(_TOLD, QuotientArithmetic.SINGLE),
    "ShuffleChannel": Arithmetic(),
}

#: Chip's tables -> what dialect v1 had besides.
_FIRST_MORE: Mapping[Table, Mapping[str, Arithmetic]] = {
    Table.VENUS: {
        **dict.fromkeys(("iqSigmoid", "iqTanh"), CurveArithmetic(_TOLD, Table.VENUS, Reading.WRAPPED, as_told=True)),
        "SoftmaxInt": RowsArithmetic(_TOLD, Shares.NEWTON, RowArithmetic.AXIS),
        "LSTMInt": Lstm(_TOLD, Table.VENUS, trained=True, form=LstmForm.Q7),
        "GRUInt": Gru(_TOLD, Table.VENUS, trained=True, form=GruForm.Q7),
    }
}

#: Chip's tables -> how dialect v3 computes its softmax, LSTM and GRU.
_FORMS = {
    Table.VENUS: (Shares.NEWTON, LstmForm.Q15, GruForm.Q15),
    Table.ARCS: (Shares.DIVIDE, LstmForm.Q27, GruForm.BEFORE),
    Table.VENUSA: (Shares.FUSED, LstmForm.Q27, GruForm.COMMON),
}


def _third(table: Table, curves: tuple[str, ...]) -> dict[str, Arithmetic]:
    shares, lstm, gru = _FORMS[table]
    reading = Reading.WRAPPED if table.fraction == 11 else Reading.SATURATED
    return {
        **_COMMON,
        "QGlobalAveragePool2d": Average(_TOLD, Divisor.COUNTED),
        **dict.fromkeys(curves, CurveArithmetic(_TOLD, table, reading, as_told=True)),
        "SoftmaxInt": RowsArithmetic(_TOLD, shares, RowArithmetic.AXIS),
        "GluInt": Gate(_TOLD, table, any_axis=True),
        "LSTMInt": Lstm(_TOLD, table, trained=True, form=lstm),
        "GRUInt": Gru(_TOLD, table, trained=True, form=gru),
    }


def trained(table: Table, curves: tuple[str, ...] = ("iqSigmoid", "iqTanh")) -> Mapping[int, Mapping[str, Arithmetic]]:
    """Return the column `training` of a chip with these tables and curves."""
    first = MappingProxyType({**_FIRST, **_FIRST_MORE.get(table, {})})
    return MappingProxyType({1: first, 3: MappingProxyType(_third(table, curves))})
