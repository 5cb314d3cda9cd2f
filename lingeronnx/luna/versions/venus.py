"""Changes of the versions of packer and executor on venus, each against the version before it."""

from __future__ import annotations

from ...targets.limits import RecurrentLimits
from ..faults import LunaFault
from .delta import READ_ONLY, VersionDelta

__all__ = ["DELTAS"]

DELTAS = (
    VersionDelta(version="3.0.5", unmeasured=READ_ONLY),
    VersionDelta(
        version="3.0.6",
        unmeasured=READ_ONLY,
        fixed_faults=(LunaFault.LUT_SCALE,),
        packing={"work_areas": {"iqSigmoid": "curve Q11"}},
    ),
    VersionDelta(version="3.0.7", unmeasured=READ_ONLY),
    VersionDelta(version="3.0.8"),
    VersionDelta(version="3.0.9", packing={"refused_quant_modes": ("floor_add",)}),
    VersionDelta(
        version="3.0.10",
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
            "follow_batch_first": ("LSTMInt", "GRUInt"),
            "overruns": {"LSTMInt": "none"},
            "work_areas": {"GRUInt": "gru venus"},
        },
    ),
    VersionDelta(version="2026-08-20", unmeasured=READ_ONLY),
)
