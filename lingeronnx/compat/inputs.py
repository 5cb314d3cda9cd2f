"""What the faces are given for a model and its inputs, turned into what the functions below them take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np

from ..flow import QuantizedModel
from ..graph import ir
from ..run.session import Session

__all__ = ["Model", "TorchModule", "convert_inputs", "export_if_module", "is_module"]


class TorchModule(Protocol):
    """What is known of a torch module here."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Yield (path, part)."""
        ...


#: What the faces take for a model: a file, a graph, a session, what `quantize` returned; or a torch module.
OnnxModel = str | os.PathLike | ir.Model | Session | QuantizedModel
Model = OnnxModel | TorchModule


def is_module(model: object) -> TypeGuard[TorchModule]:
    """Whether `model` is a torch module."""
    return hasattr(model, "named_modules")


def export_if_module(model: Model, example: object, path: Path) -> OnnxModel:
    """Return `model`, or where it is a torch module, the session on its export to `path`, called with `example`."""
    if isinstance(model, OnnxModel):
        return model
    from ..torch.exporter.hooks import export_session as export

    return export(model, example, path)


def convert_inputs(example: object, names: Sequence[str]) -> object:
    """Return data for a model with inputs `names`.

    Tensors as arrays, a tuple by the order of the inputs.
    """
    if hasattr(example, "detach"):
        return _to_numpy(example)
    if isinstance(example, Mapping):
        return {str(name): _to_numpy(value) for name, value in example.items()}
    if isinstance(example, tuple) and len(example) == len(names):
        return {name: _to_numpy(value) for name, value in zip(names, example, strict=True)}
    return example


def _to_numpy(value: object) -> np.ndarray:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
