"""A user's function, named as ``module:function`` or ``file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import DataError, suggest_nearest, wrap_user_errors

__all__ = ["import_function", "load_function"]


def load_function(text: str, what: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` or ``file.py:function`` names.

    DataError when there is none.
    """
    module, colon, name = text.rpartition(":")
    if not (colon and module and name.isidentifier()):
        raise DataError(
            f"{what}: '{text}' is not module:function or file.py:function; name it so, such as "
            "calib.py:batches"
        )
    return import_function(module, name, what)


def import_function(module: str, name: str, what: str) -> Callable[..., Any]:
    """Return the function `name` of a module, or of a file that ends in .py.

    DataError when there is none.
    """
    with wrap_user_errors(f"{what}: importing {module} failed", DataError):
        if module.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(module).stem, module)
            if spec is None or spec.loader is None or not Path(module).is_file():
                raise DataError(
                    f"{what}: no file {module}; give its path from this folder, or a whole one"
                )
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
        else:
            loaded = importlib.import_module(module)
    function = getattr(loaded, name, None)
    if not callable(function):
        names = [n for n, v in vars(loaded).items() if inspect.isfunction(v)]
        listed = (
            f"; it has {', '.join(names[:8])}" if names else "; write one that returns the data"
        )
        raise DataError(
            f"{what}: {module} has no function '{name}'{suggest_nearest(name, names)}{listed}"
        )
    return function
