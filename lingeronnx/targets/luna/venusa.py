"""The row of venusA."""

from __future__ import annotations

from types import MappingProxyType

from .._target import Target, rows
from ..arithmetic import (
    CurveArithmetic,
    Division,
    Gate,
    Gru,
    GruForm,
    Lstm,
    LstmForm,
    QuotientArithmetic,
    Reading,
    RowsArithmetic,
    Shares,
    Table,
)
from ..limits import CurveLimits, RecurrentLimits
from . import packing
from .common import (
    ALSO,
    EXECUTOR,
    EXPONENTS,
    LATER_FAULTS,
    LATER_MODES,
    LEFT,
    PLAIN,
    ROWS,
    ZERO,
    common,
    later_average,
    layers,
    norm,
    sums,
)
from .faults import LunaFault, reasons
from .trained import trained
from .vendor import Luna

__all__ = ["VENUSA"]

FAULTS = (
    *LATER_FAULTS,
    LunaFault.LUT_CONSTANT,
    LunaFault.TANH,
    LunaFault.CONV1D,
    LunaFault.CAT_SCALE,
    LunaFault.TRANSPOSE,
    LunaFault.LINEAR_ROWS,
    LunaFault.LSTM_STATE,
    LunaFault.SOFTMAX_AREA,
    LunaFault.LINEAR_AREA,
    LunaFault.DIV_SCALE,
)

VENUSA = Target(
    name="venusA",
    executor=EXECUTOR,
    title="LISTENAI venusA (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **common(packing.VENUSA, raises_only=True),
            **layers(ZERO, packing.VENUSA),
            **sums(LEFT, either=False),
            **later_average(packing.VENUSA),
            **rows(Division(PLAIN, QuotientArithmetic.UNSCALED), "iqDiv", miscompiled=True),
            **rows(Gate(PLAIN, Table.VENUSA), "GluInt"),
            **rows(
                CurveArithmetic(PLAIN, Table.VENUSA, Reading.NOTHING),
                "iqSigmoid",
                miscompiled=True,
                limits=CurveLimits(ranks=(2, 3), max_length=128, work=14),
            ),
            **rows(RowsArithmetic(PLAIN, Shares.FUSED), "SoftmaxInt", "LogSoftmaxInt", limits=ROWS),
            **rows(Lstm(PLAIN, Table.VENUSA, from_zero=True, form=LstmForm.Q27), "LSTMInt", limits=RecurrentLimits()),
            **rows(
                Gru(PLAIN, Table.VENUSA, from_zero=True, form=GruForm.HALVED_APART),
                "GRUInt",
                limits=RecurrentLimits(),
                miscompiled=True,
            ),
            **norm(),
        }
    ),
    also=ALSO,
    single_sample=True,
    out_bits=(8, 32),
    exponents=EXPONENTS,
    shared_memory=384 * 1024,
    external_memory=8 * 1024 * 1024,
    node_attributes=MappingProxyType(
        {
            "": MappingProxyType({"platform": "venusA", "platform_quant": "luna_quant", "quant_mode": "floor_add"}),
            **LATER_MODES,
        }
    ),
    faults=FAULTS,
    why=reasons(FAULTS),
    vendor=Luna(packing.VENUSA),
    training=trained(Table.VENUSA, ("iqSigmoid", "iqTanh", "QGelu", "QSwish")),
)
