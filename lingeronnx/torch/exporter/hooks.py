"""Observation of the calls of a torch module by forward hooks, and the same calls in ONNX."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...common.errors import ConfigError
from ...runtime.session import Session
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
    is_selected: Callable[[str], bool],
    watch: Callable[[str, np.ndarray, None], None],
) -> Iterator[None]:
    """Call `watch` with the outputs of submodules of `model` within a context.

    Parameters
    ----------
    model
        Module whose submodules are observed; it is not itself.
    is_selected
        Function of a module path that selects the submodules.
    watch
        Called with (path, array, None) for each output tensor. If a submodule returns several
        tensors, their index is appended to the path.

    Raises
    ------
    ConfigError
        If no submodule is selected.
    """
    modules = [
        (path, module) for path, module in model.named_modules() if path and is_selected(path)
    ]
    if not modules:
        raise ConfigError("no submodule has a name that matches the pattern")

    def make_hook(path: str) -> Callable[..., None]:
        """Make the forward hook that passes each tensor of a module's output to `watch`.

        A tensor is named `path` if it is the only one, else `path.index`; floating-point tensors
        are passed as float32 arrays, others with their own type.
        """

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            """Call ``watch(name, array, None)`` with each tensor of `output` as a NumPy array.

            The name is the module's path, with ".0", ".1" ... if there are several; floats are
            float32.
            """
            tensors = list(_iterate_tensors(output))
            for index, tensor in enumerate(tensors):
                array = tensor.detach().cpu()
                array = array.float() if array.is_floating_point() else array
                watch(path if len(tensors) == 1 else f"{path}.{index}", array.numpy(), None)

        return hook

    handles = [module.register_forward_hook(make_hook(path)) for path, module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _iterate_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors in the return value of a module, in order, also inside dicts and lists."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _iterate_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _iterate_tensors(value)


def count_module_calls(model: nn.Module, args: Any) -> list[tuple[str, str, int]]:
    """Count how often one call of `model` calls each of its leaf modules.

    Parameters
    ----------
    args
        A tuple of arguments, a dict of keyword arguments, or a single argument.

    Returns
    -------
    list of (path, type, count)
        A module with several paths is listed under the first.
    """
    leaves = {
        path: module for path, module in model.named_modules() if path and not [*module.children()]
    }
    counts = dict.fromkeys(leaves, 0)

    def make_hook(path: str) -> Callable[..., None]:
        """Return the forward hook that adds 1 to `counts[path]`."""

        def hook(*_: Any) -> None:
            """Add 1 to the calls of the module `path`."""
            counts[path] += 1

        return hook

    handles = [module.register_forward_hook(make_hook(path)) for path, module in leaves.items()]
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
    return [(path, type(leaves[path]).__name__, count) for path, count in counts.items()]


def export_session(
    model: nn.Module,
    args: Any,
    path: str | os.PathLike[str],
    kwargs: Any = None,
    keep_stacks: bool = False,
) -> Session:
    """Export `model` to the file `path`, and return a session on it.

    Raises ModelError or ConfigError if it cannot be exported.

    Parameters
    ----------
    args
        A tuple of arguments, a dict of keyword arguments, or a single argument.
    kwargs
        Further keyword arguments, or None.
    keep_stacks
        Whether nodes of the file note their place in the source.
    """
    args = args if isinstance(args, tuple | dict) else (args,)
    return Session(export(model, args, path, kwargs=kwargs or None, keep_stacks=keep_stacks).path)


def export_session_for(
    model: nn.Module,
    feeds: Mapping[str, np.ndarray],
    path: str | os.PathLike[str],
    exporter: str | None = None,
) -> Session:
    """Export `model` to `path` and return a session on it.

    Parameters
    ----------
    feeds
        Positional arguments of the model in order, by the names that its inputs get.
    exporter
        Name of the exporter, or None for the default one.
    """
    args = tuple(torch.from_numpy(np.array(array)) for array in feeds.values())
    exported = export(model, args, path, input_names=list(feeds), exporter=exporter)
    return Session(exported.path)


@contextlib.contextmanager
def mirror_calls(
    model: nn.Module, path: str | os.PathLike[str], on_session: Callable[[Session], None]
) -> Iterator[None]:
    """Run each call of `model` within a context also in onnxruntime, on an export of the model.

    Parameters
    ----------
    path
        File for the export, which is written at the first call; its nodes note their place in the
        source.
    on_session
        Called with the session on the export, before its first run.
    """
    session: Session | None = None
    is_busy = False  # the export calls the module again

    def hook(_module: nn.Module, args: Any, kwargs: Any, _output: Any) -> None:
        """Run the exported session on the tensors of this call of the model.

        Its results are dropped. The first call exports the model and passes the session to
        `on_session`. Calls that the export itself makes are ignored.
        """
        nonlocal session, is_busy
        if is_busy:
            return
        is_busy = True
        try:
            if session is None:
                session = export_session(model, args, path, kwargs, keep_stacks=True)
                on_session(session)
            call = ModuleCall(model, args, kwargs, None)
            arrays = [tensor.detach().cpu().numpy() for tensor in call.tensors]
            session.run(None, dict(zip(call.names, arrays, strict=True)))
        finally:
            is_busy = False

    handle = model.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
