"""Scales that came with the model, as one that was quantized already or with another tool's plan for a float one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...graph import ir
from ...plan import Transform
from ...plan.synthetic_calibration import is_synthetic
from ...qdq.import_model import ImportedQuantization
from ...run.data import Progress
from ..assign.imported_scales import (
    format_model_import,
    import_activation_qparams,
    import_weight_qparams,
    measure_weight_conversion,
)
from ..assign.imported_weights import (
    ImportedWeights,
    collect_rejections,
    format_plan_import,
    import_external_weight_scales,
    update_applied_qparams,
)
from ..assign.scale_policy import build_scale_policy
from ..assign.shared_scales import find_saturated_clip_bounds, group_shared_scales
from ..methods import factors
from ..methods.range_fitting import fit_range_factors
from ..observe.statistics import TensorStats
from ..prepare.preparation import PreparedModel
from .calibration import calibrate_model
from .planned_model import PlannedModel
from .scale_assignment import assign_with_float_fallback

__all__ = ["plan_imported_model"]


def plan_imported_model(
    prepared: PreparedModel, imported: ImportedQuantization, progress: Progress | None = None
) -> PlannedModel:
    """Hold tensors as a quantized model held them, as near as the platform comes.

    Calibrate those it has no scale for.
    Weights stay as they are: no range is moved into them but where a Clip needs it. Those of a
    float model with another tool's plan are rounded at its scales.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.with_graph(ir.clone(prepared.graph))
    shared = group_shared_scales(parts, target)
    known = [any(name in imported.activations for name in group.tensors) for group in shared]
    missing = [group.tensors[-1] for group, told in zip(shared, known, strict=True) if not told]
    stats: Mapping[str, TensorStats] = {}
    if missing or not prepared.synthetic:
        stats = calibrate_model(prepared.without_effort, progress).stats
    own = build_scale_policy(prepared, parts, ())
    ranged = fit_range_factors(parts, shared, {}, target, policy=own, optimize=False)
    factors.apply_factors(parts, ranged)
    scaled = {
        name: s.scaled(float(ranged[name][0])) if name in ranged else s for name, s in stats.items()
    }
    real = {} if prepared.synthetic else scaled
    scales, taken = import_activation_qparams(imported, shared, target, conf, real, ranged)
    weights, grids = import_weight_qparams(imported, parts, target, conf)
    lent = (
        import_external_weight_scales(imported, parts, target, conf)
        if imported.source_tool
        else ImportedWeights()
    )
    pinned = find_saturated_clip_bounds(parts, target)
    free = {
        n
        for group in shared
        if any(t in pinned or t in own.overrides for t in group.tensors)
        for n in group.tensors
    }
    kept = {
        name: q
        for name, q in {**scales, **weights, **lent.held}.items()
        if name not in free and name not in own.overrides
    }
    parts, plan, notes = assign_with_float_fallback(
        parts, shared, scaled, target, replace(own, held=kept), conf.require_chip
    )
    plan = replace(
        plan, transforms={name: Transform(tuple(map(float, f))) for name, f in ranged.items()}
    )
    if imported.source_tool:
        taken = update_applied_qparams([*taken, *lent.imported], plan.tensors)
        refused = collect_rejections(imported, taken, lent)
        lines = format_plan_import(
            imported.source_tool, taken, refused, missing, prepared.synthetic, conf.notes == "full"
        )
    else:
        taken, refused = [*taken, *measure_weight_conversion(parts, plan.tensors, grids)], {}
        lines = format_model_import(taken, missing, prepared.synthetic, conf.notes == "full")
    invented = is_synthetic(prepared.original) or (prepared.synthetic and bool(missing))
    plan = replace(plan, synthetic=invented, settings=conf.of_scales)
    return replace(
        PlannedModel.create(prepared, parts, plan, [*lines, *notes]),
        ranges={name: (s.low, s.high) for name, s in scaled.items()},
        imported_qparams=taken,
        rejected_tensors=refused,
    )
