"""Target description of venus."""

from __future__ import annotations

from types import MappingProxyType

from ..targets._target import Target, make_support_rows
from ..targets.arithmetic import (
    ActivationTable,
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    GruArithmetic,
    GruVariant,
    LayerArithmetic,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    PadArithmetic,
    SoftmaxArithmetic,
    SoftmaxDivision,
    TableInputRule,
)
from ..targets.limits import PadLimits, RecurrentLimits
from . import packer_profile
from .common import (
    ADD_MODE_ATTRIBUTES,
    COMMON_FAULTS,
    EXECUTOR_VERSION,
    NO_LEFT_SHIFT,
    REJECT_LEFT_SHIFT,
    SCALE_EXPONENT_RANGE,
    SIMULATED_ONLY_OPS,
    SOFTMAX_LIMITS,
    make_add_ops,
    make_common_ops,
    make_layer_norm_ops,
    make_layer_ops,
)
from .faults import LunaFault, build_unsupported_reasons
from .training_arithmetic import make_training_arithmetic
from .vendor import LunaVendor

__all__ = ["VENUS"]


FAULTS = (
    *COMMON_FAULTS,
    LunaFault.AVGPOOL_AREA,
    LunaFault.AVGPOOL_CHANNELS,
    LunaFault.LSTM_SQUARE,
    LunaFault.LSTM_AREA,
    LunaFault.NORM_SHORT,
    LunaFault.PAD_READERS,
    LunaFault.PAD_BYTES,
    LunaFault.PRE_PAD,
    LunaFault.GRU_HALVED,
    LunaFault.DEPTHWISE_MULTIPLIER,
    LunaFault.SOFTMAX,
    LunaFault.LUT_SCALE,
    LunaFault.PAD_MODES,
)

VENUS = Target(
    name="venus",
    executor=EXECUTOR_VERSION,
    title="LISTENAI venus (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **make_common_ops(packer_profile.VENUS),
            **make_layer_ops(NO_LEFT_SHIFT, packer_profile.VENUS),
            **make_support_rows(LayerArithmetic(NO_LEFT_SHIFT), "Conv1dInt"),
            **make_add_ops(REJECT_LEFT_SHIFT, can_shift_either=True),
            **make_support_rows(
                AveragePoolArithmetic(NO_LEFT_SHIFT, AverageDivisor.INT8_AREA),
                "AvgPool2dInt",
                limits=packer_profile.VENUS.pool,
            ),
            **make_support_rows(
                PadArithmetic(NO_LEFT_SHIFT, swapped=True),
                "iqPad",
                limits=PadLimits(rank=4, modes=("constant",)),
            ),
            **make_support_rows(
                LutArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.VENUS, TableInputRule.RIGHT_SHIFT_ONLY
                ),
                "iqSigmoid",
                "iqTanh",
            ),
            **make_support_rows(
                SoftmaxArithmetic(NO_LEFT_SHIFT, SoftmaxDivision.NEWTON),
                "SoftmaxInt",
                limits=SOFTMAX_LIMITS,
                miscompiled=True,
            ),
            **make_support_rows(
                LstmArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.VENUS, from_zero=True, form=LstmFormat.Q11
                ),
                "LSTMInt",
                limits=RecurrentLimits(needs_square_input=True),
            ),
            **make_support_rows(
                GruArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.VENUS, from_zero=True, form=GruVariant.HALVED
                ),
                "GRUInt",
                limits=RecurrentLimits(),
                miscompiled=True,
            ),
            **make_layer_norm_ops(gamma_bits=16, min_length=4),
            **make_support_rows(Arithmetic(), "ShuffleChannel"),
        }
    ),
    also=SIMULATED_ONLY_OPS,
    single_sample=True,
    out_bits=(8, 32),
    curve_bits=(16,),
    exponents=SCALE_EXPONENT_RANGE,
    shared_memory=640 * 1024,
    external_memory=8 * 1024 * 1024,
    node_attributes=MappingProxyType(
        {"": MappingProxyType({"platform_quant": "luna_quant"}), **ADD_MODE_ATTRIBUTES}
    ),
    faults=FAULTS,
    why=build_unsupported_reasons(FAULTS),
    vendor=LunaVendor(packer_profile.VENUS),
    training=make_training_arithmetic(ActivationTable.VENUS),
)
