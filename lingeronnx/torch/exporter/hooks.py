"""Torch modules followed while they are called, by forward hooks: what submodules put out.

The same calls in ONNX.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ...run.session import Session
from .float_export import export
from .signature import ModuleCall

__all__ = [
    "count_module_calls",
    "export_session",
    "export_session_for",
    "mirror_calls",
    "watch_outputs",
]


@contextlib.contextmanager
def watch_outputs(
    model: nn.Module,
    is_wanted: Callable[[str], bool],
    watch: Callable[[str, np.ndarray, None], None],
) -> Iterator[None]:
    """Call `watch` with (path, array, None) for every tensor that a submodule with a `is_wanted` path puts out.

    A submodule with several tensors adds their numbers to the path. Raises ConfigError where no
    path is wanted.
    """
    named = [(name, module) for name, module in model.named_modules() if name and is_wanted(name)]
    if not named:
        raise ConfigError("no submodule has a name that fits the pattern")

    def hook(name: str) -> Callable[..., None]:
        def seen(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensors = list(_iterate_tensors(output))
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


def _iterate_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in what a module returned, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _iterate_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _iterate_tensors(value)


def count_module_calls(model: nn.Module, args: Any) -> list[tuple[str, str, int]]:
    """Return (path, type, number) of the modules without modules in them.

    How often one call of `model` calls each.
    args : as `export_session` takes them. A module that stands under several paths has the first.
    """
    counted = {
        path: 0 for path, module in model.named_modules() if path and not [*module.children()]
    }

    def hook(path: str) -> Callable[..., None]:
        def seen(*_: Any) -> None:
            counted[path] += 1

        return seen

    handles = [
        module.register_forward_hook(hook(path))
        for path, module in model.named_modules()
        if path in counted
    ]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            if isinstance(args, dict):
                model(**args)
            else:
                model(*(args if isinstance(args, tuple) else (args,)))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    modules = dict(model.named_modules())
    return [(path, type(modules[path]).__name__, number) for path, number in counted.items()]


def export_session(
    model: nn.Module, args: Any, path: str | os.PathLike[str], kwargs: Any = None
) -> Session:
    """Export `model`, called with `args`, to `path` and return a session on it.

    Raises what `export` raises.
    """
    args = args if isinstance(args, tuple | dict) else (args,)
    return Session(export(model, args, path, kwargs=kwargs or None).path)


def export_session_for(
    model: nn.Module, feeds: Mapping[str, np.ndarray], path: str | os.PathLike[str]
) -> Session:
    """Export `model`, called with the arrays of `feeds` in their order, which name its inputs.

    See `export_session`.
    """
    args = tuple(torch.from_numpy(np.array(array)) for array in feeds.values())
    return Session(export(model, args, path, input_names=list(feeds)).path)


@contextlib.contextmanager
def mirror_calls(
    model: nn.Module, path: str | os.PathLike[str], on_session: Callable[[Session], None]
) -> Iterator[None]:
    """Export `model` at its first call in the block, tell `on_session`, and run each call in that session as well."""
    session: Session | None = None
    busy = False  # an export calls the module

    def seen(_module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        nonlocal session, busy
        if busy:
            return
        busy = True
        try:
            if session is None:
                session = export_session(model, args, path, kwargs)
                on_session(session)
            call = ModuleCall(model, args, kwargs, None)
            session.run(
                None,
                {
                    n: t.detach().cpu().numpy()
                    for n, t in zip(call.names, call.tensors, strict=True)
                },
            )
        finally:
            busy = False

    handle = model.register_forward_hook(seen, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
