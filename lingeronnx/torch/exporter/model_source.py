"""Loading of a torch model by name: ``file.py:name`` or ``module:name``.

A file is executed as by ``python file.py``: its folder is on the import path in the meantime, so
that it can import modules next to it. This module knows Python modules, but no ONNX.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from ...common.errors import ConfigError, suggest_nearest, wrap_user_errors
from ...common.files import resolve_path

__all__ = ["load_model"]


def load_model(text: str) -> tuple[nn.Module, Any]:
    """Load the model that `text` names.

    Parameters
    ----------
    text
        ``file.py:name`` or ``module:name``. The name, an identifier without dots, refers to a
        Module, or to a class or function without arguments that returns a Module or
        ``(Module, arguments)``.

    Returns
    -------
    model : nn.Module
    args
        The arguments that came with the model, or None.

    Raises
    ------
    ConfigError
        If there is no such model, or the code fails.
    """
    source, colon, name = text.rpartition(":")
    if not (colon and source and name.isidentifier()):
        raise ConfigError(f"'{text}' is not the name of a model; pass file.py:name or module:name")
    with _importable(source):
        model = _load_attribute(source, name)
        if callable(model) and not isinstance(model, nn.Module):
            model = _call_factory(model, text)
    args = None
    if isinstance(model, tuple) and len(model) == 2:
        model, args = model
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{text} is a {type(model).__name__}; pass a torch.nn.Module, or a function that "
            "returns one"
        )
    return model, args


@contextlib.contextmanager
def _importable(source: str) -> Iterator[None]:
    """Context manager that puts the folder of `source` first on the import path.

    It is the folder of a .py file, or the current folder for a module name.
    """
    folder = str(resolve_path(source).parent) if source.endswith(".py") else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _load_attribute(source: str, name: str) -> Any:
    """Import `source`, a .py file or a module name, and return its attribute `name`.

    Raises ConfigError if the import fails or there is no such attribute; the message then suggests
    the most similar name of a model.
    """
    with wrap_user_errors(f"importing {source} failed", ConfigError):
        if source.endswith(".py"):
            module = _import_file(Path(source))
        else:
            module = importlib.import_module(source)
    if not hasattr(module, name):
        candidates = [key for key, value in vars(module).items() if _is_model_source(value)]
        raise ConfigError(f"{source} has no '{name}'{suggest_nearest(name, candidates)}")
    return getattr(module, name)


def _is_model_source(value: Any) -> bool:
    """Whether a value can give a model: a Module, a Module class or a function."""
    if isinstance(value, nn.Module) or inspect.isroutine(value):
        return True
    return inspect.isclass(value) and issubclass(value, nn.Module)


def _import_file(path: Path) -> Any:
    """Execute a Python file as a new module and return it; ConfigError if it is no Python file."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"lingeronnx_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def _call_factory(factory: Any, text: str) -> Any:
    """Call a class or function without arguments and return the result.

    Raises ConfigError, with its name `text`, if it fails.
    """
    with wrap_user_errors(f"{text}(), which is called without arguments, failed", ConfigError):
        return factory()
