"""Modules that another package imports early and hardly ever needs: loaded when it first uses them.

While that package is imported it finds stand-ins under these names. Afterwards they are gone from
`sys.modules`: only that package still holds them, and everybody else imports what is always there.
Knows names of modules only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

__all__ = ["defer_imports"]


class _DeferredModule(ModuleType):
    """Imports the module that it stands for when an attribute is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # what the import system asks of a module that it finds
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # used while it is imported
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


@contextmanager
def defer_imports(*names: str) -> Iterator[None]:
    """Let what the block imports have stand-ins for the modules `names`, those apart that are loaded already."""
    new = [name for name in names if name not in sys.modules]
    for name in new:
        sys.modules[name] = _DeferredModule(name)
    try:
        yield
    finally:
        for name in new:
            if isinstance(sys.modules.get(name), _DeferredModule):
                del sys.modules[name]
