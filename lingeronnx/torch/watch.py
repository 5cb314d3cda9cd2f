"""What the submodules of a torch module put out, by forward hooks; knows modules and nothing of ONNX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..errors import ConfigError

__all__ = ["watched"]


@contextlib.contextmanager
def watched(
    model: nn.Module, wanted: Callable[[str], bool], watch: Callable[[str, np.ndarray, None], None]
) -> Iterator[None]:
    """Call `watch` with (path, array, None) for every tensor that a submodule with a `wanted` path puts out.

    A submodule with several tensors adds their numbers to the path. Raises ConfigError where no path is wanted.
    """
    named = [(name, module) for name, module in model.named_modules() if name and wanted(name)]
    if not named:
        raise ConfigError("no submodule has a name that fits the pattern")

    def hook(name: str) -> Callable[..., None]:
        def seen(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensors = list(_tensors(output))
            for number, tensor in enumerate(tensors):
                array = tensor.detach().cpu()
                array = array.float() if array.is_floating_point() else array
                watch(name if len(tensors) == 1 else f"{name}.{number}", array.numpy(), None)

        return seen

    handles = [module.register_forward_hook(hook(name)) for name, module in named]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a module returned, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
