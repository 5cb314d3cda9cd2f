"""What may be said about a training.

How it goes (`Recipe`), what it may not do (`Constraints`), its history (`Epoch`).
Knows numbers and words; no bridge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import ConfigError

__all__ = ["Constraints", "Epoch", "Recipe"]


@dataclass(frozen=True)
class Constraints:
    """What training may not do.

    weights : largest |value| of a parameter by name; "p99.9" stands for that percentile of its own
    values. outputs : largest |real value| of a tensor while training, by the plan's name. frozen :
    parameters that stay as they are.
    """

    weights: Mapping[str, float | str] = field(default_factory=dict)
    outputs: Mapping[str, float] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Recipe:
    """How to train.

    method : "blocks", "whole" or "both". epochs : over all samples, of the whole. block_epochs : of
    each block. lr, scale_lr : Adam's step for parameters (relative to their size) and for log2 of
    scales, falling along a cosine. A scale that need not be a power of two drags the weights' grid
    along: its step is a hundredth by default. loss : "distill", "labels" or a function (outputs,
    targets, labels) -> scalar tensor of dicts by tensor name. features : weight of the distance at
    the places between blocks, in the distilling loss. scales : "learned" or "fixed"; None learns
    powers of two and leaves others. rounding : "nearest", or "soft" (AdaRound) for the blocks'
    weights. patience : epochs without a better one before it ends.
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
        choices = {
            "method": ("blocks", "whole", "both"),
            "scales": ("learned", "fixed", None),
            "rounding": ("nearest", "soft"),
        }
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed:
                raise ConfigError(
                    f"{key} '{getattr(self, key)}': it is {' or '.join(filter(None, allowed))}"
                )
        for key in ("epochs", "block_epochs", "batch_size"):
            if getattr(self, key) < (1 if key == "batch_size" else 0):
                raise ConfigError(f"{key} {getattr(self, key)}: it must be positive")
        try:
            there = torch.device(self.device).type != "cuda" or torch.cuda.is_available()
        except RuntimeError:
            there = False
        if not there:
            raise ConfigError(
                f"device '{self.device}': this machine, or this PyTorch, has none; it is cpu or "
                "cuda"
            )
        for key in ("lr", "scale_lr"):
            if getattr(self, key) is not None and not 0 <= getattr(self, key) < math.inf:
                raise ConfigError(f"{key} {getattr(self, key)}: a step size is a number from 0 on")


@dataclass(frozen=True)
class Epoch:
    """One line of the history.

    What was trained, its number, the mean loss and the metric on the evaluation data.
    """

    part: str
    number: int
    loss: float
    metric: float | None = None
