"""The row of venus."""

from __future__ import annotations

from types import MappingProxyType

from .arithmetic import (
    Arithmetic,
    Average,
    Curve,
    Divisor,
    Gru,
    GruForm,
    Layer,
    Lstm,
    LstmForm,
    Padding,
    Reading,
    Rows,
    Shares,
    Table,
)
from .faults import Fault
from .limits import ConvLimits, PadLimits, PoolLimits, RecurrentLimits, TransposeLimits
from .luna import ALSO, COMMON_FAULTS, EXECUTOR, EXPONENTS, MODES, PLAIN, REFUSE, ROWS, common, layers, norm, sums
from .row import Platform, rows
from .trained import trained

__all__ = ["VENUS"]

_CONV = ConvLimits(
    max_kernel=5,
    max_kernel_dilated=5,
    strides=(1, 2, 4),
    max_pad=4,
    dilations=(1,),
    slab=65536,
    slab_depthwise=32768,
    slab_padded=False,
    memory_depthwise=512 * 1024 - 1,
    channel_align=2,
    depthwise_multiplier=False,
    max_kernel_1d=5,
)
_POOL = PoolLimits(max_kernel=5, max_average_area=127, max_shared_area=64, external_args="--threshold4 1")

VENUS = Platform(
    name="venus",
    executor=EXECUTOR,
    title="LISTENAI venus (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **common(TransposeLimits(max_rank=4)),
            **layers(PLAIN, _CONV, _POOL),
            **rows(Layer(PLAIN), "Conv1dInt", limits=_CONV),
            **sums(REFUSE),
            **rows(Average(PLAIN, Divisor.AREA_IN_A_BYTE), "AvgPool2dInt", limits=_POOL),
            **rows(Padding(PLAIN, swapped=True), "iqPad", limits=PadLimits(rank=4, modes=("constant",))),
            **rows(Curve(PLAIN, Table.VENUS, Reading.RIGHT_ONLY), "iqSigmoid", "iqTanh"),
            **rows(Rows(PLAIN, Shares.NEWTON), "SoftmaxInt", limits=ROWS, right=False),
            **rows(Lstm(PLAIN, Table.VENUS, from_zero=True, form=LstmForm.Q11), "LSTMInt",
                   limits=RecurrentLimits(square=True)),
            **rows(Gru(PLAIN, Table.VENUS, from_zero=True, form=GruForm.HALVED), "GRUInt", limits=RecurrentLimits(),
                   right=False),
            **norm(factor_bits=16),
            **rows(Arithmetic(), "ShuffleChannel"),
        }
    ),
    also=ALSO,
    single_sample=True,
    exponents=EXPONENTS,
    shared_memory=640 * 1024,
    external_memory=8 * 1024 * 1024,
    packer="tpacker -g {model} -p venus -o {stem}.pkg",
    packer_args=MappingProxyType(
        {
            "ConvTranspose2dInt": "-m params:share-mem",
            "iqSub": "--threshold4 1",
            "LSTMInt": "--threshold4 1",
        }
    ),
    node_attributes=MappingProxyType({"": MappingProxyType({"platform_quant": "luna_quant"}), **MODES}),
    faults=(
        *COMMON_FAULTS,
        Fault.AVGPOOL_AREA,
        Fault.LSTM_SQUARE,
        Fault.GRU_HALVED,
        Fault.DEPTHWISE_MULTIPLIER,
        Fault.SOFTMAX,
        Fault.LUT_SCALE,
        Fault.PAD_MODES,
    ),
    training=trained(Table.VENUS),
)  # fmt: skip
