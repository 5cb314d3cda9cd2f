"""Learned scales: one logarithm per class of tensors that share a scale.

With power-of-two scales the logarithm is rounded on its way into the plan, straight through (Jain
et al. 2019); without it is the scale itself (LSQ). After every change the plan is legalized, so
that training never leaves what the platform can hold. Must not know: how gradients come about
(`rounding`), training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...flow.assign import group_shared_scales, legalize
from ...flow.partition import Partition
from ...plan import Affine, Plan
from ...targets import Target

__all__ = ["LearnedScales"]


class LearnedScales:
    """The scales of a plan as parameters.

    parts : of the normalised float graph that `plan` speaks of. fixed : tensors whose scale stays.
    """

    def __init__(
        self, parts: Partition, plan: Plan, target: Target, fixed: frozenset[str] = frozenset()
    ) -> None:
        self._parts, self._row, self._plan = parts, target, plan
        self._shared = group_shared_scales(parts, target)
        classes = [group.tensors for group in self._shared]
        shared_by = {name for names in classes for name in names}
        classes += [(name,) for name in plan.tensors if name not in shared_by]
        self.parameters: list[Any] = []
        #: Tensor of the plan -> the parameter of its class.
        self.log2_scales: dict[str, Any] = {}
        for names in classes:
            present = [name for name in names if name in plan.tensors]
            several = any(
                not plan.tensors[name].single for name in present
            )  # they stay as calibrated
            if not present or several or fixed.intersection(present):
                continue
            log = torch.nn.Parameter(torch.tensor(math.log2(plan.tensors[present[0]].scale)))
            self.parameters.append(log)
            self.log2_scales.update(dict.fromkeys(present, log))

    def plan(self) -> Plan:
        """Return the plan that the parameters stand for now, legalized.

        Those that were moved are moved, too.
        """
        power = self._plan.mode == "q-value"
        tensors = dict(self._plan.tensors)
        for name, log in self.log2_scales.items():
            value = float(log.detach())
            tensors[name] = tensors[name].changed(2.0 ** (round(value) if power else value))
        plan, _ = legalize(self._plan.with_tensors(tensors), self._parts, self._shared, self._row)
        self._sync_with_plan(plan.tensors)
        return plan

    def _sync_with_plan(self, tensors: Mapping[str, Affine]) -> None:
        """Set parameters that the plan does not follow to what it holds."""
        power = self._plan.mode == "q-value"
        with torch.no_grad():
            for name, log in self.log2_scales.items():
                held = math.log2(tensors[name].scale)
                if (round(float(log)) if power else float(log)) - held > 1e-6:
                    log.fill_(held)
