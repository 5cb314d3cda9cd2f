"""Registry of rules about the packer and its executors that were never measured.

A rule that follows only from reading the sources is decorated with `unmeasured`;
`grep -rn "@unmeasured" lingeronnx/targets/luna` lists these rules. Such a rule may refuse a graph;
findings that it yields have the basis "read".
A positive verdict depends on an assumption only if no arguments make the graph correct without it,
and then the verdict reports the assumption (`Verdict.assumptions`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from ...verdict import VerdictFinding

__all__ = ["UNMEASURED_RULES", "is_unmeasured", "unmeasured"]

_Rule = TypeVar("_Rule", bound=Callable[..., Any])

#: "module.function" -> the assumption that the rule makes.
UNMEASURED_RULES: dict[str, str] = {}


def unmeasured(assumption: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers `assumption`, on which the unmeasured rule relies.

    The key in `UNMEASURED_RULES` is "module.function". A rule that yields findings yields them with
    the basis "read"; others are unchanged.
    """

    def mark(rule: _Rule) -> _Rule:
        """Record the assumption under the rule's "module.function"."""
        UNMEASURED_RULES[_get_key(rule)] = assumption
        return _with_read_basis(rule) if inspect.isgeneratorfunction(rule) else rule

    return mark


def is_unmeasured(rule: Callable[..., Any]) -> bool:
    """Whether a rule follows from reading only."""
    return _get_key(rule) in UNMEASURED_RULES


def _get_key(rule: Callable[..., Any]) -> str:
    """Return the "module.function" of a rule."""
    return f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}"


def _with_read_basis(rule: Any) -> Any:  # noqa: ANN401 - a function of the same signature
    """Return a generator function that yields the findings of `rule` with the basis "read"."""

    @functools.wraps(rule)
    def read_rule(*arguments: object) -> Iterator[VerdictFinding]:
        for finding in rule(*arguments):
            yield replace(finding, basis="read")

    return read_rule
