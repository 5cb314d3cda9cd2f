"""The steps from a prepared model to the best candidate.

    plan -> refine weights -> lower and measure -> trials of the recipe -> offload rejected layers

Each step gets the values of those before it and returns a new one; `run_log` records its time and
what it changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..ir.plan import Plan
from .prepare import PreparedModel
from .report import Candidate, build_candidate
from .run_log import RunLog
from .scales import describe_ineffective_overrides
from .steps import plan_model, refine_weights
from .trials import TRIALS, offload_rejected_layers, run_trial

__all__ = ["build_first_candidate", "find_best_candidate", "run_trials"]


def find_best_candidate(
    prepared: PreparedModel,
    run_log: RunLog,
    plan: Plan | None = None,
    skipped_trials: Collection[str] = (),
) -> Candidate:
    """Quantize a prepared model by the recipe of its effort.

    Parameters
    ----------
    prepared
        The prepared model.
    run_log
        Log of the quantization.
    plan
        Scales to use; None calibrates.
    skipped_trials
        Trials of the recipe that are not run.
    """
    recipe = prepared.recipe
    best = build_first_candidate(prepared, run_log, plan)
    best = run_trials([name for name in recipe.trials if name not in skipped_trials], best, run_log)
    if plan is not None:
        return best
    offloaded = best
    if best.prepared.allows_layer_offload:
        offloaded = offload_rejected_layers(best, run_log)
    if offloaded is not best:
        offloaded = run_trials(recipe.trials_after_offload, offloaded, run_log)
    if not offloaded.prepared.conf.overrides:
        return offloaded
    notes = describe_ineffective_overrides(offloaded.prepared)
    return offloaded.with_notes(notes) if notes else offloaded


def build_first_candidate(
    prepared: PreparedModel, run_log: RunLog, plan: Plan | None = None
) -> Candidate:
    """Plan a prepared model, refine its weights, lower it and measure the integer graph."""
    with run_log.step("plan") as step:
        planned = plan_model(prepared, plan, run_log.progress)
        tensors, transforms = planned.plan.tensors, planned.plan.transforms
        step.changes.append(f"{len(tensors)} tensors with scales, {len(transforms)} with factors")
    with run_log.step("refine") as step:
        refined_graph = refine_weights(planned, progress=run_log.progress)
        if refined_graph is not planned.graph:
            step.changes.append("weights and biases refined for the outputs of their layers")
    with run_log.step("measure") as step:
        candidate = build_candidate(planned, refined_graph, run_log.progress)
        step.changes += candidate.fidelity.describe_outputs()
    return candidate


def run_trials(names: Sequence[str], best: Candidate, run_log: RunLog) -> Candidate:
    """Run trials by name (`TRIALS`), each on the best candidate of those before it."""
    for name in names:
        best = run_trial(TRIALS[name](), best, run_log)
    return best
