"""The known targets: the idealised one, and the chips of the built-in vendors."""

from __future__ import annotations

from importlib import import_module

from ..common.errors import ConfigError, suggest_nearest
from ._target import Target
from .generic import GENERIC

__all__ = ["BUILT_IN", "DEFAULT", "PLATFORMS", "get_target"]

#: The vendors' packages, each with its targets as PLATFORMS. The first target of the first package
#: is the default.
BUILT_IN = ("lingeronnx.luna",)

_CHIPS: tuple[Target, ...] = tuple(
    target for name in BUILT_IN for target in import_module(name).PLATFORMS
)
DEFAULT = _CHIPS[0]
PLATFORMS = (GENERIC, *_CHIPS)


def get_target(name_or_target: str | Target) -> Target:
    """Return the target of this name, or `name_or_target` itself if it is a `Target`.

    Names are compared exactly.

    Raises
    ------
    ConfigError
        If there is no target of this name; the message suggests the nearest one.
    """
    if isinstance(name_or_target, Target):
        return name_or_target
    for target in PLATFORMS:
        if target.name == name_or_target:
            return target
    names = [target.name for target in PLATFORMS]
    raise ConfigError(
        f"unknown platform '{name_or_target}'{suggest_nearest(name_or_target, names)}; known: "
        f"{', '.join(names)}"
    )
