"""Plan a model with imported scales: its own if it is quantized already, or another tool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...interchange.qdq.import_model import ImportedQuantization
from ...ir.plan import Affine
from ...ir.plan.synthetic_calibration import is_synthetic
from ...runtime.data import Progress
from ...targets import Target
from ..calibration.statistics import TensorStats
from ..factor_groups import find_saturated_clip_bounds
from ..methods import factors
from ..methods.range_fitting import fit_range_factors
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..scales.imported_scales import (
    WIDE_BITS,
    ImportedQParams,
    convert_imported_activation_qparams,
    format_model_import,
    import_weight_qparams,
    measure_weight_conversion,
)
from ..scales.imported_weights import (
    ImportedWeights,
    collect_rejections,
    format_plan_import,
    import_external_weight_scales,
    update_applied_qparams,
)
from ..scales.scale_policy import ScalePolicy, build_scale_policy
from ..scales.shared_scales import (
    SharedScaleGroup,
    group_shared_scales,
)
from .calibration import calibrate_model
from .planned_model import PlannedModel
from .scale_assignment import assign_with_float_fallback, make_transforms, scale_stats

__all__ = ["plan_imported_model"]


def plan_imported_model(
    prepared: PreparedModel, imported: ImportedQuantization, progress: Progress | None = None
) -> PlannedModel:
    """Plan a model with imported scales, as unchanged as the platform allows.

    Tensors without an imported scale are calibrated, with 16 bits where the platform has these: a
    quantized model keeps them in float. Weights are not changed: there are no range transforms
    except those that a Clip needs. Weights of a float model with another tool's plan are rounded at
    its scales.

    Parameters
    ----------
    prepared
        The model.
    imported
        Its scales.
    progress
        Callback for progress messages.
    """
    target, conf = prepared.target, prepared.conf
    partition = prepared.parts.with_graph(prepared.graph.clone())
    shared = group_shared_scales(partition, target)
    missing_groups = [
        group for group in shared if imported.activations.keys().isdisjoint(group.tensors)
    ]
    missing = [group.tensors[-1] for group in missing_groups]
    stats: Mapping[str, TensorStats] = {}
    if missing or not prepared.synthetic:
        stats = calibrate_model(prepared.draft, progress).stats
    can_widen = _can_widen(prepared, imported)
    wide_names = list[str]()
    for group in missing_groups if can_widen else ():
        wide_names += group.tensors
    policy = build_scale_policy(prepared, partition, wide_names)
    range_factors = fit_range_factors(partition, shared, {}, target, policy=policy, optimize=False)
    factors.apply_factors(partition, range_factors)
    scaled_stats = scale_stats(stats, range_factors)
    converted = _convert_scales(prepared, imported, partition, shared, scaled_stats, range_factors)
    calibrated = _calibrated_tensors(partition, shared, policy, target)
    fixed = {
        name: qparams
        for name, qparams in converted.qparams.items()
        if name not in calibrated and name not in policy.overrides
    }
    partition, plan, scale_notes = assign_with_float_fallback(
        partition,
        shared,
        scaled_stats,
        target,
        replace(policy, fixed_qparams=fixed),
        conf.require_chip,
    )
    full_notes = conf.notes == "full"
    rejected: dict[str, str] = {}
    if imported.source_tool:
        conversions = update_applied_qparams(
            [*converted.activations, *converted.weights.imported], plan.tensors
        )
        rejected = collect_rejections(imported, conversions, converted.weights)
        notes = format_plan_import(
            imported.source_tool, conversions, rejected, missing, prepared.synthetic, full_notes
        )
    else:
        weights = measure_weight_conversion(partition, plan.tensors, converted.grids)
        conversions = [*converted.activations, *weights]
        notes = format_model_import(conversions, missing, prepared.synthetic, full_notes, can_widen)
    is_from_random_inputs = is_synthetic(prepared.original) or (
        prepared.synthetic and bool(missing)
    )
    plan = replace(
        plan,
        transforms=make_transforms(range_factors),
        synthetic=is_from_random_inputs,
        settings=conf.of_scales,
    )
    return replace(
        PlannedModel(prepared, partition, plan, [*notes, *scale_notes]),
        ranges={name: (entry.low, entry.high) for name, entry in scaled_stats.items()},
        imported_qparams=conversions,
        rejected_tensors=rejected,
    )


def _can_widen(prepared: PreparedModel, imported: ImportedQuantization) -> bool:
    """Whether activations may have 16 bits where the scales of a quantized model leave no other.

    Not for another tool's plan, a model with quantized weights only, a width that the user set, or
    a platform without 16 bits.
    """
    conf = prepared.conf
    if imported.source_tool or not imported.activations or "bits" in conf.model_fields_set:
        return False
    return WIDE_BITS in prepared.target.bits


@dataclass(frozen=True)
class _ConvertedScales:
    """Imported scales in the form that the platform supports.

    Attributes
    ----------
    qparams
        Parameters by tensor or weight.
    activations
        Conversions of activations.
    grids
        Imported grids of weights that are quantized already.
    weights
        Conversion of float weights with another tool's scales.
    """

    qparams: Mapping[str, Affine]
    activations: Sequence[ImportedQParams]
    grids: Mapping[str, Affine]
    weights: ImportedWeights


def _convert_scales(
    prepared: PreparedModel,
    imported: ImportedQuantization,
    partition: Partition,
    shared: Sequence[SharedScaleGroup],
    stats: Mapping[str, TensorStats],
    range_factors: Mapping[str, np.ndarray],
) -> _ConvertedScales:
    """Convert the imported scales of activations and weights to the platform.

    Statistics of synthetic data do not count. Scales of another tool are matched to float weights
    too, and take precedence. `range_factors` are {tensor: factor [1]} that it is multiplied by.
    """
    target, conf = prepared.target, prepared.conf
    real_stats = {} if prepared.synthetic else stats
    activations, conversions = convert_imported_activation_qparams(
        imported,
        shared,
        target,
        conf,
        real_stats,
        range_factors,
        _can_widen(prepared, imported),
    )
    weights, grids = import_weight_qparams(imported, partition, target, conf)
    float_weights = ImportedWeights()
    if imported.source_tool:
        float_weights = import_external_weight_scales(imported, partition, target, conf)
    qparams = {**activations, **weights, **float_weights.qparams}
    return _ConvertedScales(qparams, conversions, grids, float_weights)


def _calibrated_tensors(
    partition: Partition,
    shared: Sequence[SharedScaleGroup],
    policy: ScalePolicy,
    target: Target,
) -> set[str]:
    """Return all tensors of groups with a tensor that is clipped by saturation or has an override.

    Their imported scale does not count.
    """
    clip_bounds = find_saturated_clip_bounds(partition, target)
    tensors: set[str] = set()
    for group in shared:
        if any(name in clip_bounds or name in policy.overrides for name in group.tensors):
            tensors.update(group.tensors)
    return tensors
