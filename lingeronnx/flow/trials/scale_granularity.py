"""Try finer scale granularity if outputs are far from float and the target supports it.

A single scale for all channels is too coarse for channels whose weights are small beside the
largest: of pointwise layers after depthwise ones, or of channels with folded batch normalization.
Equalization moves such ranges to the layer before, where it can. And a power-of-two scale leaves up
to half of the integers unused. So if an output is still far from the float model's, the graph is
also built with arbitrary scales per channel, and kept if that is clearly better. Settings `mode`
and `weight_scales` of the user are respected. No chip supports either.
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

#: Description of each setting for the note.
_SETTING_TEXTS = {
    "weight_scales": "one weight scale per output channel",
    "mode": "scales that are not powers of two",
}

_MAX_SQNR_DB = 25.0  # tried only if an output or a part of one is below that
_MIN_GAIN_DB = 1.0  # minimum mean gain that justifies another scale granularity


def try_finer_granularity(
    candidate: Candidate, progress: Progress | None = None
) -> Candidate | None:
    """Rebuild the model with finer scale granularity, and return it if the outputs clearly improve.

    Returns None otherwise: if the mean gain is below `_MIN_GAIN_DB`, if no finer setting is left
    (`_finer_settings`), for models with a given plan, imported scales or overrides, and if the new
    model violates `require_chip`. Harmful stages are dropped from the new model as well
    (`drop_harmful_stages`). The result has a note on the gain.
    """
    prepared, planned = candidate.prepared, candidate.planned
    settings = _finer_settings(prepared)
    if not settings or not _is_applicable(candidate):
        return None
    if progress is not None:
        progress("finer scales", 0, None)
    reconfigured = prepared.with_settings(settings)
    try:
        calibration = calibrate_model(reconfigured, None, planned.calibration)
        replanned = assign_scales(reconfigured, calibration)
        refined_graph = refine_weights(replanned, progress=progress)
        rebuilt = build_candidate(replanned, refined_graph, progress)
        finer = drop_harmful_stages(rebuilt, progress)
    except ConstraintError:  # with require_chip
        return None
    gain_db = mean_sqnr_gain_db(candidate, finer)
    accepted = gain_db >= _MIN_GAIN_DB
    criterion = {"mean_db": _MIN_GAIN_DB}
    if not log_verdict("granularity", accepted, criterion=criterion, measured={"gain_db": gain_db}):
        return None
    description = " and ".join(_SETTING_TEXTS[name] for name in settings)
    options = [f"--{name.replace('_', '-')} {getattr(prepared.conf, name)}" for name in settings]
    note = (
        f"using {description}: outputs {gain_db:.1f} dB closer to the float model's "
        f"{finer.fidelity.measured_on}; to keep the default scales, pass {' '.join(options)}"
    )
    return finer.with_notes([note])


def _is_applicable(candidate: Candidate) -> bool:
    """Whether scales may change, samples can decide, and an output is below `_MAX_SQNR_DB`.

    Scales may not change with overrides, imported scales or a given plan.
    """
    prepared = candidate.prepared
    if prepared.conf.overrides or prepared.read is not None:
        return False
    if candidate.planned.basis.policy is None or not has_decisive_samples(candidate):
        return False
    return min(output_sqnr_levels(candidate), default=_MAX_SQNR_DB) < _MAX_SQNR_DB


def _finer_settings(prepared: PreparedModel) -> dict[str, str]:
    """Return {setting: value} of finer scales that the target supports and the user did not set.

    They are per-channel weight scales in place of one per tensor, and mode "max-value".
    """
    target, conf, user_set = prepared.target, prepared.conf, prepared.conf.model_fields_set
    settings = {}
    if (
        "channel" in target.weight_scales
        and "weight_scales" not in user_set
        and conf.weight_scales == "tensor"
    ):
        settings["weight_scales"] = "channel"
    if "max-value" in target.modes and "mode" not in user_set and conf.mode == "q-value":
        settings["mode"] = "max-value"
    return settings
