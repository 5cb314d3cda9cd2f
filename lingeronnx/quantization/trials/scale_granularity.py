"""Try finer scale granularity if outputs are far from float and the target supports it.

A single scale for all channels is too coarse for channels whose weights are small beside the
largest: of pointwise layers after depthwise ones, or of channels with folded batch normalization.
Equalization moves such ranges to the layer before, where it can. And a power-of-two scale leaves up
to half of the integers unused, and a range around 0 half of them behind a Relu. So if an output is
still far from the float model's, the graph is also built with arbitrary scales per channel, then
with zero points, and each is kept if it is clearly better. If an output is a Softmax with too few
rows to tell, another one must be far, and the Softmax's input is compared. Settings `mode`,
`weight_scales` and `activations` of the user are respected. No chip supports any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..methods.refine import RefinementOptions
from ..prepare.preparation import PreparedModel
from ..report.candidate import Candidate, build_candidate, build_refined_candidate
from ..run_log import RunLog
from ..steps.calibration import calibrate_model
from ..steps.planned_model import PlannedModel
from ..steps.scale_assignment import assign_scales
from .evidence import (
    Gain,
    find_lowest_decisive_sqnr_db,
    select_comparison,
)
from .requirements import CHOICE_BY_SAMPLES, FREE_SCALES, TrialRequirement, require_low_sqnr
from .stage_ablation import RefinementAblation, StageAblation, TransformAblation
from .trial import Criterion, Proposal, Proposals, run_trial

__all__ = ["FinerGranularity"]

#: Description of each setting for the note.
_SETTING_TEXTS = {
    "weight_scales": "one weight scale per output channel",
    "mode": "scales that are not powers of two",
    "activations": "zero points",
}

_STEPS = (("weight_scales", "mode"), ("activations",))  # settings that are tried together
_MAX_SQNR_DB = 30.0  # tried only if an output or a part of one is below that
_MAX_REFINEMENT_DB = 5.0  # gain of refinement up to which settings are chosen without it


class FinerGranularity:
    """Trial: scales per channel, scales that are not powers of two, zero points, if supported.

    Refinement takes most of the time and rarely changes the choice (of 9 settings on 5 networks,
    those with a gain above 1 dB were the same with and without). So settings are chosen with
    unrefined weights, and the model with the chosen ones is refined and compared with the best. If
    refinement brings more than `_MAX_REFINEMENT_DB`, it is part of each comparison: PP-OCR's text
    recognition, which gains 8 dB, lost 0.6 dB to zero points that gained without it.
    """

    name = "granularity"
    criterion = Criterion(mean_db=1.0)
    requirements = (
        FREE_SCALES,
        CHOICE_BY_SAMPLES,
        require_low_sqnr(_MAX_SQNR_DB),
        TrialRequirement[Candidate](
            "finer scales that the target supports and the user did not exclude",
            lambda best: bool(_finer_settings(best.prepared)),
        ),
    )

    def propose(self, best: Candidate, log: RunLog) -> Proposals[Candidate]:
        """Propose finer scales, then zero points, if outputs are still far from float."""
        log.report_progress("finer scales")
        compare, finer = select_comparison(best), _finer_settings(best.prepared)
        gain_db = find_lowest_decisive_sqnr_db(best) - find_lowest_decisive_sqnr_db(best.unrefined)
        refines_all = gain_db > _MAX_REFINEMENT_DB
        start = current = best if refines_all else best.unrefined
        changed: dict[str, str] = {}
        for names in _STEPS:
            settings = {name: finer[name] for name in names if name in finer}
            if not settings or find_lowest_decisive_sqnr_db(current) >= _MAX_SQNR_DB:
                continue
            build = partial(_rebuild_refined, best.refinement) if refines_all else _rebuild
            verdict = yield Proposal(
                build=partial(build, current.planned, settings, log),
                compare=compare,
                criterion=self.criterion,
                label=", ".join(settings),
                against=current,
            )
            if verdict.accepted:
                current, changed = verdict.best, {**changed, **settings}
        if current is start:
            return None
        verdict = yield Proposal(
            build=lambda: current if refines_all else _refine(best.refinement, current, log),
            compare=compare,
            criterion=self.criterion,
            label=", ".join(changed),
            against=best,
            describe=partial(_describe, best, changed),
        )
        return verdict.best


def _rebuild(planned: PlannedModel, settings: dict[str, str], log: RunLog) -> Candidate:
    """Quantize the model with other settings, without refined weights."""
    replanned = _replan(planned, settings)
    return build_candidate(replanned, replanned.graph, log.progress)


def _rebuild_refined(
    methods: RefinementOptions | None, planned: PlannedModel, settings: dict[str, str], log: RunLog
) -> Candidate:
    """Quantize the model with other settings, without the stages that do harm.

    Weights are refined by `methods`, which were selected under the old settings.
    """
    rebuilt = build_refined_candidate(_replan(planned, settings), log.progress, methods)
    return replace(run_trial(StageAblation(), rebuilt, log), has_judged_stages=True)


def _replan(planned: PlannedModel, settings: dict[str, str]) -> PlannedModel:
    """Plan the model with other settings and the same calibration data."""
    reconfigured = planned.prepared.with_settings(settings)
    calibration = calibrate_model(reconfigured, None, planned.calibration)
    return assign_scales(reconfigured, calibration).with_lasting_notes_of(planned)


def _refine(methods: RefinementOptions | None, unrefined: Candidate, log: RunLog) -> Candidate:
    """Refine the weights of a model, without range transforms or refinement that do harm.

    `methods` were selected under other settings.
    """
    planned = run_trial(TransformAblation(), unrefined, log).planned
    refined = build_refined_candidate(planned, log.progress, methods)
    judged = run_trial(RefinementAblation(), refined, log)
    return replace(judged, has_judged_stages=True)


def _describe(
    start: Candidate, settings: Mapping[str, str], finer: Candidate, _: Gain
) -> Candidate:
    """Return `finer` with a note on its gain over `start` and the options that keep its settings.

    `settings` are all that differ between them.
    """
    *texts, last = [_SETTING_TEXTS[name] for name in settings]
    description = f"{', '.join(texts)} and {last}" if texts else last
    conf = start.prepared.conf
    options = [f"--{name.replace('_', '-')} {getattr(conf, name)}" for name in settings]
    gain_db = select_comparison(start)(start, finer).value
    note = (
        f"using {description}: outputs {gain_db:.1f} dB closer to the float model's "
        f"{finer.fidelity.measured_on}; to keep the default scales, pass {' '.join(options)}"
    )
    return finer.with_notes([note], [note])


def _finer_settings(prepared: PreparedModel) -> dict[str, str]:
    """Return {setting: value} of finer scales that the target supports and the user did not set.

    They are per-channel weight scales in place of one per tensor, mode "max-value" and zero points.
    Mode "q-value" of the user, which chips have, excludes zero points.
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
    is_chip_like = "mode" in user_set and conf.mode == "q-value"
    if target.zero_points and "activations" not in user_set and not is_chip_like:
        settings["activations"] = "asymmetric"
    return settings
