"""What is believed of the packer and its executors and was never measured.

A rule that only reading supports bears the mark `unmeasured`;
`grep -rn "@unmeasured" lingeronnx/targets/luna` lists them. Such a rule may refuse. A promise hangs
on a belief only where no arguments make the graph right without it, and then the verdict tells it
(`Verdict.beliefs`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["UNMEASURED_RULES", "unmeasured"]

_Rule = TypeVar("_Rule", bound=Callable[..., Any])

#: "module.function" -> what it takes for granted.
UNMEASURED_RULES: dict[str, str] = {}


def unmeasured(assumption: str) -> Callable[[_Rule], _Rule]:
    """Mark a rule as supported by reading alone; `assumption` says what it takes for granted."""

    def mark(rule: _Rule) -> _Rule:
        UNMEASURED_RULES[f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}"] = assumption
        return rule

    return mark
