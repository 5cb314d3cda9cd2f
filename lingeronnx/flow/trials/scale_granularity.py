"""Finer scales, where the target has them and the usual ones are far off.

For each channel of a weight, of any number.
One scale for all channels holds those badly whose weights are small beside the largest: of
pointwise layers behind depthwise ones, of channels that batch normalization was folded into.
Equalization moves such ranges to the layer in front, where it can. And a power of two leaves up to
half of the integers unused. Where an output is still far from the float model's, the graph is also
made with a scale of any number for each channel, and kept where that is clearly nearer. A user who
names `mode` or `weight_scales` gets what is named. Chips have neither.
"""

from __future__ import annotations

from ...errors import ConstraintError
from ...run.data import Progress
from ..planning.calibration import calibrate_model
from ..planning.refinement import refine_weights
from ..planning.scale_assignment import assign_scales
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate, build_candidate
from .evidence import has_decisive_samples, mean_sqnr_gain_db, output_sqnr_levels
from .stage_ablation import drop_harmful_stages
from .verdict_log import log_verdict

__all__ = ["try_finer_granularity"]

#: What a setting gives.
_SETTING_TEXTS = {
    "weight_scales": "weights have a scale for each output channel",
    "mode": "scales are any numbers",
}

_MAX_SQNR_DB = 25.0  # dB of an output, or a part of one: below that it is tried
_MIN_GAIN_DB = 1.0  # dB on average: less is no reason for another form of scales


def try_finer_granularity(
    candidate: Candidate, progress: Progress | None = None
) -> Candidate | None:
    """Return the model of `candidate` with finer scales where these bring its outputs clearly nearer, else None.

    Stages are judged in it as well. Plans, scales and overrides that were given stay.
    """
    prepared, planned = candidate.prepared, candidate.planned
    settings = _finer_settings(prepared)
    named = (
        bool(prepared.conf.overrides) or planned.basis.policy is None or prepared.read is not None
    )
    if (
        not settings
        or named
        or not has_decisive_samples(candidate)
        or min(output_sqnr_levels(candidate), default=_MAX_SQNR_DB) >= _MAX_SQNR_DB
    ):
        return None
    if progress is not None:
        progress("finer scales", 0, None)
    other = prepared.with_settings(settings)
    try:
        replanned = assign_scales(other, calibrate_model(other, None, planned.calibration))
        first = build_candidate(
            other, replanned, refine_weights(replanned, progress=progress), progress
        )
        finer = drop_harmful_stages(first, progress)
    except ConstraintError:  # with require_chip
        return None
    gain = mean_sqnr_gain_db(candidate, finer)
    accepted = gain >= _MIN_GAIN_DB
    if not log_verdict(
        "granularity", accepted, criterion={"mean_db": _MIN_GAIN_DB}, measured={"gain_db": gain}
    ):
        return None
    what = " and ".join(_SETTING_TEXTS[name] for name in settings)
    usual = " ".join(
        f"--{name.replace('_', '-')} {getattr(prepared.conf, name)}" for name in settings
    )
    note = (
        f"{what}: that brings the outputs {gain:.1f} dB nearer to the float model's "
        f"{finer.fidelity.measured_on}; "
        f"the usual scales: {usual}"
    )
    return finer.with_notes([note])


def _finer_settings(prepared: PreparedModel) -> dict[str, str]:
    """Return the settings that make scales finer, of those that the user did not name."""
    target, conf, named = prepared.target, prepared.conf, prepared.conf.model_fields_set
    settings = {}
    if (
        "channel" in target.weight_scales
        and "weight_scales" not in named
        and conf.weight_scales == "tensor"
    ):
        settings["weight_scales"] = "channel"
    if "max-value" in target.modes and "mode" not in named and conf.mode == "q-value":
        settings["mode"] = "max-value"
    return settings
