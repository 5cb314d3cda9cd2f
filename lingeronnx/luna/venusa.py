"""Target description of venusA."""

from __future__ import annotations

from types import MappingProxyType

from ..targets._target import Target, make_support_rows
from ..targets.arithmetic import (
    ActivationTable,
    DivArithmetic,
    DivisionMethod,
    GluArithmetic,
    GruArithmetic,
    GruVariant,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    SoftmaxArithmetic,
    SoftmaxDivision,
    TableInputRule,
)
from ..targets.limits import RecurrentLimits, SigmoidLimits
from . import packer_profile
from .common import (
    ARCS_VENUSA_ATTRIBUTES,
    ARCS_VENUSA_FAULTS,
    EXECUTOR_VERSION,
    LEFT_SHIFT,
    NO_LEFT_SHIFT,
    SCALE_EXPONENT_RANGE,
    SIMULATED_ONLY_OPS,
    SOFTMAX_LIMITS,
    ZERO_ON_LEFT_SHIFT,
    make_add_ops,
    make_average_pool_ops,
    make_common_ops,
    make_layer_norm_ops,
    make_layer_ops,
)
from .faults import LunaFault, build_unsupported_reasons
from .training_arithmetic import make_training_arithmetic
from .vendor import LunaVendor

__all__ = ["VENUSA"]

FAULTS = (
    *ARCS_VENUSA_FAULTS,
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
    executor=EXECUTOR_VERSION,
    title="LISTENAI venusA (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **make_common_ops(packer_profile.VENUSA, zeroes_larger_scales=True),
            **make_layer_ops(ZERO_ON_LEFT_SHIFT, packer_profile.VENUSA),
            **make_add_ops(LEFT_SHIFT, can_shift_either=False),
            **make_average_pool_ops(packer_profile.VENUSA),
            **make_support_rows(
                DivArithmetic(NO_LEFT_SHIFT, DivisionMethod.UNSCALED), "iqDiv", miscompiled=True
            ),
            **make_support_rows(GluArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUSA), "GluInt"),
            **make_support_rows(
                LutArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUSA, TableInputRule.ALWAYS_ZERO),
                "iqSigmoid",
                miscompiled=True,
                limits=SigmoidLimits(ranks=(2, 3), max_length=128, work_bytes_per_element=14),
            ),
            **make_support_rows(
                SoftmaxArithmetic(NO_LEFT_SHIFT, SoftmaxDivision.FUSED),
                "SoftmaxInt",
                "LogSoftmaxInt",
                limits=SOFTMAX_LIMITS,
            ),
            **make_support_rows(
                LstmArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.VENUSA, from_zero=True, form=LstmFormat.Q27
                ),
                "LSTMInt",
                limits=RecurrentLimits(),
            ),
            **make_support_rows(
                GruArithmetic(
                    NO_LEFT_SHIFT,
                    ActivationTable.VENUSA,
                    from_zero=True,
                    form=GruVariant.HALVED_NOT_IN_GATES,
                ),
                "GRUInt",
                limits=RecurrentLimits(),
                miscompiled=True,
            ),
            **make_layer_norm_ops(),
        }
    ),
    also=SIMULATED_ONLY_OPS,
    single_sample=True,
    out_bits=(8, 32),
    exponents=SCALE_EXPONENT_RANGE,
    shared_memory=384 * 1024,
    external_memory=8 * 1024 * 1024,
    node_attributes=MappingProxyType(
        {
            "": MappingProxyType(
                {"platform": "venusA", "platform_quant": "luna_quant", "quant_mode": "floor_add"}
            ),
            **ARCS_VENUSA_ATTRIBUTES,
        }
    ),
    faults=FAULTS,
    why=build_unsupported_reasons(FAULTS),
    vendor=LunaVendor(packer_profile.VENUSA),
    training=make_training_arithmetic(
        ActivationTable.VENUSA, ("iqSigmoid", "iqTanh", "QGelu", "QSwish")
    ),
)
