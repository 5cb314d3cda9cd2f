"""The known targets: the idealised one, the chips of the built-in vendors, and installed ones.

A vendor is a package with its targets as `PLATFORMS`, a sequence of `Target`. If their executors
have several versions, `VERSIONS` has the targets of the others. Built-in vendors are listed in
`BUILT_IN`. Packages of third parties declare an entry point in the group `lingeronnx.targets`::

    [project.entry-points."lingeronnx.targets"]
    acme = "acme_npu"

They are imported when a name is looked up that no built-in target has, or when all targets are
listed: a run on a built-in target neither pays for them nor fails with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING

from ..common.errors import ConfigError, get_exception_text, suggest_nearest
from ._target import Target, format_platform_name, split_platform_name
from .generic import GENERIC

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "ENTRY_POINT_GROUP",
    "PLATFORMS",
    "get_installed_targets",
    "get_target",
    "get_versions",
]

#: The packages of the built-in vendors. The first target of the first one is the default.
BUILT_IN = ("lingeronnx.luna",)
#: Group of the entry points that name the packages of third parties.
ENTRY_POINT_GROUP = "lingeronnx.targets"

_CHIPS: tuple[Target, ...] = tuple(
    target for name in BUILT_IN for target in import_module(name).PLATFORMS
)
DEFAULT = _CHIPS[0]
PLATFORMS = (GENERIC, *_CHIPS)


def get_target(name_or_target: str | Target) -> Target:
    """Return the target of this name, or `name_or_target` itself if it is a `Target`.

    Names are compared exactly. ``CHIP@VERSION`` is the chip with a version of its executor; without
    one it has the version of `PLATFORMS`. Targets of installed packages are read if no built-in one
    has this name.

    Raises
    ------
    ConfigError
        If there is no target of this name, where the message suggests the nearest one; or if the
        targets of an installed package cannot be read.
    """
    if isinstance(name_or_target, Target):
        return name_or_target
    target = (
        _find_target(name_or_target, PLATFORMS)
        or _find_target(name_or_target, _read_other_versions())
        or _find_target(name_or_target, _read_installed_rows())
    )
    if target is not None:
        return target
    targets = (*PLATFORMS, *get_installed_targets())
    chip, version = split_platform_name(name_or_target)
    if version is not None and any(target.name == chip for target in targets):
        raise ConfigError(_describe_unknown_version(version, get_target(chip)))
    names = [target.name for target in targets]
    raise ConfigError(
        f"unknown platform '{name_or_target}'{suggest_nearest(name_or_target, names)}; known: "
        f"{', '.join(names)}"
    )


def get_installed_targets() -> tuple[Target, ...]:
    """Return the targets of installed packages, each chip once, in the order of the packages.

    Raises
    ------
    ConfigError
        If a package cannot be imported, has no targets, or has a name that is taken. The message
        names the package.
    """
    chips: dict[str, Target] = {}
    for target in _read_installed_rows():
        chips.setdefault(target.chip, target)
    return tuple(chips.values())


def get_versions(target: Target) -> tuple[Target, ...]:
    """Return the targets of all known versions of the chip of `target`, oldest first.

    Empty if the chip is not known. `target` is none of them if it is a target of the user.
    """
    rows = tuple(row for row in (*PLATFORMS, *_read_other_versions()) if row.chip == target.chip)
    return rows or tuple(row for row in _read_installed_rows() if row.chip == target.chip)


def _find_target(name: str, targets: Iterable[Target]) -> Target | None:
    """Return the target of this name, with or without the version of its executor, or None."""
    chip, version = split_platform_name(name)
    for target in targets:
        if target.name == name:
            return target
        if version is not None and (target.chip, target.executor) == (chip, version):
            return target
    return None


@cache
def _read_other_versions() -> tuple[Target, ...]:
    """Return the targets of the versions of built-in chips that `PLATFORMS` does not have."""
    packages = [import_module(name) for name in BUILT_IN]
    return tuple(target for package in packages for target in getattr(package, "VERSIONS", ()))


@cache
def _read_installed_rows() -> tuple[Target, ...]:
    """Return the targets of all entry points, in order of their names, and all their versions."""
    from importlib.metadata import entry_points  # slow, and most runs do without

    built_in = (*PLATFORMS, *_read_other_versions())
    owners = {target.name: "lingeronnx" for target in built_in}
    rows: list[Target] = []
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda each: each.name):
        owner = _format_entry_point(entry_point)
        for target in _load_targets(entry_point, owner):
            if target.name in owners:
                raise ConfigError(
                    f"{owner}: platform '{target.name}' is already one of {owners[target.name]}; "
                    "rename it, or uninstall one of the packages"
                )
            owners[target.name] = owner
            rows.append(target)
    return tuple(rows)


def _load_targets(entry_point: EntryPoint, owner: str) -> tuple[Target, ...]:
    """Import the package of an entry point, and return its targets; ConfigError if it has none."""
    try:
        package = entry_point.load()
    except Exception as error:  # code of a third party
        raise ConfigError(
            f"{owner}: '{entry_point.value}' cannot be imported: {type(error).__name__}: "
            f"{get_exception_text(error)}; repair or uninstall the package"
        ) from error
    rows: list[Target] = []
    for attribute, default in (("PLATFORMS", None), ("VERSIONS", ())):
        targets = getattr(package, attribute, default)
        if not isinstance(targets, tuple | list) or not all(
            isinstance(target, Target) for target in targets
        ):
            raise ConfigError(
                f"{owner}: {attribute} of '{entry_point.value}' is no tuple of "
                "lingeronnx.targets.Target; repair or uninstall the package"
            )
        rows += targets
    return tuple(rows)


def _format_entry_point(entry_point: EntryPoint) -> str:
    """Format an entry point for messages, with its package and the package's version."""
    package = entry_point.dist
    name = f"entry point '{entry_point.name}' of {ENTRY_POINT_GROUP}"
    return f"{name} in {package.name} {package.version}" if package is not None else name


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
