"""Learned scales: one log2 parameter per group of tensors that share a scale.

A power-of-two scale is the rounded parameter, with a straight-through gradient (Jain et al. 2019);
other scales use the parameter itself (LSQ). After each change the plan is legalized, so that
training stays within the limits of the platform. How gradients are computed is in `rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...ir.plan import Affine, Plan
from ...quantization.partition import Partition
from ...quantization.scales import group_shared_scales, legalize
from ...targets import Target

__all__ = ["LearnedScales"]


class LearnedScales:
    """The scales of a plan as parameters.

    Parameters
    ----------
    partition
        Partition of the normalized float graph of `plan`.
    plan, target
        The initial scales, and the platform.
    fixed
        Tensors whose scales are constant.

    Attributes
    ----------
    parameters
        One parameter per group.
    log2_scales
        Name of a tensor in the plan -> parameter of its group.
    """

    def __init__(
        self,
        partition: Partition,
        plan: Plan,
        target: Target,
        fixed: frozenset[str] = frozenset(),
    ) -> None:
        """Create one parameter, log2 of the scale, for each group of tensors that share a scale.

        Groups with a tensor of several scales or with a tensor in `fixed` get none: their scales
        stay as planned. `log2_scales` maps each tensor's name to the parameter of its group.
        """
        self._partition, self._target, self._plan = partition, target, plan
        self._is_power_of_two = plan.mode == "q-value"
        self._shared = group_shared_scales(partition, target)
        groups = [group.tensors for group in self._shared]
        grouped: set[str] = set()
        for group in groups:
            grouped.update(group)
        groups += [(name,) for name in plan.tensors if name not in grouped]
        self.parameters: list[Any] = []
        self.log2_scales: dict[str, Any] = {}
        for group in groups:
            names = [name for name in group if name in plan.tensors]
            # Several scales per tensor stay as calibrated.
            has_single_scales = all(plan.tensors[name].single for name in names)
            if not names or not has_single_scales or fixed.intersection(names):
                continue
            log2_scale = math.log2(plan.tensors[names[0]].scale)
            parameter = torch.nn.Parameter(torch.tensor(log2_scale))
            self.parameters.append(parameter)
            self.log2_scales.update(dict.fromkeys(names, parameter))

    def plan(self) -> Plan:
        """Return the plan with the current learned scales, adapted to the platform's limits.

        Parameters whose scale had to be lowered for that are set to the lowered scale.
        """
        tensors = dict(self._plan.tensors)
        for name, parameter in self.log2_scales.items():
            tensors[name] = tensors[name].changed(2.0 ** self._get_log2_scale(parameter))
        plan, _ = legalize(
            self._plan.with_tensors(tensors), self._partition, self._shared, self._target
        )
        self._sync_with_plan(plan.tensors)
        return plan

    def _get_log2_scale(self, parameter: Any) -> float:
        """Return the log2 scale of a parameter, rounded to an integer for power-of-two scales."""
        value = float(parameter.detach())
        return round(value) if self._is_power_of_two else value

    def _sync_with_plan(self, tensors: Mapping[str, Affine]) -> None:
        """Lower parameters that exceed the scales in `tensors` to these scales, in place.

        `tensors` are quantization parameters by name, whose scales the platform's limits may have
        lowered.
        """
        with torch.no_grad():
            for name, parameter in self.log2_scales.items():
                log2_scale = math.log2(tensors[name].scale)
                if self._get_log2_scale(parameter) - log2_scale > 1e-6:
                    parameter.fill_(log2_scale)
