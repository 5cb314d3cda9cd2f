"""Options of a training: the procedure (`Recipe`), limits (`Constraints`) and history (`Epoch`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...common.errors import ConfigError

__all__ = ["Constraints", "Epoch", "Recipe"]


@dataclass(frozen=True)
class Constraints:
    """Limits of a training.

    Attributes
    ----------
    weights
        Largest absolute value of a parameter by name; "p99.9" is that percentile of its values.
    outputs
        Largest absolute real value of a tensor during training, by its name in the plan.
    frozen
        Parameters that are not trained.
    """

    weights: Mapping[str, float | str] = field(default_factory=dict)
    outputs: Mapping[str, float] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Recipe:
    """Procedure of a training.

    Attributes
    ----------
    method
        "blocks", "whole" (end to end) or "both".
    epochs, block_epochs
        Passes over all samples, end to end and for each block.
    lr, scale_lr
        Step sizes of Adam for parameters (relative to their root mean square) and for log2 of
        scales, with cosine decay. By default `scale_lr` is 1e-2 for power-of-two scales, else 1e-4,
        since such a scale moves the grid of the weights.
    batch_size
        Samples per step.
    loss
        "distill", "labels", or a function (outputs, targets, labels) -> scalar tensor of dicts by
        tensor name.
    features
        Weight of the distance at the block ends in the loss "distill".
    scales
        "learned" or "fixed"; None learns power-of-two scales and fixes others.
    rounding
        "nearest", or "soft" (AdaRound) for the weights of blocks.
    patience
        Epochs without an improvement before the training stops; None for no limit.
    """

    method: str = "whole"
    epochs: int = 10
    block_epochs: int = 10
    lr: float = 3e-4
    scale_lr: float | None = None
    batch_size: int = 32
    loss: str | Callable[..., Any] = "distill"
    features: float = 1.0
    scales: str | None = None
    rounding: str = "nearest"
    patience: int | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Raise ConfigError if a choice, number or device of the recipe is not allowed.

        Epochs must be at least 0, the batch size at least 1, step sizes finite and at least 0.
        """
        choices = {
            "method": ("blocks", "whole", "both"),
            "scales": ("learned", "fixed", None),
            "rounding": ("nearest", "soft"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                listed = " or ".join(filter(None, allowed))
                raise ConfigError(f"{name} '{value}': it must be {listed}")
        for name in ("epochs", "block_epochs", "batch_size"):
            if getattr(self, name) < (1 if name == "batch_size" else 0):
                raise ConfigError(f"{name} {getattr(self, name)}: it must be positive")
        if not _is_available(self.device):
            raise ConfigError(
                f"device '{self.device}' is not available on this machine or in this PyTorch; use "
                "cpu or cuda"
            )
        for name in ("lr", "scale_lr"):
            step_size = getattr(self, name)
            if step_size is not None and not 0 <= step_size < math.inf:
                raise ConfigError(f"{name} {step_size}: a step size must be 0 or more")


def _is_available(device: str) -> bool:
    """Whether torch knows the device name `device` and, if it is cuda, a GPU is available."""
    try:
        return torch.device(device).type != "cuda" or torch.cuda.is_available()
    except RuntimeError:
        return False


@dataclass(frozen=True)
class Epoch:
    """Entry of the history: the trained part, its number, mean loss, and evaluation metric."""

    part: str
    number: int
    loss: float
    metric: float | None = None


@dataclass(frozen=True)
class EpochReport:
    """What a trained epoch or block gave, for the user; as text one line.

    Attributes
    ----------
    epoch
        The entry of the history.
    count
        Number of epochs, or of blocks.
    learning_rate
        Step size of the weights at its end.
    is_best
        Whether the metric, or without one the loss, is the best so far.
    seconds_left
        Estimated time of the remaining epochs; None for blocks, which differ in size.
    metric_name
        Name of the metric; "" without evaluation data.
    """

    epoch: Epoch
    count: int
    learning_rate: float
    is_best: bool
    seconds_left: float | None = None
    metric_name: str = ""

    def __str__(self) -> str:
        """Return "epoch 3 of 10: loss 0.0123, top1 93.2, learning rate 0.0003, 7 s left"."""
        epoch = self.epoch
        subject = f"epoch {epoch.number}" if epoch.part == "whole" else f"block {epoch.number}"
        facts = [f"loss {epoch.loss:.4g}"]
        if epoch.metric is not None:
            facts.append(f"{self.metric_name or 'metric'} {epoch.metric:.6g}")
        facts.append(f"learning rate {self.learning_rate:.3g}")
        if self.is_best:
            facts.append("best so far")
        if self.seconds_left is not None:
            facts.append(f"{self.seconds_left:.0f} s left")
        return f"{subject} of {self.count}: {', '.join(facts)}"
