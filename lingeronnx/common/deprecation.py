"""Deprecated names of public functions, parameters and members, which warn until removed."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

__all__ = ["accept_old_parameters", "forward_names", "keep_old_members", "warn_deprecated"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type[Any])


def warn_deprecated(old: str, new: str, removed_in: str) -> None:
    """Issue a DeprecationWarning that `old` is now `new` and that version `removed_in` removes it.

    It is attributed to the code that called the caller of this function.
    """
    warnings.warn(
        f"{old} is deprecated and will be removed in {removed_in}; use {new}",
        DeprecationWarning,
        stacklevel=3,
    )


def accept_old_parameters(
    removed_in: str, **new_names: str
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Decorate a public function so that it also accepts former names of its parameters.

    The decorated function raises TypeError if it gets both names of a parameter.

    Parameters
    ----------
    removed_in
        Version that removes the former names.
    **new_names
        Former name -> current name of each parameter.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return `function`, wrapped so that former parameter names work too, with a warning.

        A call with both names of a parameter raises TypeError.
        """

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            """Rename former parameters with a warning, and call the function.

            Raises TypeError if a parameter is passed under both names.
            """
            for old, new in new_names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(
                        f"{function.__name__}() got both '{new}' and its former name '{old}'"
                    )
                warn_deprecated(f"parameter {old} of {function.__name__}", new, removed_in)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def keep_old_members(removed_in: str, **new_names: str) -> Callable[[_Class], _Class]:
    """Decorate a public class so that its members are also available by their former names.

    Reading a former name of a field, property or method warns. If the class is a dataclass, its
    constructor also accepts the former names of fields.

    Parameters
    ----------
    removed_in
        Version that removes the former names.
    **new_names
        Former name -> current name of each member.
    """

    def decorate(cls: _Class) -> _Class:
        """Give `cls` its former members, in place, and return it.

        For a dataclass, former field names are also accepted as parameters.
        """
        fields = getattr(cls, "__dataclass_fields__", {})
        old_fields = {old: new for old, new in new_names.items() if new in fields}
        if old_fields:
            type.__setattr__(
                cls, "__init__", accept_old_parameters(removed_in, **old_fields)(cls.__init__)
            )
        for old, new in new_names.items():
            type.__setattr__(cls, old, _OldMember(f"{cls.__name__}.{old}", new, removed_in))
        return cls

    return decorate


def forward_names(old: str, module: ModuleType, gone: str) -> Callable[[str], object]:
    """Return a `__getattr__` for module `old` that warns and takes names from `module`.

    Version `gone` removes `old`. Names with two underscores are not forwarded: AttributeError.
    """

    def get_name(name: str) -> object:
        """Warn, and return `name` of the new module; AttributeError if it has none."""
        if name.startswith("__"):
            raise AttributeError(f"module '{old}' has no attribute '{name}'")
        value = getattr(module, name)
        warn_deprecated(f"{old}.{name}", f"{module.__name__}.{name}", gone)
        return value

    return get_name


class _OldMember:
    """Descriptor that warns and reads the member `new` of the object or class."""

    def __init__(self, old: str, new: str, removed_in: str) -> None:
        """Store the former name ("Class.member"), the new name, and the version of removal."""
        self._old, self._new, self._gone = old, new, removed_in

    def __get__(self, instance: object | None, owner: type[Any]) -> Any:  # noqa: ANN401 - any member
        """Warn that the former member is deprecated, and return the new one.

        It is read from `instance`, or from the class if that is None.
        """
        warn_deprecated(self._old, f"{owner.__name__}.{self._new}", self._gone)
        return getattr(owner if instance is None else instance, self._new)
