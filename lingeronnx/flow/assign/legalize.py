"""What the target makes of a plan's scales.

They are lowered until every inequality holds, and that is told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...errors import ConstraintError
from ...graph import ir
from ...plan import Affine, PerGroup, Plan, make_grouped_qparams
from ...plan.power_of_two import floor_power_of_two
from ...targets import Target
from ..partition import Partition
from .shared_scales import SharedScaleGroup

__all__ = ["UnsupportedScaleError", "legalize"]


class UnsupportedScaleError(ConstraintError):
    """A scale that the platform does not hold.

    `tensors` share it, which needs `exponent` where `min_exponent` is held.
    """

    def __init__(self, text: str, tensors: tuple[str, ...], exponent: int, least: int) -> None:
        super().__init__(text)
        self.tensors, self.exponent, self.min_exponent = tensors, exponent, least


def _round_to_float32(scale: float) -> float:
    """Return a scale as a file holds it."""
    return float(np.float32(scale))


def _limit_scales_for_biases(tensors: dict[str, Affine], partition: Partition, power: bool) -> None:
    """Lower the scales of single channels, in place, at which the bias of the channel would fill its integer type.

    A quarter is left free for what refinement does to a bias. A channel whose weights are that
    small beside its bias loses nothing by it.
    """
    for node, op in partition.integer_nodes:
        if op.integer_op.channel_axis is None or len(node.inputs) < 3 or node.inputs[2] is None:
            continue
        x, name = tensors.get(ir.input_name(node)), ir.input_name(node, 1)
        w, bias = tensors.get(name), ir.const_value(node.inputs[2])
        if x is None or w is None or bias is None or w.single:
            continue
        top = 2.0 ** (29 if max(x.bits, w.bits) <= 8 else 58)
        sums = w.sums
        reach = np.abs(bias.astype(np.float64)).reshape(-1, sums.scales.size).max(axis=0) * x.scale
        most = [top / size if size > 0 else math.inf for size in reach]
        if power:
            most = [size if math.isinf(size) else floor_power_of_two(size) for size in most]
        least = [
            _round_to_float32(min(pair))
            for pair in zip(sums.scales.reshape(-1).tolist(), most, strict=True)
        ]
        if isinstance(w.granularity, PerGroup):
            tensors[name] = make_grouped_qparams(least, w.factors[1], w.granularity.size, w.bits)
        else:
            tensors[name] = w.changed(least)


class _ScaleLegalizer:
    """The scales of a plan while they are lowered; those that share a scale move together.

    tensors : how each is held by now. moved : {tensor: (the scale that it had, why it was
    lowered)}.
    """

    def __init__(
        self, plan: Plan, shared_groups: Sequence[SharedScaleGroup], target: Target
    ) -> None:
        self._target = target
        self.tensors = {name: q.stored for name, q in plan.tensors.items()}
        self._group_of = {
            name: group for group in shared_groups for name in group.tensors if name in self.tensors
        }
        self.moved: dict[str, tuple[float, str]] = {}

    def unify_shared_scales(self) -> None:
        """Give tensors that share a scale the least of theirs."""
        for name, group in self._group_of.items():
            own, least = (
                self.tensors[name],
                min((self.tensors[n] for n in group.tensors), key=lambda q: q.scale),
            )
            if (own.scale, own.zero_point) != (least.scale, least.zero_point):
                self.tensors[name] = own.changed(least.scale, zero_point=least.zero_point)

    def exponent_of(self, name: str) -> int:
        """Return the exponent of a scale; ConstraintError where it is no power of two."""
        exponent = self.tensors[name].exponent
        if exponent is None:
            raise ConstraintError(
                f"tensor '{name}' has scale {self.tensors[name].scale:g}; {self._target.name} "
                "takes powers of two only"
            )
        return exponent

    def lower_exponents(self, partition: Partition) -> None:
        """Lower exponents to what the target holds and the operators take, until nothing moves."""
        target, changed = self._target, True
        while changed:
            changed = False
            for name in self._group_of:
                why = f"{target.name} holds scales up to 2^{target.exponents[1]}"
                changed |= self._cap_exponent(name, target.exponents[1], why)
            for node, op in partition.integer_nodes:
                most = op.scale_constraints.max_output_exponent(node, self.exponent_of)
                if most is not None and ir.output_name(node) in self.tensors:
                    changed |= self._cap_exponent(
                        ir.output_name(node), most, f"{op.name} {node.name} cannot shift left"
                    )

    def _cap_exponent(self, name: str, most: int, why: str) -> bool:
        if self.exponent_of(name) <= most:
            return False
        for member in self._group_of[name].tensors:
            self.moved.setdefault(member, (self.tensors[member].scale, why))
            self.tensors[member] = self.tensors[member].changed(2.0**most)
        return True

    def check_supported(self, partition: Partition) -> None:
        """Raise ConstraintError if a consumer rejects a scale, UnsupportedScaleError if a scale is too small."""
        target, fine = self._target, partition.curve_input_exponents(self._target)
        least = target.exponents[0]
        for name, group in self._group_of.items():
            exponent = self.exponent_of(name)
            if self.tensors[name].bits > 8 and exponent < fine.get(name, least):
                raise ConstraintError(
                    f"tensor '{name}' of {self.tensors[name].bits} bits gets scale 2^{exponent} at "
                    "most; what reads it "
                    f"takes 2^{fine[name]} at least: give it 8 bits"
                )
            if exponent < least:
                raise UnsupportedScaleError(
                    f"tensor '{name}' needs scale 2^{exponent}, {target.name} holds 2^{least} at "
                    "least; scale the model's input down or leave the node in float with --skip",
                    group.tensors,
                    exponent,
                    least,
                )

    def notes(self) -> list[str]:
        """Return a line for each scale that was lowered."""
        return [
            f"scale of '{name}' lowered from {before:g} to {self.tensors[name].scale:g}: {why}"
            for name, (before, why) in self.moved.items()
        ]


def legalize(
    plan: Plan, partition: Partition, shared_groups: Sequence[SharedScaleGroup], target: Target
) -> tuple[Plan, list[str]]:
    """Return `plan` with every shared scale and inequality of `target` holding, and what was moved.

    Scales are only ever lowered, so it ends: an output's exponent may not exceed what its inputs'
    allow, nor the row's largest. Raises UnsupportedScaleError for a scale below the row's smallest.
    """
    scales = _ScaleLegalizer(plan, shared_groups, target)
    scales.unify_shared_scales()
    _limit_scales_for_biases(scales.tensors, partition, plan.mode == "q-value")
    if not target.needs_power_of_two_scales:
        return plan.with_tensors(scales.tensors), []
    scales.lower_exponents(partition)
    scales.check_supported(partition)
    return plan.with_tensors(scales.tensors), scales.notes()
