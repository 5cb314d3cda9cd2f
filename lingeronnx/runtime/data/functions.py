"""Load a user's function that is named as ``module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...common.errors import DataError, suggest_nearest, wrap_user_errors

__all__ = ["import_function", "load_function"]


def load_function(text: str, label: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``file.py:function`` names.

    Executes the module.

    Parameters
    ----------
    text
        Name of the function.
    label
        Description of the function's role, for messages.

    Raises
    ------
    DataError
        If there is no such function, or the module fails.
    """
    module, separator, name = text.rpartition(":")
    if not (separator and module and name.isidentifier()):
        raise DataError(
            f"{label}: '{text}' is not module:function or file.py:function; pass a name such as "
            "calib.py:batches"
        )
    return import_function(module, name, label)


def import_function(module: str, name: str, label: str) -> Callable[..., Any]:
    """Return function `name` of a module, or of a file that ends in .py, which is executed.

    Raises
    ------
    DataError
        If there is no such function, or the module fails. `label` describes its role in messages.
    """
    with wrap_user_errors(f"{label}: importing {module} failed", DataError):
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            if spec is None or spec.loader is None or not Path(module).is_file():
                raise DataError(
                    f"{label}: no file {module}; pass a path relative to this folder, or an "
                    "absolute one"
                )
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
        else:
            loaded = importlib.import_module(module)
    function: Callable[..., Any] | None = getattr(loaded, name, None)
    if not callable(function):
        names = [key for key, value in vars(loaded).items() if inspect.isfunction(value)]
        listed = (
            f"; it has {', '.join(names[:8])}" if names else "; write one that returns the data"
        )
        raise DataError(
            f"{label}: {module} has no function '{name}'{suggest_nearest(name, names)}{listed}"
        )
    return function
