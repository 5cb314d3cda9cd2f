"""Outputs of layers with more bits than 8, where a chip writes them.

The last fully connected layer of a network, before the host's softmax or at the very end, may leave
the chip in 32 bits. That costs four bytes for each of its outputs and no time, but what reads the
chip's output has to expect it: so it is tried with `effort: best` only, or where the user asks for
it (`out_bits`): the host scales, and nothing is rounded.

A sigmoid or tanh whose table takes 16 bits may read them from the layer before it, in place of 8
bits that a Requant makes 16. That saves a rounding and a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...errors import ConstraintError
from ..assign.legalize import legalize
from ..assign.output_bits import apply_output_bits
from ..assign.shared_scales import group_shared_scales
from ..planning.planned_model import PlannedModel

__all__ = ["MIN_GAIN_DB", "widen_curve_inputs", "widen_last_outputs"]

#: dB on average that the outputs gain at least: less is no reason for another type.
MIN_GAIN_DB = 0.1


def widen_last_outputs(planned: PlannedModel) -> PlannedModel | None:
    """Return `planned` with wide outputs where the user said nothing of them.

    None where there are none.
    """
    target, choice = planned.target, planned.basis.policy
    bits = max(target.out_bits)
    if not target.has_packer or choice is None or bits <= min(target.out_bits):
        return None
    return _with_output_bits(planned, planned.partition.wide_outputs(target), bits)


def widen_curve_inputs(planned: PlannedModel) -> PlannedModel | None:
    """Return `planned` with 16 bits in front of curves, likewise.

    None also where the sums' scale is too coarse.
    """
    target = planned.target
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
    """Return `planned` with so many bits for those of `names` that the user said nothing of.

    None where none is.
    """
    choice, target = planned.basis.policy, planned.target
    assert choice is not None
    own, said = choice.overrides, {"out_bits", "bits", "scale"}
    free = [n for n in names if n in planned.plan.tensors and said.isdisjoint(own.get(n, {}))]
    if not free:
        return None
    choice = replace(
        choice,
        overrides={
            **choice.overrides,
            **{n: {**choice.overrides.get(n, {}), "out_bits": bits} for n in free},
        },
    )
    tensors = dict(planned.plan.tensors)
    apply_output_bits(tensors, planned.partition, planned.basis.stats, choice, target)
    plan, moves = legalize(
        planned.plan.with_tensors(tensors),
        planned.partition,
        group_shared_scales(planned.partition, target),
        target,
    )
    basis = replace(planned.basis, policy=choice)
    return replace(planned, plan=plan, basis=basis, notes=[*planned.notes, *moves])
