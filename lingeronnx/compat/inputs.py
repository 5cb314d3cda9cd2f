"""Conversion of models and inputs of other tools into those of this package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

import numpy as np

from ..ir import ir
from ..quantization import QuantizedModel
from ..runtime.session import Session

__all__ = [
    "Model",
    "OnnxModel",
    "TorchModule",
    "convert_inputs",
    "export_if_module",
    "get_initialised_model",
    "get_trace_exporter",
    "is_initialised",
    "is_module",
    "is_onnx_model",
]


class TorchModule(Protocol):
    """The interface of a torch module that this package uses."""

    def named_modules(self) -> Iterable[tuple[str, object]]:
        """Yield (path, module) of the module itself and of all its submodules."""
        ...


#: A file, a graph, a session or the result of `quantize`; a `Model` can also be a torch module.
OnnxModel = str | os.PathLike[str] | ir.Model | Session | QuantizedModel
Model = OnnxModel | TorchModule


def is_module(model: object) -> TypeGuard[TorchModule]:
    """Whether `model` is a torch module; without importing torch, it must have `named_modules`."""
    return hasattr(model, "named_modules")


def is_initialised(model: object) -> bool:
    """Whether `model` is a net after `lo.torch.init`."""
    if not is_module(model):
        return False
    from ..torch.training_api.quantized_net import QuantizedNet

    return isinstance(model, QuantizedNet)


def is_onnx_model(model: object) -> TypeGuard[OnnxModel]:
    """Whether `model` is an `OnnxModel`: a path, graph, session or result of `quantize`."""
    return isinstance(model, str | os.PathLike | ir.Model | Session | QuantizedModel)


def export_if_module(model: Model, example: object, path: Path) -> OnnxModel:
    """Return an ONNX model as it is; export a torch module to `path` and return a session on it.

    Of a net after `lo.torch.init` it is the integer graph.

    Parameters
    ----------
    example
        Inputs that the module is called with during the export; not used for an ONNX model.
    path
        File that is written.
    """
    if is_onnx_model(model):
        return model
    quantized = get_initialised_model(model, example)
    if quantized is not None:
        return quantized
    from ..torch.exporter.hooks import export_session as export

    return export(model, example, path)


def get_initialised_model(model: object, example: object = None) -> QuantizedModel | None:
    """Return the integer graph of a net after `lo.torch.init`, and None for anything else.

    `example` are arguments of a call, for a net that was not called yet; raises ConfigError if it
    is needed.
    """
    if not is_initialised(model):
        return None
    from ..torch.training_api.observed_net import get_quantized_model

    return get_quantized_model(model, example)


def get_trace_exporter(model: object) -> str | None:
    """Return the exporter that a net after `lo.torch.init` was traced with, None for other objects.

    The float net has the same tensor names in an export by the same exporter.
    """
    if not is_initialised(model):
        return None
    from ..torch.training_api.quantized_net import get_qat_state

    return get_qat_state(model).settings.exporter


def convert_inputs(example: object, names: Sequence[str]) -> object:
    """Convert example inputs to arrays, or to arrays by input name.

    Parameters
    ----------
    example
        A torch tensor, a mapping of input names to values, or a tuple with a value for each of
        `names`, in this order. Anything else is returned unchanged.
    names
        Names of the inputs.
    """
    if hasattr(example, "detach"):
        return _to_numpy(example)
    if isinstance(example, Mapping):
        return {str(name): _to_numpy(value) for name, value in example.items()}
    if isinstance(example, tuple) and len(example) == len(names):
        return {name: _to_numpy(value) for name, value in zip(names, example, strict=True)}
    return example


def _to_numpy(value: object) -> np.ndarray:
    """Convert a torch tensor or any array-like value to an array."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
