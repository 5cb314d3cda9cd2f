"""Target description of arcs."""

from __future__ import annotations

from types import MappingProxyType

from ..targets._target import Target, make_support_rows
from ..targets.arithmetic import (
    ActivationTable,
    DivArithmetic,
    GruArithmetic,
    GruVariant,
    LayerArithmetic,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    SoftmaxArithmetic,
    SoftmaxDivision,
    SoftmaxRowRule,
    TableInputRule,
)
from ..targets.limits import RecurrentLimits
from . import kernel_costs, packer_profile
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

__all__ = ["ARCS"]


FAULTS = (
    *ARCS_VENUSA_FAULTS,
    LunaFault.TANH,
    LunaFault.LOG_SOFTMAX,
    LunaFault.AVGPOOL_STRIDE,
)

ARCS = Target(
    name="arcs",
    executor=EXECUTOR_VERSION,
    title="LISTENAI arcs (LUNA NPU)",
    modes=("q-value",),
    bits=(8,),
    ops=MappingProxyType(
        {
            **make_common_ops(packer_profile.ARCS),
            **make_layer_ops(ZERO_ON_LEFT_SHIFT, packer_profile.ARCS),
            **make_add_ops(LEFT_SHIFT, can_shift_either=False),
            **make_average_pool_ops(packer_profile.ARCS),
            **make_support_rows(LayerArithmetic(ZERO_ON_LEFT_SHIFT), "Conv1dInt"),
            **make_support_rows(DivArithmetic(NO_LEFT_SHIFT), "iqDiv"),
            **make_support_rows(
                LutArithmetic(NO_LEFT_SHIFT, ActivationTable.ARCS, TableInputRule.SATURATED),
                "iqSigmoid",
            ),
            **make_support_rows(
                SoftmaxArithmetic(NO_LEFT_SHIFT, SoftmaxDivision.DIVIDE, SoftmaxRowRule.FROM_FIRST),
                "SoftmaxInt",
                limits=SOFTMAX_LIMITS,
            ),
            **make_support_rows(
                LstmArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.ARCS, from_zero=True, form=LstmFormat.Q27
                ),
                "LSTMInt",
                limits=RecurrentLimits(),
            ),
            **make_support_rows(
                GruArithmetic(
                    NO_LEFT_SHIFT, ActivationTable.ARCS, from_zero=True, form=GruVariant.HALVED
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
                {"platform": "arcs", "platform_quant": "luna_quant", "quant_mode": "floor_add"}
            ),
            **ARCS_VENUSA_ATTRIBUTES,
        }
    ),
    faults=FAULTS,
    why=build_unsupported_reasons(FAULTS),
    vendor=LunaVendor(packer_profile.ARCS, kernel_costs.ARCS),
    training=make_training_arithmetic(ActivationTable.ARCS),
)
