"""Changes of the versions of packer and executor on venusA, each against the version before it."""

from __future__ import annotations

from dataclasses import replace

from ...targets._target import OperatorSupport
from ...targets.arithmetic import (
    ActivationTable,
    Arithmetic,
    AverageDivisor,
    AveragePoolArithmetic,
    ConcatArithmetic,
    DivArithmetic,
    GruArithmetic,
    GruVariant,
    LayerArithmetic,
    LayerNormArithmetic,
    LstmArithmetic,
    LstmFormat,
    LutArithmetic,
    ReluArithmetic,
    TableInputRule,
)
from ...targets.limits import TransposeLimits
from ..common import LEFT_SHIFT, NO_LEFT_SHIFT, REJECT_LEFT_SHIFT, ZERO_ON_LEFT_SHIFT
from ..faults import LunaFault
from ..packer_profile import VENUSA, AverageRescale
from .delta import (
    COMMON_REFUSALS,
    OPTIONAL_ATTRIBUTES,
    READ_ONLY,
    VersionDelta,
    list_other_operators,
)

__all__ = ["DELTAS"]

_GRU = GruArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUSA, form=GruVariant.RESET_AFTER)
_LSTM = LstmArithmetic(
    NO_LEFT_SHIFT,
    ActivationTable.VENUSA,
    from_zero=True,
    form=LstmFormat.Q27,
    follows_batch_first=True,
)
_CURVE = LutArithmetic(
    NO_LEFT_SHIFT, ActivationTable.VENUSA, TableInputRule.SATURATED, rounds_twice=True
)
_FUNCTION = LutArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUSA, uses_node_format=True)

#: Operators whose planned bytes were measured with the packer of 3.0.8.
_MEASURED_IN_308 = ("Quant", "Dequant", "Reshape", "iqAdd", "iqCat", "LinearInt")

#: Faults that the text of 2026-08-20 no longer has, and what it packs and refuses.
_NEWEST_FIXED_FAULTS = (
    LunaFault.CLIP,
    LunaFault.PRELU,
    LunaFault.TANH,
    LunaFault.DIV_STOPS,
    LunaFault.SUB_PLACEMENT,
    LunaFault.NORM_PLACEMENT,
    LunaFault.NORM_AREA,
    LunaFault.NORM_RANK,
    LunaFault.GRU_STATE,
)
#: (data_bits, parameter_bits, o_bits) of a LinearInt that 3.0.10 computes, besides int8 by int8.
_WIDE_LINEAR = ((32, 32, 32), (32, 32, 8), (8, 32, 32))
_LATER_OPERATORS = ("QGelu", "QSwish", "BatchNorm1dInt")
_NEWEST_OPERATORS = (*_LATER_OPERATORS, "Clip", "PRelu", "Relux")
_NEWEST_PACKING = {
    "operators": (*VENUSA.operators, *_NEWEST_OPERATORS),
    "unwritten_operators": (*_NEWEST_OPERATORS, "iqTanh"),
    "lut_input_bits": {"iqSigmoid": 0, "iqTanh": 32},
    "accepts_any_platform_case": True,
    "optional_attributes": OPTIONAL_ATTRIBUTES,
    "wide_linear": (*_WIDE_LINEAR, (16, 16, 8), (16, 16, 16), (16, 16, 32)),
    "conv": {"max_kernel": 12, "max_kernel_dilated": 5},
    "overruns": {"LayerNormInt": "none"},
    "work_areas": {"LayerNormInt": "layer norm venusA Q15", "iqTanh": "curve Q27"},
    "refusals": (
        *COMMON_REFUSALS,
        "norm rank",
        "norm psram",
        "gru state input",
        "average kernel 7",
        "output bits 8",
        "gelu psram",
        "gelu scales",
        "one sample 1d",
        "no dilation 1d",
        "wide tanh scale",
    ),
}

