"""Assign a scale to every tensor, after range transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...ir.plan import Plan, Transform
from ...runtime.memory import choose_batch_size, elements_per_sample, trim_memory
from ...targets import Target
from ..calibration.statistics import TensorStats
from ..methods import factors
from ..methods.clipping import find_costly_clipping
from ..methods.host_scaling import insert_host_scaling, set_host_factors
from ..methods.range_fitting import fit_range_factors
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors
from ..scales.feasible import UnsupportedScaleError
from ..scales.scale_policy import ScalePolicy, resolve_scale_policy
from ..scales.scales import assign_qparams
from ..scales.shared_scales import SharedScaleGroup, group_shared_scales
from .calibration import CalibrationResult
from .planned_model import PlanBasis, PlannedModel

__all__ = ["assign_scales", "assign_with_float_fallback", "make_transforms", "scale_stats"]

_OUTPUT_SAMPLES = 64  # samples for measuring the effect of a scale at the outputs


def assign_scales(prepared: PreparedModel, observed: CalibrationResult) -> PlannedModel:
    """Apply range transforms, and assign each tensor the scale that its calibrator chooses.

    Works on a copy of the calibrated graph. Multiplications on the host are inserted for tensors
    out of range, nodes that need an unsupported scale stay in float, and if the recipe says so,
    clipping that dominates an output is relaxed.

    Parameters
    ----------
    prepared
        The model.
    observed
        Its calibration.
    """
    target, conf = prepared.target, prepared.conf
    partition = observed.partition.with_graph(observed.partition.graph.clone())
    shared = observed.shared
    policy = resolve_scale_policy(prepared, partition, observed.wide_states)
    host_reasons, equal_tensors = insert_host_scaling(
        partition, shared, observed.stats, target, policy
    )
    stats = dict(observed.stats)
    for new, name in equal_tensors.items():
        stats[new] = observed.stats[name]
    if host_reasons:
        partition = partition.with_added_floats(host_reasons)
        shared = group_shared_scales(partition, target)
        policy = resolve_scale_policy(prepared, partition, observed.wide_states)
    range_factors = fit_range_factors(
        partition,
        shared,
        stats,
        target,
        policy=policy,
        optimize=conf.mode == "q-value" and prepared.recipe.optimizes_ranges,
        by_channel=conf.weight_scales != "tensor",
        by_result=observed.trusts_joined,
    )
    factors.apply_factors(partition, range_factors)
    if host_reasons:
        set_host_factors(partition.graph, host_reasons, range_factors)
    scaled_stats = scale_stats(stats, range_factors)
    partition, plan, notes = assign_with_float_fallback(
        partition, shared, scaled_stats, target, policy, conf.require_chip
    )
    if prepared.recipe.checks_clipping_at_outputs:
        batches = _select_output_samples(prepared)
        relaxed_scales = find_costly_clipping(
            partition,
            plan,
            shared,
            scaled_stats,
            policy,
            batches,
            lambda: [prepared.float_outputs.outputs(feed) for feed in batches],
        )
        trim_memory()
        if relaxed_scales:
            policy = policy.with_fixed_scales(relaxed_scales)
            partition, plan, notes = assign_with_float_fallback(
                partition, shared, scaled_stats, target, policy, conf.require_chip
            )
            for name in relaxed_scales:
                notes.append(f"'{name}' is clipped less: its largest values dominate an output")
    transforms = factors.multiply_factors(observed.equalization_factors, range_factors)
    plan = replace(
        plan,
        transforms=make_transforms(transforms),
        scaled=equal_tensors,
        synthetic=prepared.synthetic,
        settings=conf.of_scales,
    )
    if conf.state and conf.bits < 16:
        wide = find_16bit_state_tensors(partition, conf.state, target)
        if wide:
            notes.insert(0, f"{len(wide)} tensors and weights on state paths use 16 bits")
    return replace(
        PlannedModel(prepared, partition, plan, [*observed.notes, *notes]),
        ranges={name: (entry.low, entry.high) for name, entry in scaled_stats.items()},
        basis=PlanBasis(scaled_stats, policy),
        calibration=observed,
        assigned=plan,
    )


def scale_stats(
    stats: Mapping[str, TensorStats], range_factors: Mapping[str, np.ndarray]
) -> dict[str, TensorStats]:
    """Return the statistics with those of `range_factors` ({tensor: factor [1]}) scaled."""
    scaled = dict(stats)
    for name, factor in range_factors.items():
        if name in scaled:
            scaled[name] = scaled[name].scaled(float(factor[0]))
    return scaled


def make_transforms(tensor_factors: Mapping[str, np.ndarray]) -> dict[str, Transform]:
    """Convert {tensor: factors} to {tensor: transform} of a plan."""
    return {name: Transform(tuple(map(float, factor))) for name, factor in tensor_factors.items()}


def _select_output_samples(prepared: PreparedModel) -> list[dict[str, np.ndarray]]:
    """Return batches of the first calibration samples whose outputs fit the memory budget.

    At most `_OUTPUT_SAMPLES` samples.
    """
    output_bytes = 0
    for value in prepared.graph.graph.outputs:
        output_bytes += 8 * elements_per_sample(value)
    max_samples = choose_batch_size(
        prepared.input_bytes + output_bytes, _OUTPUT_SAMPLES, prepared.conf.budget
    )
    feeds = prepared.data.first(max_samples)
    return list(prepared.data.split_feeds(feeds, prepared.comparison_batch_size))


def assign_with_float_fallback(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Mapping[str, TensorStats],
    target: Target,
    policy: ScalePolicy,
    strict: bool,
) -> tuple[Partition, Plan, list[str]]:
    """Assign scales; nodes that need a scale below the target's minimum move to float.

    An UnsupportedScaleError is passed on if `strict`, or if the user set the scale.

    Parameters
    ----------
    strict
        Whether such a scale is an error instead. The other parameters are those of
        `assign_qparams`.

    Returns
    -------
    partition : Partition
        The partition, with the moved nodes in float.
    plan : Plan
        Its plan.
    notes : list of str
        Notes for the report.
    """
    while True:
        try:
            return partition, *assign_qparams(partition, shared_groups, stats, target, policy)
        except UnsupportedScaleError as error:
            is_user_set = any("scale" in policy.overrides.get(name, {}) for name in error.tensors)
            if strict or is_user_set:
                raise
            reason = (
                f"it needs a scale of 2^{error.exponent}; the minimum on {target.name} is "
                f"2^{error.min_exponent}"
            )
            nodes = partition.nodes_touching(error.tensors)
            partition = partition.move_to_float(dict.fromkeys(nodes, reason))
            shared_groups = group_shared_scales(partition, target)
