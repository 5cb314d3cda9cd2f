"""Where scales come from: calibration, the model itself where it was quantized already, or a plan made elsewhere."""

from __future__ import annotations

from dataclasses import replace

from ...errors import ConfigError
from ...passes import left_out, strict
from ...plan import Plan
from ...run.data import Progress
from ..prepare.preparation import Prepared
from ..prepare.rewriter import Changed, check_same
from .calibration import Observed, observe_model
from .imported_plan import take_over
from .model_scales import take_up
from .plan_record import Planned
from .scale_assignment import assign_scales

__all__ = ["plain_scales", "plan_for"]


def plan_for(
    prepared: Prepared, plan: Plan | None = None, progress: Progress | None = None, before: Observed | None = None
) -> Planned:
    """Return `prepared` under scales that calibration finds, or under the given `plan` made elsewhere.

    before : as for `observe_model`.
    """
    if plan is not None:
        planned = take_over(prepared, plan)
    elif prepared.read is not None:
        planned = take_up(prepared, prepared.read, progress)
    else:
        planned = assign_scales(prepared, observe_model(prepared, progress, before))
    try:
        _check(prepared, planned)
    except Changed as wrong:
        if plan is not None and plan.transforms:
            raise ConfigError(
                f"the plan is for other weights: with its transforms the {wrong}; make the plan anew for this model"
            ) from wrong
        if plan is not None or prepared.read is not None or strict():
            raise
        planned = _without_factors(prepared, progress, wrong)
    return planned


def _check(prepared: Prepared, planned: Planned) -> None:
    """Raise `Changed` where the graph that the plan speaks of is another function than the user's."""
    outputs = [str(v.name) for v in prepared.original.graph.outputs]
    check_same(prepared.source, planned.runner, outputs, prepared.data.first())


def plain_scales(prepared: Prepared, progress: Progress | None = None, before: Observed | None = None) -> Planned:
    """Return `prepared` under scales for its ranges as they are: none is moved into weights.

    before : as for `observe_model`.
    """
    fast = prepared.without_effort
    planned = assign_scales(fast, observe_model(fast, progress, before))
    plan = replace(planned.plan, settings=prepared.conf.of_scales)
    return replace(planned, conf=prepared.conf, plan=plan)


def _without_factors(prepared: Prepared, progress: Progress | None, wrong: Changed) -> Planned:
    """Plan again and move no ranges into weights, which gave something `wrong`; the notes say so."""
    planned = plain_scales(prepared, progress)
    _check(prepared, planned)
    return replace(planned, notes=[left_out("of ranges into weights", f"with it, {wrong}"), *planned.notes])
