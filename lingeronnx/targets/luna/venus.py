"""The row of venus."""

from __future__ import annotations

from types import MappingProxyType

from .._target import Target, rows
from ..arithmetic import (
    Arithmetic,
    Average,
    CurveArithmetic,
    Divisor,
    Gru,
    GruForm,
    LayerArithmetic,
    Lstm,
    LstmForm,
    Padding,
    Reading,
    RowsArithmetic,
    Shares,
    Table,
)
from ..limits import PadLimits, RecurrentLimits
from . import packing
from .common import ALSO, COMMON_FAULTS, EXECUTOR, EXPONENTS, MODES, PLAIN, REFUSE, ROWS, common, layers, norm, sums
from .faults import LunaFault, reasons
from .trained import trained
from .vendor import Luna

__all__ = ["VENUS"]


FAULTS = (
    *COMMON_FAULTS,
    LunaFault.AVGPOOL_AREA,
    LunaFault.LSTM_SQUARE,
    LunaFault.LSTM_ODD,
    LunaFault.LSTM_AREA,
    LunaFault.NORM_SHORT,
    LunaFault.PAD_READERS,
    LunaFault.PRE_PAD,
    LunaFault.GRU_HALVED,
    LunaFault.DEPTHWISE_MULTIPLIER,
    LunaFault.SOFTMAX,
    LunaFault.LUT_SCALE,
    LunaFault.PAD_MODES,
)

VENUS = Target(
    name="venus",
    executor=EXECUTOR,
    title="LISTENAI venus (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **common(packing.VENUS),
            **layers(PLAIN, packing.VENUS),
            **rows(LayerArithmetic(PLAIN), "Conv1dInt"),
            **sums(REFUSE, either=True),
            **rows(Average(PLAIN, Divisor.AREA_IN_A_BYTE), "AvgPool2dInt", limits=packing.VENUS.pool),
            **rows(Padding(PLAIN, swapped=True), "iqPad", limits=PadLimits(rank=4, modes=("constant",))),
            **rows(CurveArithmetic(PLAIN, Table.VENUS, Reading.RIGHT_ONLY), "iqSigmoid", "iqTanh"),
            **rows(RowsArithmetic(PLAIN, Shares.NEWTON), "SoftmaxInt", limits=ROWS, miscompiled=True),
            **rows(
                Lstm(PLAIN, Table.VENUS, from_zero=True, form=LstmForm.Q11),
                "LSTMInt",
                limits=RecurrentLimits(square=True),
            ),
            **rows(
                Gru(PLAIN, Table.VENUS, from_zero=True, form=GruForm.HALVED),
                "GRUInt",
                limits=RecurrentLimits(),
                miscompiled=True,
            ),
            **norm(factor_bits=16, min_length=4),
            **rows(Arithmetic(), "ShuffleChannel"),
        }
    ),
    also=ALSO,
    single_sample=True,
    out_bits=(8, 32),
    curve_bits=(16,),
    exponents=EXPONENTS,
    shared_memory=640 * 1024,
    external_memory=8 * 1024 * 1024,
    node_attributes=MappingProxyType({"": MappingProxyType({"platform_quant": "luna_quant"}), **MODES}),
    faults=FAULTS,
    why=reasons(FAULTS),
    vendor=Luna(packing.VENUS),
    training=trained(Table.VENUS),
)
