"""A torch model by name: ``file.py:name`` or ``module:name``, a Module or what returns one.

Knows Python modules and nothing of ONNX. The file is run as ``python file.py`` would find it: its
own folder is on the import path meanwhile, so that it may import its neighbours.
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

from ...errors import ConfigError, suggest_nearest, wrap_user_errors

__all__ = ["load_model"]


def load_model(text: str) -> tuple[nn.Module, Any]:
    """Return the Module that `text` names, and the arguments that came with it or None.

    The name is a Module, or a class or function without arguments that returns one, or returns
    ``(Module, arguments)``. Raises ConfigError.
    """
    home, colon, name = text.rpartition(":")
    if not (colon and home and name.isidentifier()):
        raise ConfigError(f"'{text}' names no model; give file.py:name or module:name")
    with _importable(home):
        found = _attribute(home, name)
        made = _call(found, text) if callable(found) and not isinstance(found, nn.Module) else found
    args = None
    if isinstance(made, tuple) and len(made) == 2:
        made, args = made
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"{text} is a {type(made).__name__}; give a torch.nn.Module, or what returns one"
        )
    return made, args


@contextlib.contextmanager
def _importable(home: str) -> Iterator[None]:
    folder = str(Path(home).resolve().parent) if home.endswith(".py") else str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _attribute(home: str, name: str) -> Any:
    with wrap_user_errors(f"importing {home} failed", ConfigError):
        module = _file(Path(home)) if home.endswith(".py") else importlib.import_module(home)
    if not hasattr(module, name):
        names = [
            key
            for key, value in vars(module).items()
            if isinstance(value, nn.Module)
            or inspect.isroutine(value)
            or (inspect.isclass(value) and issubclass(value, nn.Module))
        ]
        raise ConfigError(f"{home} has no '{name}'{suggest_nearest(name, names)}")
    return getattr(module, name)


def _file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"lingeronnx_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _call(found: Any, text: str) -> Any:
    with wrap_user_errors(f"{text}(), which is called without arguments, failed", ConfigError):
        return found()
