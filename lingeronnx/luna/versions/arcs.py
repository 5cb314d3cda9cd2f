"""Changes of the versions of packer and executor on arcs, each against the version before it."""

from __future__ import annotations

from ...targets.arithmetic import (
    ActivationTable,
    GruArithmetic,
    GruVariant,
    LstmArithmetic,
    LstmFormat,
)
from ..common import NO_LEFT_SHIFT
from ..faults import LunaFault
from .delta import READ_ONLY, VersionDelta

__all__ = ["DELTAS"]

_GRU = GruArithmetic(NO_LEFT_SHIFT, ActivationTable.ARCS, form=GruVariant.RESET_BEFORE)
_LSTM = LstmArithmetic(
    NO_LEFT_SHIFT, ActivationTable.ARCS, form=LstmFormat.Q27, follows_batch_first=True
)

DELTAS = (
    VersionDelta(version="3.0.5", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.6", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.7",
        unmeasured=READ_ONLY,
        fixed_faults=(LunaFault.ADD_EXTERNAL,),
        packing={"left_shifted_sums": ("iqAdd",)},
    ),
    VersionDelta(version="3.0.8"),
    VersionDelta(
        version="3.0.9",
        arithmetic={"GRUInt": _GRU},
        fixed_faults=(LunaFault.GRU_FORMAT,),
        new_faults=(LunaFault.GRU_OTHER, LunaFault.GRU_STATE, LunaFault.GRU_NEEDS_STATE),
        packing={"follow_batch_first": ("GRUInt",), "work_areas": {"GRUInt": "gru"}},
    ),
    VersionDelta(
        version="3.0.10", packing={"conv": {"supports_groups_1d": True}, "refuses_lut_widths": True}
    ),
    VersionDelta(version="2026-08-20", arithmetic={"LSTMInt": _LSTM}, unmeasured=READ_ONLY),
)
