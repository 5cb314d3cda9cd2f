"""The row of arcs."""

from __future__ import annotations

from types import MappingProxyType

from .._target import Target, rows
from ..arithmetic import (
    CurveArithmetic,
    Division,
    Gru,
    GruForm,
    LayerArithmetic,
    Lstm,
    LstmForm,
    Reading,
    RowArithmetic,
    RowsArithmetic,
    Shares,
    Table,
)
from ..limits import RecurrentLimits
from . import packing, prices
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

__all__ = ["ARCS"]


FAULTS = (*LATER_FAULTS, LunaFault.TANH, LunaFault.LOG_SOFTMAX)

ARCS = Target(
    name="arcs",
    executor=EXECUTOR,
    title="LISTENAI arcs (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **common(packing.ARCS),
            **layers(ZERO, packing.ARCS),
            **sums(LEFT, either=False),
            **later_average(packing.ARCS),
            **rows(LayerArithmetic(ZERO), "Conv1dInt"),
            **rows(Division(PLAIN), "iqDiv"),
            **rows(CurveArithmetic(PLAIN, Table.ARCS, Reading.SATURATED), "iqSigmoid"),
            **rows(RowsArithmetic(PLAIN, Shares.DIVIDE, RowArithmetic.FROM_FIRST), "SoftmaxInt", limits=ROWS),
            **rows(Lstm(PLAIN, Table.ARCS, from_zero=True, form=LstmForm.Q27), "LSTMInt", limits=RecurrentLimits()),
            **rows(
                Gru(PLAIN, Table.ARCS, from_zero=True, form=GruForm.HALVED),
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
            "": MappingProxyType({"platform": "arcs", "platform_quant": "luna_quant", "quant_mode": "floor_add"}),
            **LATER_MODES,
        }
    ),
    faults=FAULTS,
    why=reasons(FAULTS),
    vendor=Luna(packing.ARCS, prices.ARCS),
    training=trained(Table.ARCS),
)
