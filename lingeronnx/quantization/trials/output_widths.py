"""Write outputs of layers with more than 8 bits where the chip supports it.

The last fully connected layer of a network, before the host's softmax or at the very end, may be
written with 32 bits. That costs four bytes per element and no time, but the consumer of the chip's
output has to expect it. So it is tried with `effort: best` only, or if the user sets `out_bits`.
The host then dequantizes the values, and nothing is rounded.

A sigmoid or tanh with a 16-bit table may read 16 bits directly from the layer before it, instead of
8 bits that a Requant widens to 16. That saves a rounding and a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...common.errors import ConstraintError
from ..scales.feasible import legalize
from ..scales.output_bits import apply_output_bits
from ..scales.shared_scales import group_shared_scales
from ..steps.planned_model import PlannedModel

__all__ = ["MIN_GAIN_DB", "widen_curve_inputs", "widen_last_outputs"]

#: Minimum mean gain of the outputs in dB that justifies another output type.
MIN_GAIN_DB = 0.1
_WIDTH_SETTINGS = frozenset({"out_bits", "bits", "scale"})  # overrides that prescribe an output


def widen_last_outputs(planned: PlannedModel) -> PlannedModel | None:
    """Return `planned` with last outputs of the target's largest width, or None.

    Outputs whose width the user set are not changed. None if there is no other such output, the
    target is no chip or has one width only, or the plan came from elsewhere.
    """
    target, policy = planned.prepared.target, planned.basis.policy
    bits = max(target.out_bits)
    if not target.has_packer or policy is None or bits <= min(target.out_bits):
        return None
    return _with_output_bits(planned, planned.partition.wide_outputs(target), bits)


def widen_curve_inputs(planned: PlannedModel) -> PlannedModel | None:
    """Return `planned` with inputs of activation functions in more than 8 bits, or None.

    The width is the largest of `target.curve_bits`; inputs whose width the user set are not
    changed. None if there is no other such input, if the scale of the accumulator is too coarse for
    it, or if the plan came from elsewhere.
    """
    target = planned.prepared.target
    if planned.basis.policy is None or not target.curve_bits:
        return None
    try:
        return _with_output_bits(
            planned, planned.partition.curve_input_exponents(target), max(target.curve_bits)
        )
    except ConstraintError:
        return None


def _with_output_bits(
    planned: PlannedModel, names: Iterable[str], bits: int
) -> PlannedModel | None:
    """Return `planned` with `bits` output bits for `names`, except those with another width set.

    Tensors without a scale in the plan do not count. Returns None if no tensor is left; raises
    ConstraintError if the scales cannot be legalized.
    """
    policy, target = planned.basis.policy, planned.prepared.target
    assert policy is not None
    overrides = dict(policy.overrides)
    selected = []
    for name in names:
        settings = overrides.get(name, {})
        if name in planned.plan.tensors and settings.keys().isdisjoint(_WIDTH_SETTINGS):
            selected.append(name)
    if not selected:
        return None
    for name in selected:
        overrides[name] = {**overrides.get(name, {}), "out_bits": bits}
    policy = replace(policy, overrides=overrides)
    tensors = dict(planned.plan.tensors)
    apply_output_bits(tensors, planned.partition, planned.basis.stats, policy, target)
    shared = group_shared_scales(planned.partition, target)
    plan, notes = legalize(planned.plan.with_tensors(tensors), planned.partition, shared, target)
    basis = replace(planned.basis, policy=policy)
    return replace(planned, plan=plan, basis=basis, notes=[*planned.notes, *notes])
