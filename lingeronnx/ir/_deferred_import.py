"""Defer imports that a third-party package makes at import time but rarely needs.

While the package is imported, placeholders stand in `sys.modules` under the names of the deferred
modules. Afterwards the placeholders are removed: only that package still refers to them, and every
other import gets the real module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

__all__ = ["defer_imports"]


class _DeferredModule(ModuleType):
    """Placeholder that imports the module of its name when an attribute is read."""

    def __getattr__(self, name: str) -> object:
        """Import the module of this name if it is not loaded yet, and return its attribute `name`.

        Raises AttributeError for names that begin with two underscores, without importing anything.
        """
        if name.startswith("__"):  # the import system reads these of every module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # used inside the block of `defer_imports`
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def defer_imports(*names: str) -> Iterator[None]:
    """Let imports of the modules `names` in the block load them only when an attribute is read.

    For modules that a package imports but rarely needs; those that are loaded already are not
    affected. In the block `sys.modules` has a placeholder for each, which is removed at the end,
    also after an error. Whoever imported the placeholder keeps it.
    """
    deferred = [name for name in names if name not in sys.modules]
    for name in deferred:
        sys.modules[name] = _DeferredModule(name)
    try:
        yield
    finally:
        for name in deferred:
            if isinstance(sys.modules.get(name), _DeferredModule):
                del sys.modules[name]
