"""Changes of the versions of packer and executor on arcs, each against the version before it."""

from __future__ import annotations

from ...targets.arithmetic import (
    ActivationTable,
    Arithmetic,
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
from ..common import NO_LEFT_SHIFT, ZERO_ON_LEFT_SHIFT
from ..faults import LunaFault
from ..packer_profile import ARCS
from .delta import (
    COMMON_REFUSALS,
    OPTIONAL_ATTRIBUTES,
    READ_ONLY,
    VersionDelta,
    list_other_operators,
)

__all__ = ["DELTAS"]

_GRU = GruArithmetic(NO_LEFT_SHIFT, ActivationTable.ARCS, form=GruVariant.RESET_BEFORE)
_LSTM = LstmArithmetic(
    NO_LEFT_SHIFT, ActivationTable.ARCS, form=LstmFormat.Q27, follows_batch_first=True
)
_CURVE = LutArithmetic(
    NO_LEFT_SHIFT, ActivationTable.ARCS, TableInputRule.SATURATED, supports_int32=True
)

#: Operators whose planned bytes were measured with the packer of 3.0.8.
_MEASURED_IN_308 = ("Quant", "Dequant", "Reshape", "iqAdd")

#: Faults that the text of 2026-08-20 no longer has, and what it packs and refuses.
_NEWEST_FIXED_FAULTS = (
    LunaFault.CLIP,
    LunaFault.PRELU,
    LunaFault.TANH,
    LunaFault.SUB_PLACEMENT,
    LunaFault.NORM_PLACEMENT,
    LunaFault.NORM_AREA,
    LunaFault.GRU_STATE,
)
_NEWEST_PACKING = {
    "operators": (*ARCS.operators, "BatchNorm1dInt", "Clip", "PRelu", "Relux"),
    "unwritten_operators": ("BatchNorm1dInt", "Clip", "PRelu", "Relux", "iqTanh", "GluInt"),
    "lut_input_bits": {"iqSigmoid": 0, "iqTanh": 32},
    "conv": {"max_kernel": 12, "max_kernel_dilated": 5},
    "follow_batch_first": ("LSTMInt", "GRUInt"),
    "accepts_any_platform_case": True,
    "optional_attributes": OPTIONAL_ATTRIBUTES,
    "overruns": {"LayerNormInt": "none"},
    "work_areas": {
        "LayerNormInt": "layer norm arcs Q15",
        "BatchNorm1dInt": "batch norm 1d",
        "iqTanh": "curve Q27",
    },
    "refusals": (
        *COMMON_REFUSALS,
        "gru state input",
        "average kernel 7",
        "max pool psram",
        "output bits 8 or 32",
        "one sample 1d",
        "no dilation 1d",
        "wide tanh scale",
        "int4 linear width",
        "requant widening",
    ),
}

DELTAS = (
    VersionDelta(version="3.0.5", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.6", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.7",
        unmeasured=READ_ONLY,
        fixed_faults=(LunaFault.ADD_EXTERNAL,),
        packing={"left_shifted_sums": ("iqAdd",)},
    ),
    VersionDelta(
        version="3.0.8",
        packing={"unmeasured_plans": list_other_operators(ARCS, measured=_MEASURED_IN_308)},
    ),
    VersionDelta(
        version="3.0.9",
        arithmetic={"GRUInt": _GRU},
        fixed_faults=(LunaFault.GRU_FORMAT,),
        new_faults=(LunaFault.GRU_OTHER, LunaFault.GRU_STATE, LunaFault.GRU_NEEDS_STATE),
        packing={
            "follow_batch_first": ("GRUInt",),
            "work_areas": {"GRUInt": "gru"},
            "unmeasured_plans": list_other_operators(ARCS, measured=()),
        },
    ),
    VersionDelta(
        version="3.0.10",
        packing={
            "conv": {"supports_groups_1d": True, "adds_padding_to_other_axis": False},
            "refuses_lut_widths": True,
            "unmeasured_plans": (),
        },
    ),
    VersionDelta(
        version="2026-08-20",
        arithmetic={
            "LayerNormInt": LayerNormArithmetic(NO_LEFT_SHIFT, fraction_bits=15),
            "iqSigmoid": _CURVE,
            "iqTanh": _CURVE,
            "BatchNorm1dInt": LayerArithmetic(ZERO_ON_LEFT_SHIFT),
            "GluInt": GluArithmetic(NO_LEFT_SHIFT, ActivationTable.ARCS, gate_bits=32),
            "Relu": ReluArithmetic(shifts_to_output_scale=True),
            "PRelu": Arithmetic(),
            "Relux": Arithmetic(),
            "LSTMInt": _LSTM,
        },
        unmeasured=READ_ONLY,
        fixed_faults=_NEWEST_FIXED_FAULTS,
        new_faults=(LunaFault.SIGMOID_WIDE,),
        packing=_NEWEST_PACKING,
    ),
)
