"""The row of arcs."""

from __future__ import annotations

from types import MappingProxyType

from .arithmetic import Curve, Division, Gru, GruForm, Layer, Lstm, LstmForm, Reading, Row, Rows, Shares, Table
from .faults import Fault
from .limits import ConvLimits, PoolLimits, RecurrentLimits, TransposeLimits
from .luna import (
    ALSO,
    EXECUTOR,
    EXPONENTS,
    LATER_ARGS,
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
from .row import Platform, rows
from .trained import trained

__all__ = ["ARCS"]

_CONV = ConvLimits(
    max_kernel=5,
    max_kernel_dilated=12,
    strides=(1, 2, 4),
    max_pad=11,
    dilations=(1, 2, 4, 8),
    slab=16384,
    slab_depthwise=16384,
    slab_padded=True,
    memory_depthwise=384 * 1024,
    channel_align=2,
    depthwise_multiplier=True,
    max_kernel_1d=12,
)
_POOL = PoolLimits(max_kernel=5, max_average_area=600, global_area_per_channel=4)

ARCS = Platform(
    name="arcs",
    executor=EXECUTOR,
    title="LISTENAI arcs (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **common(TransposeLimits(max_rank=4)),
            **layers(ZERO, _CONV, _POOL),
            **sums(LEFT),
            **later_average(_POOL),
            **rows(Layer(ZERO), "Conv1dInt", limits=_CONV),
            **rows(Division(PLAIN), "iqDiv"),
            **rows(Curve(PLAIN, Table.ARCS, Reading.SATURATED), "iqSigmoid"),
            **rows(Rows(PLAIN, Shares.DIVIDE, Row.FROM_FIRST), "SoftmaxInt", limits=ROWS),
            **rows(Lstm(PLAIN, Table.ARCS, from_zero=True, form=LstmForm.Q27), "LSTMInt", limits=RecurrentLimits()),
            **rows(Gru(PLAIN, Table.ARCS, from_zero=True, form=GruForm.HALVED), "GRUInt", limits=RecurrentLimits(),
                   right=False),
            **norm(),
        }
    ),
    also=ALSO,
    single_sample=True,
    exponents=EXPONENTS,
    shared_memory=384 * 1024,
    external_memory=8 * 1024 * 1024,
    packer="tpacker -g {model} -p arcs -o {stem}.pkg",
    packer_args=MappingProxyType(LATER_ARGS),
    node_attributes=MappingProxyType(
        {
            "": MappingProxyType({"platform": "arcs", "platform_quant": "luna_quant", "quant_mode": "floor_add"}),
            **LATER_MODES,
        }
    ),
    faults=(*LATER_FAULTS, Fault.TANH, Fault.LOG_SOFTMAX),
    training=trained(Table.ARCS),
)  # fmt: skip
