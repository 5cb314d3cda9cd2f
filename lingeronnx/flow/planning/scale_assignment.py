"""A scale for every tensor, after ranges were moved into the weights around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...graph import ir
from ...plan import Plan, Transform
from ...run.memory import choose_batch_size, trim_memory
from ...targets import Target
from ..assign.legalize import UnsupportedScaleError
from ..assign.scale_policy import ScalePolicy, resolve_scale_policy
from ..assign.scales import assign_qparams
from ..assign.shared_scales import SharedScaleGroup, group_shared_scales
from ..methods import factors
from ..methods.clipping import find_costly_clipping
from ..methods.host_scaling import insert_host_scaling, set_host_factors
from ..methods.range_fitting import fit_range_factors
from ..observe.statistics import TensorStats
from ..partition import Partition
from ..prepare.preparation import PreparedModel
from ..prepare.recurrent_states import find_16bit_state_tensors
from .calibration import CalibrationResult
from .planned_model import PlanBasis, PlannedModel

__all__ = ["assign_scales", "assign_with_float_fallback"]

_OUTPUT_SAMPLES = 64  # enough to see at the outputs what a scale costs


def assign_scales(prepared: PreparedModel, observed: CalibrationResult) -> PlannedModel:
    """Give every tensor the scale its calibrator likes best, after moving ranges into the weights around it."""
    target, conf, parts = (
        prepared.target,
        prepared.conf,
        observed.partition.with_graph(ir.clone(observed.partition.graph)),
    )
    shared, choice = observed.shared, resolve_scale_policy(prepared, parts)
    host, alike = insert_host_scaling(parts, shared, observed.stats, target, choice)
    stats = {**observed.stats, **{new: observed.stats[name] for new, name in alike.items()}}
    if host:
        parts = parts.with_added_floats(host)
        shared, choice = group_shared_scales(parts, target), resolve_scale_policy(prepared, parts)
    ranged = fit_range_factors(
        parts,
        shared,
        stats,
        target,
        policy=choice,
        optimize=conf.mode == "q-value" and conf.effort != "fast",
        by_channel=conf.weight_scales != "tensor",
    )
    factors.apply_factors(parts, ranged)
    set_host_factors(parts.graph, host, ranged)
    scaled = {
        name: s.scaled(float(ranged[name][0])) if name in ranged else s for name, s in stats.items()
    }
    parts, plan, notes = assign_with_float_fallback(
        parts, shared, scaled, target, choice, conf.require_chip
    )
    if conf.effort != "fast":
        pieces = _select_output_samples(prepared)
        less = find_costly_clipping(
            parts, plan, shared, scaled, choice, pieces, lambda: _float_outputs(prepared, pieces)
        )
        trim_memory()
        choice = choice.with_fixed_scales(less)
        if less:
            parts, plan, notes = assign_with_float_fallback(
                parts, shared, scaled, target, choice, conf.require_chip
            )
            notes = [
                *notes,
                *(f"'{name}' keeps its largest values: an output is made of them" for name in less),
            ]
    both = factors.multiply_factors(observed.equalization_factors, ranged)
    changed = {name: Transform(tuple(map(float, f))) for name, f in both.items()}
    plan = replace(
        plan,
        transforms=changed,
        scaled=alike,
        synthetic=prepared.synthetic,
        settings=conf.of_scales,
    )
    if conf.bits < 16 and (wide := find_16bit_state_tensors(parts, conf.state, target)):
        notes = [
            f"{len(wide)} tensors and weights that states are made of are held in 16 bits",
            *notes,
        ]
    return replace(
        PlannedModel.create(prepared, parts, plan, [*observed.notes, *notes]),
        ranges={name: (s.low, s.high) for name, s in scaled.items()},
        basis=PlanBasis(scaled, choice),
        calibration=observed,
    )


def _select_output_samples(prepared: PreparedModel) -> list[dict[str, np.ndarray]]:
    """Return pieces of some calibration samples, few enough that their outputs can be kept."""
    shapes = [ir.get_shape(value) or () for value in prepared.graph.graph.outputs]
    outputs = sum(8 * math.prod(int(d or 1) for d in shape[1:]) for shape in shapes)
    budget = prepared.conf.budget
    feeds = prepared.data.first(
        choose_batch_size(prepared.input_bytes + outputs, _OUTPUT_SAMPLES, budget)
    )
    return list(prepared.data.split_feeds(feeds, prepared.comparison_batch_size))


def _float_outputs(
    prepared: PreparedModel, pieces: Sequence[Mapping[str, np.ndarray]]
) -> list[Mapping[str, np.ndarray]]:
    """Return the outputs of the user's model for the first calibration samples, in pieces."""
    return [
        prepared.float_outputs.outputs("first", number, feed) for number, feed in enumerate(pieces)
    ]


def assign_with_float_fallback(
    partition: Partition,
    shared_groups: Sequence[SharedScaleGroup],
    stats: Mapping[str, TensorStats],
    target: Target,
    policy: ScalePolicy,
    strict: bool,
) -> tuple[Partition, Plan, list[str]]:
    """Return the plan; what needs a scale that `target` does not hold goes to float first, unless `strict`."""
    while True:
        try:
            return partition, *assign_qparams(partition, shared_groups, stats, target, policy)
        except UnsupportedScaleError as error:
            if strict or any("scale" in policy.overrides.get(name, {}) for name in error.tensors):
                raise
            why = (
                f"it needs a scale of 2^{error.exponent}, {target.name} holds "
                f"2^{error.min_exponent} at least"
            )
            kept = partition.nodes_touching(error.tensors)
            partition = partition.move_to_float(dict.fromkeys(kept, why))
            shared_groups = group_shared_scales(partition, target)
