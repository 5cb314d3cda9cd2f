"""Changes of the versions of packer and executor on venus, each against the version before it."""

from __future__ import annotations

from dataclasses import replace

from ...targets.arithmetic import (
    ActivationTable,
    Arithmetic,
    DivArithmetic,
    GluArithmetic,
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
from ...targets.limits import RecurrentLimits
from ..common import NO_LEFT_SHIFT
from ..faults import LunaFault
from ..packer_profile import VENUS
from .delta import (
    COMMON_REFUSALS,
    OPTIONAL_ATTRIBUTES,
    READ_ONLY,
    VersionDelta,
    list_other_operators,
)

__all__ = ["DELTAS"]

_GRU = GruArithmetic(
    NO_LEFT_SHIFT, ActivationTable.VENUS, from_zero=True, form=GruVariant.CANDIDATE_WEIGHTED
)
_LSTM = LstmArithmetic(
    NO_LEFT_SHIFT,
    ActivationTable.VENUS,
    from_zero=True,
    form=LstmFormat.Q15_CLIPPED_CELL,
    follows_batch_first=True,
)
_SIGMOID = LutArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUS, TableInputRule.SATURATED)

#: Faults that the text of 2026-08-20 no longer has, and what it packs and refuses.
_NEWEST_FIXED_FAULTS = (
    LunaFault.CLIP,
    LunaFault.PRELU,
    LunaFault.SUB_PLACEMENT,
    LunaFault.NORM_PLACEMENT,
    LunaFault.NORM_AREA,
    LunaFault.NORM_SHORT,
    LunaFault.NORM_RANK,
    LunaFault.PAD_MODES,
    LunaFault.LSTM_CELL,
    LunaFault.GRU_STATE,
    LunaFault.GRU_FIRST_STATE,
    LunaFault.TANH_SCALE,
)
_NEWEST_PACKING = {
    "operators": (*VENUS.operators, "BatchNorm1dInt", "Clip", "PRelu"),
    "unwritten_operators": ("BatchNorm1dInt", "Clip", "PRelu", "GluInt", "iqDiv"),
    "accepts_any_platform_case": True,
    "optional_attributes": OPTIONAL_ATTRIBUTES,
    "min_layer_norm_length": 1,
    "layer_norm_weight_bytes": 0,
    "supports_2d_layer_norm": False,
    "overruns": {"LayerNormInt": "none"},
    "work_areas": {"LayerNormInt": "layer norm venus Q15", "BatchNorm1dInt": "batch norm 1d"},
    "refusals": (
        *COMMON_REFUSALS,
        "norm rank",
        "norm parameter_bits",
        "gru input size",
        "glu one row",
        "no dilation 1d",
        "average kernel 5",
        "average psram",
        "average scale",
        "concat psram",
        "output bits 8",
        "linear weight bits",
        "tanh scale",
    ),
}

DELTAS = (
    VersionDelta(version="3.0.5", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.6",
        arithmetic={
            "iqSigmoid": _SIGMOID,
        },
        unmeasured=READ_ONLY,
        fixed_faults=(LunaFault.LUT_SCALE,),
        new_faults=(LunaFault.TANH_SCALE,),
        packing={"work_areas": {"iqSigmoid": "curve Q11"}},
    ),
    VersionDelta(version="3.0.7", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.8", packing={"unmeasured_plans": list_other_operators(VENUS, measured=())}
    ),
    VersionDelta(version="3.0.9", packing={"refused_quant_modes": ("floor_add",)}),
    VersionDelta(
        version="3.0.10",
        arithmetic={"GRUInt": _GRU, "LSTMInt": _LSTM},
        ops={"LSTMInt": {"limits": RecurrentLimits()}},
        fixed_faults=(LunaFault.LSTM_SQUARE, LunaFault.LSTM_AREA, LunaFault.GRU_HALVED),
        new_faults=(
            LunaFault.LSTM_CELL,
            LunaFault.GRU_OTHER,
            LunaFault.GRU_STATE,
            LunaFault.GRU_FIRST_STATE,
        ),
        packing={
            "refused_quant_modes": (),
            "unmeasured_plans": (),
            "follow_batch_first": ("LSTMInt", "GRUInt"),
            "overruns": {"LSTMInt": "none"},
            "work_areas": {"GRUInt": "gru venus"},
            "refusals": ("gru sequence size",),
            "conv": {"adds_padding_to_other_axis": False},
        },
    ),
    VersionDelta(
        version="2026-08-20",
        arithmetic={
            "LayerNormInt": LayerNormArithmetic(NO_LEFT_SHIFT, factor_bits=16, fraction_bits=15),
            "BatchNorm1dInt": LayerArithmetic(NO_LEFT_SHIFT),
            "GluInt": GluArithmetic(NO_LEFT_SHIFT, ActivationTable.VENUS, gate_bits=8),
            "iqDiv": DivArithmetic(NO_LEFT_SHIFT),
            "Relu": ReluArithmetic(shifts_to_output_scale=True),
            "PRelu": Arithmetic(),
            "GRUInt": replace(_GRU, from_zero=False),
            "LSTMInt": replace(_LSTM, from_zero=False, form=LstmFormat.Q15_WIDE_CELL),
        },
        unmeasured=READ_ONLY,
        fixed_faults=_NEWEST_FIXED_FAULTS,
        packing=_NEWEST_PACKING,
    ),
)
