"""Soft rounding (AdaRound, Nagel et al. 2020).

Learn for every weight whether it is rounded down or up.
    counts = floor(w * scale) + h,   h = clamp(1.2 * sigmoid(v) - 0.1, 0, 1)

The penalty ``sum(1 - |2h - 1|^beta)`` drives h to 0 or 1 while beta falls. `settle` puts the
weights onto the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..qat.qat_module import QatModule
from ..qat.rounding import get_scale_factor

__all__ = ["SoftRounding"]

_STRETCH, _WARMUP_SHARE, _PENALTY_WEIGHT = 1.2, 0.2, 0.01
_BETA_RANGE = 20.0, 2.0


class SoftRounding:
    """Soft rounding of the weights among `names`; biases stay ordinary parameters."""

    def __init__(self, module: QatModule, names: Sequence[str]) -> None:
        self._bridge = module
        self.rounding_logits: dict[str, Any] = {}
        self._plain = [name for name in names if name not in module.plan.tensors]
        for name in names:
            if name in module.plan.tensors:
                parameter = module.parameter_of[name].detach()
                counts = parameter.double() * get_scale_factor(module.plan.tensors[name], parameter)
                share = (counts - counts.floor()).clamp(0.01, 0.99)
                inner = (share + (_STRETCH - 1) / 2) / _STRETCH
                self.rounding_logits[name] = torch.nn.Parameter(torch.logit(inner).float())
        module.rounding_rules = {name: self._make_rule(name) for name in self.rounding_logits}

    def get_parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return Adam's groups of parameters: the choices, and what is not rounded."""
        found = [{"params": [choice], "lr": lr} for choice in self.rounding_logits.values()]
        for name in self._plain:
            parameter = self._bridge.parameter_of[name]
            size = float(parameter.detach().square().mean().sqrt()) or 1.0
            found.append({"params": [parameter], "lr": 0.1 * lr * size})
        return found

    def _make_rule(self, name: str) -> Any:
        def rule(parameter: Any, source: Any) -> Any:
            counts = torch.floor(
                parameter.detach().double() * get_scale_factor(source.qparams, parameter)
            )
            return torch.clamp(
                counts + self._get_round_up_fraction(name), source.qparams.low, source.qparams.high
            )

        return rule

    def _get_round_up_fraction(self, name: str) -> Any:
        return torch.clamp(
            _STRETCH * torch.sigmoid(self.rounding_logits[name]) - (_STRETCH - 1) / 2, 0.0, 1.0
        )

    def compute_penalty(self, progress: float) -> Any:
        """Return the penalty at a time of training between 0 and 1."""
        if progress < _WARMUP_SHARE:
            return 0.0
        beta = _BETA_RANGE[1] + (_BETA_RANGE[0] - _BETA_RANGE[1]) * (
            1 - (progress - _WARMUP_SHARE) / (1 - _WARMUP_SHARE)
        )
        return _PENALTY_WEIGHT * sum(
            (1 - (2 * self._get_round_up_fraction(n) - 1).abs() ** beta).mean()
            for n in self.rounding_logits
        )

    def finalize(self) -> None:
        """Round for good and put the parameters onto the grid."""
        with torch.no_grad():
            for name in self.rounding_logits:
                parameter, q = self._bridge.parameter_of[name], self._bridge.plan.tensors[name]
                scale = get_scale_factor(q, parameter)
                counts = torch.floor(parameter.double() * scale) + (
                    self._get_round_up_fraction(name) >= 0.5
                )
                parameter.copy_(torch.clamp(counts, q.low, q.high) / scale)
        self._bridge.rounding_rules = {}