DELTAS = (
    VersionDelta(
        version="3.0.5",
        unmeasured=READ_ONLY,
        ops={"Transpose": {"limits": TransposeLimits(max_rank=4, max_bytes=65536)}},
        fixed_faults=(LunaFault.TRANSPOSE,),
        packing={"transpose": {"crashing_perms": ()}},
    ),
    VersionDelta(
        version="3.0.6",
        arithmetic={"LSTMInt": _LSTM},
        unmeasured=READ_ONLY,
        packing={"follow_batch_first": ("LSTMInt",)},
        node_attributes={"LSTMInt": {"batch_first": 1}},
    ),
    VersionDelta(version="3.0.7", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.8",
        ops={"iqMul": {"miscompiled": True}},
        fixed_faults=(LunaFault.LINEAR_ROWS, LunaFault.DIV_SCALE),
        new_faults=(LunaFault.MUL_STOPS, LunaFault.DIV_STOPS, LunaFault.NORM_SHARED),
        packing={
            "unmeasured_plans": list_other_operators(VENUSA, measured=_MEASURED_IN_308),
            "multirow_linear_needs_psram": False,
            "linear_output_bits": (8, 16, 32),
            "work_areas": {"LinearInt": "input or output"},
        },
    ),
    VersionDelta(
        version="3.0.9",
        arithmetic={
            "iqSigmoid": _CURVE,
            "QGelu": _FUNCTION,
            "QSwish": _FUNCTION,
            "iqCat": ConcatArithmetic(LEFT_SHIFT),
            "AvgPool2dInt": AveragePoolArithmetic(NO_LEFT_SHIFT, AverageDivisor.SCALED_AREA),
            "LinearInt": LayerArithmetic(REJECT_LEFT_SHIFT, supports_int32=True),
            "GRUInt": _GRU,
        },
        ops={
            "iqMul": {"miscompiled": False},
            "iqSigmoid": {"miscompiled": False},
            "Conv1dInt": OperatorSupport(LayerArithmetic(NO_LEFT_SHIFT)),
        },
        fixed_faults=(
            LunaFault.MUL_STOPS,
            LunaFault.CAT_SCALE,
            LunaFault.CONV1D,
            LunaFault.LUT_CONSTANT,
            LunaFault.GRU_FORMAT,
        ),
        new_faults=(LunaFault.CONV1D_DEPTHWISE, LunaFault.GRU_STATE),
        packing={
            "operators": (*VENUSA.operators, "QGelu", "QSwish"),
            "unwritten_operators": ("QGelu", "QSwish"),
            "unverified_operators": (),
            "unmeasured_plans": list_other_operators(VENUSA, measured=()),
            "lut_input_bits": dict.fromkeys(("iqSigmoid", "QGelu", "QSwish"), 8),
            "refuses_lut_widths": True,
            "pool": {"correct_rescales": (AverageRescale.SHIFTED,)},
            "wide_linear": ((32, 32, 32),),
            "follow_batch_first": ("LSTMInt", "GRUInt"),
            "work_areas": {
                "Conv1dInt": "unaligned channels",
                "GRUInt": "gru",
                **dict.fromkeys(("iqSigmoid", "QGelu", "QSwish"), "curve Q27"),
            },
        },
    ),
    VersionDelta(
        version="3.0.10",
        arithmetic={
            "LayerNormInt": LayerNormArithmetic(NO_LEFT_SHIFT, fraction_bits=15),
            "BatchNorm1dInt": LayerArithmetic(ZERO_ON_LEFT_SHIFT),
        },
        fixed_faults=(
            LunaFault.ADD_EXTERNAL,
            LunaFault.CONV1D_DEPTHWISE,
            LunaFault.LINEAR_AREA,
            LunaFault.LSTM_STATE,
            LunaFault.NORM_SHARED,
            LunaFault.SOFTMAX_AREA,
        ),
        new_faults=(LunaFault.AVGPOOL_LARGE,),
        packing={
            "operators": (*VENUSA.operators, *_LATER_OPERATORS),
            "unwritten_operators": _LATER_OPERATORS,
            "has_32bit_lstm_state": False,
            # Their work areas changed, and were measured for small tensors only.
            "unmeasured_plans": ("iqAdd", "iqCat"),
            "left_shifted_sums": ("iqAdd",),
            "wide_linear": _WIDE_LINEAR,
            "conv": {"adds_padding_to_other_axis": False},
            "overruns": {
                **dict.fromkeys(("LinearInt", "SoftmaxInt"), "none"),
                "LayerNormInt": "layer norm Q15",
            },
            "work_areas": {"BatchNorm1dInt": "batch norm 1d"},
        },
    ),
    VersionDelta(
        version="2026-08-20",
        arithmetic={
            **dict.fromkeys(("iqSigmoid", "iqTanh"), replace(_CURVE, supports_int32=True)),
            "iqDiv": DivArithmetic(NO_LEFT_SHIFT),
            "Relu": ReluArithmetic(shifts_to_output_scale=True),
            "PRelu": Arithmetic(),
            "Relux": Arithmetic(),
            "LSTMInt": replace(_LSTM, from_zero=False),
        },
        unmeasured=READ_ONLY,
        fixed_faults=_NEWEST_FIXED_FAULTS,
        packing=_NEWEST_PACKING,
    ),
)
