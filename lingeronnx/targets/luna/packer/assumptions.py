"""Registry of rules about the packer and its executors that were never measured.

A rule that follows only from reading the sources is decorated with `unmeasured`;
`grep -rn "@unmeasured" lingeronnx/targets/luna` lists these rules. Such a rule may refuse a graph.
A positive verdict depends on an assumption only if no arguments make the graph correct without it,
and then the verdict reports the assumption (`Verdict.assumptions`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["UNMEASURED_RULES", "unmeasured"]

_Rule = TypeVar("_Rule", bound=Callable[..., Any])

#: "module.function" -> the assumption that the rule makes.
UNMEASURED_RULES: dict[str, str] = {}


def unmeasured(assumption: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers `assumption`, on which the unmeasured rule relies.

    The key in `UNMEASURED_RULES` is "module.function"; the rule is unchanged.
    """

    def mark(rule: _Rule) -> _Rule:
        """Record the assumption under the rule's "module.function"; return the rule unchanged."""
        UNMEASURED_RULES[f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}"] = assumption
        return rule

    return mark
