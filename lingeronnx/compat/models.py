"""What the faces are given for a model and its inputs, turned into what the functions below them take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["exported", "fed", "is_module"]


def is_module(model: Any) -> bool:
    """Whether `model` is a torch module."""
    return hasattr(model, "named_modules")


def exported(model: Any, example: Any, path: Path) -> Any:
    """Return `model`, or where it is a torch module, the session on its export to `path`, called with `example`."""
    if not is_module(model):
        return model
    from ..torch.watch import exported as export

    return export(model, example, path)


def fed(example: Any, names: Sequence[str]) -> Any:
    """Return data for a model with inputs `names`: tensors as arrays, a tuple by the order of the inputs."""
    if hasattr(example, "detach"):
        return _array(example)
    if isinstance(example, Mapping):
        return {str(name): _array(value) for name, value in example.items()}
    if isinstance(example, tuple) and len(example) == len(names):
        return {name: _array(value) for name, value in zip(names, example, strict=True)}
    return example


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
