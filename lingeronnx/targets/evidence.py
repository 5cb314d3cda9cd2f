"""What a description of a chip's executor stands on: runs of its programs, or their text alone.

`Target.unmeasured` names what was never run. Commands refuse it unless the user allows it, and
say so in every report.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..common.errors import ConfigError
from ._target import Target

__all__ = ["describe_unmeasured", "require_measured"]


def describe_unmeasured(target: Target, operators: Iterable[str] = ()) -> list[str]:
    """Return a line for the executor of `target` and each of `operators` that was never measured.

    Only the line on the executor if nothing of it was measured; empty if all was.
    """
    if "" in target.unmeasured:
        return [f"{target.name} is not measured: {target.unmeasured['']}"]
    return [
        f"{operator} on {target.name} is not measured: {target.unmeasured[operator]}"
        for operator in dict.fromkeys(operators)
        if operator in target.unmeasured
    ]


def require_measured(
    target: Target, operators: Iterable[str] = (), allow_unmeasured: bool = False
) -> list[str]:
    """Return the lines of `describe_unmeasured`, which a report repeats.

    Raises
    ------
    ConfigError
        If there are any and `allow_unmeasured` is False.
    """
    lines = describe_unmeasured(target, operators)
    if lines and not allow_unmeasured:
        raise ConfigError(
            f"not allowed without --allow-unmeasured: {lines[0]}; choose a version or operator "
            "that was measured"
        )
    return lines
