"""Differences between the versions of a chip's executor, for listings, reports and pages.

They are read from the targets of the versions; no version has code or text of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._target import Target

__all__ = ["VersionChanges", "list_version_changes"]


@dataclass(frozen=True)
class VersionChanges:
    """Differences of a version from the version before it.

    target : the version.
    unmeasured : why the version was never measured; "" if it was.
    changed_operators : operators that compute other integers, or did not exist.
    removed_operators : operators that no longer exist.
    unmeasured_operators : operators that are known from reading only, although others are measured.
    fixed_faults, new_faults : keys of known faults that end and begin.
    """

    target: Target
    unmeasured: str
    changed_operators: tuple[str, ...]
    removed_operators: tuple[str, ...]
    unmeasured_operators: tuple[str, ...]
    fixed_faults: tuple[str, ...]
    new_faults: tuple[str, ...]

    @property
    def basis(self) -> str:
        """What the version's description stands on: "measured" or "read only"."""
        return "read only" if self.unmeasured else "measured"


def list_version_changes(versions: tuple[Target, ...]) -> list[VersionChanges]:
    """Return the changes of each of `versions`, oldest first; the oldest itself has none."""
    changes = []
    for previous, target in zip((*versions[:1], *versions), versions, strict=False):
        changes.append(
            VersionChanges(
                target=target,
                unmeasured=target.unmeasured.get("", ""),
                changed_operators=tuple(
                    operator
                    for operator in dict.fromkeys((*target.ops, *target.also))
                    if target.find_arithmetic(operator) != previous.find_arithmetic(operator)
                    or previous.find_arithmetic(operator) is None
                ),
                removed_operators=tuple(op for op in previous.ops if op not in target.ops),
                unmeasured_operators=tuple(op for op in target.unmeasured if op),
                fixed_faults=_list_keys(previous, target),
                new_faults=_list_keys(target, previous),
            )
        )
    return changes


def _list_keys(target: Target, other: Target) -> tuple[str, ...]:
    """Return the keys of the faults that `target` has and `other` does not, each once."""
    return tuple(dict.fromkeys(fault.key for fault in target.faults if fault not in other.faults))
