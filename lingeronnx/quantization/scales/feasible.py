"""Lower the scales of a plan until all constraints of the target hold, and report the changes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...common.errors import ConstraintError
from ...ir import ir
from ...ir.plan import Affine, PerGroup, Plan, make_grouped_qparams
from ...ir.plan.power_of_two import floor_power_of_two
from ...targets import Target
from ..partition import Partition
from .shared_scales import SharedScaleGroup

__all__ = ["UnsupportedScaleError", "legalize"]


class UnsupportedScaleError(ConstraintError):
    """A scale below the minimum of the platform.

    Attributes
    ----------
    tensors
        Tensors that share the scale.
    exponent
        Exponent that they need.
    min_exponent
        Smallest exponent that the platform supports.
    """

    def __init__(
        self, message: str, tensors: tuple[str, ...], exponent: int, min_exponent: int
    ) -> None:
        """Keep the `tensors` that share the scale, its `exponent`, and the smallest supported."""
        super().__init__(message)
        self.tensors, self.exponent, self.min_exponent = tensors, exponent, min_exponent


def _round_to_float32(scale: float) -> float:
    """Return `scale` rounded to float32, as it is stored in a file."""
    return float(np.float32(scale))


def _limit_scales_for_biases(
    tensors: dict[str, Affine], partition: Partition, power_of_two: bool
) -> None:
    """Lower the scales of weight channels, in place, at which the channel's bias would overflow.

    A quarter of the accumulator is reserved for changes of the bias by refinement. A channel whose
    weights are so small compared with its bias loses nothing. Weights with a single scale are not
    changed.

    Parameters
    ----------
    tensors
        Parameters of all tensors; modified.
    partition
        The float graph.
    power_of_two
        Whether scales must be powers of two.
    """
    for node, op in partition.integer_nodes:
        if op.integer_op.channel_axis is None or len(node.inputs) < 3 or node.inputs[2] is None:
            continue
        weight_name = ir.input_name(node, 1)
        data, weight = tensors.get(ir.input_name(node)), tensors.get(weight_name)
        bias = ir.const_value(node.inputs[2])
        if data is None or weight is None or bias is None or weight.single:
            continue
        tensors[weight_name] = _limit_for_bias(weight, data, bias, power_of_two)


def _limit_for_bias(weight: Affine, data: Affine, bias: np.ndarray, power_of_two: bool) -> Affine:
    """Return the parameters `weight` with channel scales at which `bias` fits the accumulator.

    The bias at the accumulator's scale is limited to 2^29 if weight and `data` (the layer's input)
    have at most 8 bits, else 2^58. Scales only decrease, with `power_of_two` to powers of two;
    `bias` has one or more rows of one value per channel, the largest magnitude of which counts.
    """
    top = 2.0 ** (29 if max(data.bits, weight.bits) <= 8 else 58)
    sums = weight.sums
    bias_by_channel = np.abs(bias.astype(np.float64)).reshape(-1, sums.scales.size)
    limits = []
    for scaled_bias in bias_by_channel.max(axis=0) * data.scale:
        limit = top / scaled_bias if scaled_bias > 0 else math.inf
        if power_of_two and not math.isinf(limit):
            limit = floor_power_of_two(limit)
        limits.append(limit)
    scales = [
        _round_to_float32(min(pair))
        for pair in zip(sums.scales.reshape(-1).tolist(), limits, strict=True)
    ]
    if isinstance(weight.granularity, PerGroup):
        return make_grouped_qparams(scales, weight.factors[1], weight.granularity.size, weight.bits)
    return weight.changed(scales)


class _ScaleLegalizer:
    """Lowers the scales of a plan; tensors that share a scale change together.

    Attributes
    ----------
    tensors
        Current parameters.
    lowered
        {tensor: (original scale, reason why it was lowered)}.
    """

    def __init__(
        self, plan: Plan, shared_groups: Sequence[SharedScaleGroup], target: Target
    ) -> None:
        """Copy the parameters of `plan`, rounded as in a file, and map each tensor to its group.

        The plan is not modified; results are `tensors` {name: parameters} and `lowered` {name:
        (scale before, reason)}.
        """
        self._target = target
        self.tensors = {name: qparams.stored for name, qparams in plan.tensors.items()}
        self._group_of: dict[str, SharedScaleGroup] = {}
        for group in shared_groups:
            names = [name for name in group.tensors if name in self.tensors]
            self._group_of.update(dict.fromkeys(names, group))
        self.lowered: dict[str, tuple[float, str]] = {}

    def unify_shared_scales(self) -> None:
        """Set tensors that share a scale to the smallest of their scales, and to its zero point.

        `tensors` is changed in place; bit widths stay.
        """
        smallest_of_group: dict[int, Affine] = {}
        for name, group in self._group_of.items():
            current = self.tensors[name]
            if id(group) not in smallest_of_group:
                members = (self.tensors[member] for member in group.tensors)
                smallest_of_group[id(group)] = min(members, key=lambda qparams: qparams.scale)
            smallest = smallest_of_group[id(group)]
            if (current.scale, current.zero_point) != (smallest.scale, smallest.zero_point):
                self.tensors[name] = current.changed(smallest.scale, zero_point=smallest.zero_point)

    def exponent_of(self, name: str) -> int:
        """Return log2 of the scale of tensor `name`.

        Raises ConstraintError if the scale is not a power of two.
        """
        exponent = self.tensors[name].exponent
        if exponent is None:
            raise ConstraintError(
                f"tensor '{name}' has scale {self.tensors[name].scale:g}; {self._target.name} "
                "supports powers of two only"
            )
        return exponent

    def lower_exponents(self, partition: Partition) -> None:
        """Lower scales to the limits of target and operators, in place, until nothing changes.

        Limits are exponents (log2 of a scale). A tensor is lowered with those that share its scale;
        the first reason is kept in `lowered`. Raises ConstraintError for a scale that is not a
        power of two.
        """
        max_exponent = self._target.exponents[1]
        target_reason = f"{self._target.name} supports scales up to 2^{max_exponent}"
        changed = True
        while changed:
            changed = False
            for name in self._group_of:
                changed |= self._cap_exponent(name, max_exponent, target_reason)
            for node, op in partition.integer_nodes:
                output = ir.output_name(node)
                max_output_exponent = op.scale_constraints.max_output_exponent
                if max_output_exponent is None:
                    continue
                limit = max_output_exponent(node, self.exponent_of)
                if limit is not None and output in self.tensors:
                    reason = f"{op.name} {node.name} cannot shift left"
                    changed |= self._cap_exponent(output, limit, reason)

    def _cap_exponent(self, name: str, limit: int, reason: str) -> bool:
        """Lower the shared scale of tensor `name` to at most 2^`limit`; return whether it changed.

        The scale before the first change of each member is recorded in `lowered` with `reason`.
        """
        if self.exponent_of(name) <= limit:
            return False
        for member in self._group_of[name].tensors:
            self.lowered.setdefault(member, (self.tensors[member].scale, reason))
            self.tensors[member] = self.tensors[member].changed(2.0**limit)
        return True

    def check_supported(self, partition: Partition) -> None:
        """Raise an error unless all scales are large enough for the target and for consumers.

        Raises
        ------
        ConstraintError
            If a tensor of more than 8 bits has a smaller exponent than its consumer needs.
        UnsupportedScaleError
            If a scale is below the minimum of the platform.
        """
        target = self._target
        required_exponents = partition.curve_input_exponents(target)
        min_exponent = target.exponents[0]
        for name, group in self._group_of.items():
            exponent, bits = self.exponent_of(name), self.tensors[name].bits
            if bits > 8 and exponent < required_exponents.get(name, min_exponent):
                raise ConstraintError(
                    f"{bits}-bit tensor '{name}' can have scale 2^{exponent} at most, but its "
                    f"consumer needs at least 2^{required_exponents[name]}; use 8 bits"
                )
            if exponent < min_exponent:
                raise UnsupportedScaleError(
                    f"tensor '{name}' needs scale 2^{exponent}, below the {target.name} minimum of "
                    f"2^{min_exponent}; scale the model input down, or keep the node in float with "
                    "--skip",
                    group.tensors,
                    exponent,
                    min_exponent,
                )

    def notes(self) -> list[str]:
        """Return a note for each tensor whose scale was lowered to a limit, with the reason.

        Each is "scale of 'NAME' lowered from A to B: REASON".
        """
        return [
            f"scale of '{name}' lowered from {original:g} to {self.tensors[name].scale:g}: {reason}"
            for name, (original, reason) in self.lowered.items()
        ]


def legalize(
    plan: Plan, partition: Partition, shared_groups: Sequence[SharedScaleGroup], target: Target
) -> tuple[Plan, list[str]]:
    """Lower the scales of `plan` until all shared scales and constraints of `target` hold.

    Scales are only ever lowered, so this terminates: the exponent of an output must not exceed the
    limits given by its inputs and by the target. For a target with free scales, only shared scales
    and the limits for biases count. `plan` is not modified.

    Returns
    -------
    plan : Plan
        The legal plan.
    notes : list of str
        Scales that were lowered to a limit of the target.

    Raises
    ------
    UnsupportedScaleError
        If a scale is below the minimum of the target.
    ConstraintError
        If a scale is not a power of two though the target needs it, or too small for a consumer.
    """
    scales = _ScaleLegalizer(plan, shared_groups, target)
    scales.unify_shared_scales()
    _limit_scales_for_biases(scales.tensors, partition, plan.mode == "q-value")
    if not target.needs_power_of_two_scales:
        return plan.with_tensors(scales.tensors), []
    scales.lower_exponents(partition)
    scales.check_supported(partition)
    return plan.with_tensors(scales.tensors), scales.notes()
