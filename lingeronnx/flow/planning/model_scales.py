"""Scales that came with the model, as one that was quantized already or with another tool's plan for a float one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...graph import ir
from ...plan import Transform
from ...plan.synthetic import is_synthetic
from ...qdq.read import Read
from ...run.data import Progress
from ..assign.choice import choice_of
from ..assign.imported_scales import activation_scales, costs, summary, weight_scales
from ..assign.imported_weights import Borrowed, borrowed_weights, follow, refusals, told
from ..assign.shared_scales import shared_scales, tops
from ..methods import factors
from ..methods.ranges import range_factors
from ..observe.statistics import TensorStats
from ..prepare.preparation import Prepared
from .calibration import observe_model
from .plan_record import Planned
from .scale_assignment import assign_held

__all__ = ["take_up"]


def take_up(prepared: Prepared, read: Read, progress: Progress | None = None) -> Planned:
    """Hold tensors as a quantized model held them, as near as the platform comes; calibrate those it has no scale for.

    Weights stay as they are: no range is moved into them but where a Clip needs it. Those of a float model with another
    tool's plan are rounded at its scales.
    """
    target, conf = prepared.target, prepared.conf
    parts = prepared.parts.on(ir.clone(prepared.graph))
    shared = shared_scales(parts, target)
    known = [any(name in read.activations for name in group.tensors) for group in shared]
    missing = [group.tensors[-1] for group, told in zip(shared, known, strict=True) if not told]
    stats: Mapping[str, TensorStats] = {}
    if missing or not prepared.synthetic:
        stats = observe_model(prepared.without_effort, progress).stats
    own = choice_of(prepared, parts, ())
    ranged = range_factors(parts, shared, {}, target, choice=own, search=False)
    factors.apply(parts, ranged)
    scaled = {name: s.scaled(float(ranged[name][0])) if name in ranged else s for name, s in stats.items()}
    real = {} if prepared.synthetic else scaled
    scales, taken = activation_scales(read, shared, target, conf, real, ranged)
    weights, grids = weight_scales(read, parts, target, conf)
    lent = borrowed_weights(read, parts, target, conf) if read.tool else Borrowed()
    pinned = tops(parts, target)
    free = {n for group in shared if any(t in pinned or t in own.own for t in group.tensors) for n in group.tensors}
    kept = {
        name: q for name, q in {**scales, **weights, **lent.held}.items() if name not in free and name not in own.own
    }
    parts, plan, notes = assign_held(parts, shared, scaled, target, replace(own, held=kept), conf.require_chip)
    plan = replace(plan, transforms={name: Transform(tuple(map(float, f))) for name, f in ranged.items()})
    if read.tool:
        taken = follow([*taken, *lent.taken], plan.tensors)
        refused = refusals(read, taken, lent)
        lines = told(read.tool, taken, refused, missing, prepared.synthetic, conf.notes == "full")
    else:
        taken, refused = [*taken, *costs(parts, plan.tensors, grids)], {}
        lines = summary(taken, missing, prepared.synthetic, conf.notes == "full")
    invented = is_synthetic(prepared.original) or (prepared.synthetic and bool(missing))
    plan = replace(plan, synthetic=invented, settings=conf.of_scales)
    return replace(
        Planned.of(prepared, parts, plan, [*lines, *notes]),
        ranges={name: (s.low, s.high) for name, s in scaled.items()},
        taken=taken,
        refused=refused,
    )
