"""Load the public names of a package on first use, so that a caller loads only what it calls."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["make_name_loader"]


def make_name_loader(package: str, home: Mapping[str, str]) -> Callable[[str], object]:
    """Make the `__getattr__` of a package that loads its names on first use.

    Parameters
    ----------
    package
        Name of the package.
    home
        Public name -> module that defines it, relative to the package, such as ".run".

    Returns
    -------
    Callable
        Returns the object of a public name; raises AttributeError for any other name.
    """

    def load_name(name: str) -> object:
        """Import the home of `name` and return the object, which the package then has itself."""
        if name not in home:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(home[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return load_name
