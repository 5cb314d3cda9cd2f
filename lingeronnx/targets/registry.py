"""The known targets: the idealised one, and the chips of the built-in vendors."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import zip_longest

from ..common.errors import ConfigError, suggest_nearest
from ._target import Target, format_platform_name, split_platform_name
from .generic import GENERIC

__all__ = ["BUILT_IN", "DEFAULT", "PLATFORMS", "get_target", "get_versions"]

#: The vendors' packages, each with its targets as PLATFORMS and, if their executors have several
#: versions, the targets of the others as VERSIONS. The first target of the first package is the
#: default.
BUILT_IN = ("lingeronnx.luna",)

_CHIPS: tuple[Target, ...] = tuple(
    target for name in BUILT_IN for target in import_module(name).PLATFORMS
)
_VERSIONS: tuple[Target, ...] = tuple(
    target for name in BUILT_IN for target in getattr(import_module(name), "VERSIONS", ())
)
DEFAULT = _CHIPS[0]
PLATFORMS = (GENERIC, *_CHIPS)


def get_target(name_or_target: str | Target) -> Target:
    """Return the target of this name, or `name_or_target` itself if it is a `Target`.

    Names are compared exactly. ``CHIP@VERSION`` is the chip with a version of its executor; without
    one it has the version of `PLATFORMS`.

    Raises
    ------
    ConfigError
        If there is no target of this name; the message suggests the nearest one.
    """
    if isinstance(name_or_target, Target):
        return name_or_target
    for target in (*PLATFORMS, *_VERSIONS):
        if name_or_target in (target.name, format_platform_name(target.chip, target.executor)):
            return target
    chip, version = split_platform_name(name_or_target)
    if version is not None and any(target.name == chip for target in PLATFORMS):
        raise ConfigError(_describe_unknown_version(version, get_target(chip)))
    names = [target.name for target in PLATFORMS]
    raise ConfigError(
        f"unknown platform '{name_or_target}'{suggest_nearest(name_or_target, names)}; known: "
        f"{', '.join(names)}"
    )


def get_versions(target: Target) -> tuple[Target, ...]:
    """Return the targets of all known versions of the chip of `target`, oldest first.

    Empty if the chip is not known. `target` is none of them if it is a target of the user.
    """
    return tuple(row for row in (*PLATFORMS, *_VERSIONS) if row.chip == target.chip)


def _describe_unknown_version(version: str, target: Target) -> str:
    """Return the message that the chip of `target` has no executor `version`, with the nearest."""
    versions = [row.executor for row in get_versions(target)]
    if versions == [""]:
        return f"{target} has no versions; write --platform {target}"
    nearest = min(versions, key=lambda known: _compute_version_distance(version, known))
    return (
        f"unknown version '{version}' of {target}; the nearest is "
        f"{format_platform_name(target.chip, nearest)}; known: {', '.join(versions)}"
    )


def _compute_version_distance(version: str, known: str) -> tuple[float, ...]:
    """Return differences of the numbers of two versions, such as (0, 0, 1) of 3.0.11 and 3.0.10.

    Missing numbers count as 0. A version without numbers has the same distance from all.
    """
    numbers = [[int(number) for number in re.findall(r"\d+", text)] for text in (version, known)]
    return tuple(abs(a - b) for a, b in zip_longest(*numbers, fillvalue=0))
