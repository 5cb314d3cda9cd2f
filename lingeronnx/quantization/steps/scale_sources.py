"""Plan a model by the source of its scales: calibration, the model itself, or an external plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ...common.errors import ConfigError
from ...ir import ir
from ...ir.plan import Plan
from ...runtime.data import Progress
from ..methods.softmax_saturation import find_saturated_softmaxes
from ..normalize import format_skipped_pass, is_strict_mode
from ..prepare.float_outputs import MAX_MEASURED_SAMPLES, has_too_few_softmax_rows
from ..prepare.preparation import PreparedModel
from ..prepare.rewriter import OutputChangedError, check_outputs_unchanged
from .calibration import CalibrationResult, calibrate_model
from .planned_model import PlannedModel
from .scale_assignment import assign_scales

__all__ = ["plan_model", "plan_without_range_transforms"]

_SATURATION_SAMPLES = 16  # samples for measuring which logits saturate


def plan_model(
    prepared: PreparedModel,
    plan: Plan | None = None,
    progress: Progress | None = None,
    previous: CalibrationResult | None = None,
) -> PlannedModel:
    """Plan a model with calibrated or imported scales, or with a plan made elsewhere.

    The first available: `plan`, the scales that `prepared` imported, calibration. If range
    transforms of a calibrated plan change an output, it is planned again without them, with a note;
    in strict mode and with other sources that is an error.

    Parameters
    ----------
    prepared
        The model.
    plan
        A plan made elsewhere, or None.
    progress
        Callback for progress messages.
    previous
        As in `calibrate_model`.

    Raises
    ------
    ConfigError
        If `plan` does not match the model (`apply_external_plan`), or was made for different
        weights.
    OutputChangedError
        If the planned graph computes other outputs, in the cases named above.
    """
    if plan is not None:
        from .external_plan import apply_external_plan  # only this source needs it

        planned = apply_external_plan(prepared, plan)
    elif prepared.read is not None:
        from .imported_model_plan import plan_imported_model  # only this source needs it

        planned = plan_imported_model(prepared, prepared.read, progress)
    else:
        # The trial needs them, but even the largest number of samples may be too small for it.
        with_unscaled = "stages" in prepared.recipe.trials and not (
            prepared.calls is None
            and has_too_few_softmax_rows(prepared.graph, MAX_MEASURED_SAMPLES)
        )
        prepared, calibration = _calibrate(prepared, progress, previous, with_unscaled)
        planned = assign_scales(prepared, calibration)
    try:
        _check_outputs_unchanged(prepared, planned)
    except OutputChangedError as error:
        if plan is not None and plan.transforms:
            raise ConfigError(
                f"the plan was made for different weights: with its transforms, {error}; create a "
                "new plan for this model"
            ) from error
        if plan is not None or prepared.read is not None or is_strict_mode():
            raise
        planned = _replan_without_transforms(prepared, progress, error)
    return planned


def _calibrate(
    prepared: PreparedModel,
    progress: Progress | None,
    previous: CalibrationResult | None,
    with_unscaled: bool = False,
) -> tuple[PreparedModel, CalibrationResult]:
    """Calibrate a model, with softmaxes whose logits saturate in float, unless a chip is required.

    Parameters are those of `calibrate_model`. Returns the model, with these nodes on the host.
    """
    calibrate = partial(calibrate_model, progress=progress, with_unscaled=with_unscaled)
    calibration = calibrate(prepared, previous=previous)
    if prepared.conf.require_chip:
        return prepared, calibration
    masked = [group.tensors for group in calibration.shared if group.headroom_below is not None]
    saturated = find_saturated_softmaxes(
        calibration.partition,
        calibration.stats,
        prepared.runner,
        _iter_first_batches(prepared),
        set[str]().union(*masked),
    )
    if saturated:
        prepared = prepared.with_host_nodes({**prepared.parts.floats, **saturated})
        calibration = calibrate(prepared, previous=calibration)
    return prepared, calibration


def _iter_first_batches(prepared: PreparedModel) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the first `_SATURATION_SAMPLES` calibration samples in batches; read when needed."""
    samples = prepared.data.first(_SATURATION_SAMPLES)
    yield from prepared.data.split_feeds(samples, prepared.comparison_batch_size)


def _check_outputs_unchanged(prepared: PreparedModel, planned: PlannedModel) -> None:
    """Raise `OutputChangedError` if the planned float graph does not compute the user's outputs.

    Compared on one calibration sample, see `check_outputs_unchanged`.
    """
    outputs = ir.get_output_names(prepared.original)
    check_outputs_unchanged(prepared.source, planned.float_runner, outputs, prepared.data.first())


def plan_without_range_transforms(
    prepared: PreparedModel,
    progress: Progress | None = None,
    previous: CalibrationResult | None = None,
) -> PlannedModel:
    """Plan a model without range transforms, by the recipe of drafts; otherwise as `plan_model`.

    `previous` is a calibration whose statistics are reused. The result belongs to `prepared`, so
    that its weights are refined if the recipe of `prepared` says so.
    """
    draft, calibration = _calibrate(prepared.draft, progress, previous)
    planned = assign_scales(draft, calibration)
    if draft.parts is not prepared.parts:
        prepared = replace(prepared, parts=draft.parts)
    return replace(planned, prepared=prepared)


def _replan_without_transforms(
    prepared: PreparedModel, progress: Progress | None, error: OutputChangedError
) -> PlannedModel:
    """Plan again without range transforms, which changed an output; a note reports `error`.

    Raises OutputChangedError if an output still differs.
    """
    planned = plan_without_range_transforms(prepared, progress)
    _check_outputs_unchanged(prepared, planned)
    return replace(
        planned,
        notes=[format_skipped_pass("of ranges into weights", f"with it, {error}"), *planned.notes],
    )
