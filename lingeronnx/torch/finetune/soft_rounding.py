"""Soft rounding (AdaRound, Nagel et al. 2020): learn for each weight whether it is rounded up.

    counts = floor(w * scale) + h,   h = clamp(1.2 * sigmoid(v) - 0.1, 0, 1)

The penalty ``sum(1 - |2h - 1|^beta)`` drives h to 0 or 1 while beta decreases. `finalize` moves the
weights onto the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..fake_quant.rounding import get_scale_factor
from ..qat.qat_module import QatModule

__all__ = ["SoftRounding"]

_STRETCH = 1.2
#: Fraction of the training without a penalty.
_WARMUP_FRACTION = 0.2
_PENALTY_WEIGHT = 0.01
_INITIAL_BETA, _FINAL_BETA = 20.0, 2.0


class SoftRounding:
    """Soft rounding of the weights among `names`; biases remain ordinary parameters.

    Attributes
    ----------
    rounding_logits
        Name of a weight -> v of the formula above.
    """

    def __init__(self, module: QatModule, names: Sequence[str]) -> None:
        """Create a rounding logit per element of each parameter in `names` that the plan quantizes.

        A logit starts at the fraction of the element in counts. Sets `module.rounding_rules` to the
        soft rounding of these parameters.
        """
        self._module = module
        self.rounding_logits: dict[str, Any] = {}
        self._unrounded = [name for name in names if name not in module.plan.tensors]
        for name in names:
            if name in module.plan.tensors:
                parameter = module.parameter_of[name].detach()
                counts = parameter.double() * get_scale_factor(module.plan.tensors[name], parameter)
                fraction = (counts - counts.floor()).clamp(0.01, 0.99)
                sigmoid = (fraction + (_STRETCH - 1) / 2) / _STRETCH
                self.rounding_logits[name] = torch.nn.Parameter(torch.logit(sigmoid).float())
        module.rounding_rules = {name: self._make_rule(name) for name in self.rounding_logits}

    def get_parameter_groups(self, lr: float) -> list[dict[str, Any]]:
        """Return Adam's parameter groups: the logits, and the parameters that are not rounded.

        The step size of the latter is a tenth of `lr`, relative to their root mean square.
        """
        groups = [{"params": [logits], "lr": lr} for logits in self.rounding_logits.values()]
        for name in self._unrounded:
            parameter = self._module.parameter_of[name]
            rms = float(parameter.detach().square().mean().sqrt()) or 1.0
            groups.append({"params": [parameter], "lr": 0.1 * lr * rms})
        return groups

    def _make_rule(self, name: str) -> Any:
        """Return the function (parameter, source) that rounds a weight to counts in training.

        Counts are rounded down, plus a learned fraction from 0 to 1, and clipped.
        """

        def rule(parameter: Any, source: Any) -> Any:
            """Return `parameter` as counts: rounded down, plus the soft fractions, clipped.

            `source` has the quantization parameters. Gradients reach the fractions, not
            `parameter`.
            """
            qparams = source.qparams
            counts = torch.floor(parameter.detach().double() * get_scale_factor(qparams, parameter))
            counts = counts + self._get_round_up_fraction(name)
            return torch.clamp(counts, qparams.low, qparams.high)

        return rule

    def _get_round_up_fraction(self, name: str) -> Any:
        """Return the soft fraction by which a weight is rounded up, from 0 (down) to 1 (up).

        It is the sigmoid of the logits, stretched by `_STRETCH` about 1/2 and clamped to [0, 1]: a
        tensor of the shape of the weight, with gradients.
        """
        stretched = _STRETCH * torch.sigmoid(self.rounding_logits[name]) - (_STRETCH - 1) / 2
        return torch.clamp(stretched, 0.0, 1.0)

    def compute_penalty(self, progress: float) -> Any:
        """Return the penalty at a point of the training, from 0 (start) to 1 (end).

        It is 0 during the warm-up, then draws the fractions to 0 or 1, more sharply towards the
        end.
        """
        if progress < _WARMUP_FRACTION:
            return 0.0
        remaining = 1 - (progress - _WARMUP_FRACTION) / (1 - _WARMUP_FRACTION)
        beta = _FINAL_BETA + (_INITIAL_BETA - _FINAL_BETA) * remaining
        penalty: Any = 0
        for name in self.rounding_logits:
            distance = (2 * self._get_round_up_fraction(name) - 1).abs()
            penalty = penalty + (1 - distance**beta).mean()
        return _PENALTY_WEIGHT * penalty

    def finalize(self) -> None:
        """Round each weight up or down and move the parameters onto the grid.

        Up from a fraction of 0.5 on. Ends the soft rounding of the module.
        """
        with torch.no_grad():
            for name in self.rounding_logits:
                parameter = self._module.parameter_of[name]
                qparams = self._module.plan.tensors[name]
                scale = get_scale_factor(qparams, parameter)
                counts = torch.floor(parameter.double() * scale)
                counts = counts + (self._get_round_up_fraction(name) >= 0.5)
                parameter.copy_(torch.clamp(counts, qparams.low, qparams.high) / scale)
        self._module.rounding_rules = {}
