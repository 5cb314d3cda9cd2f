"""Registry of rules about the packer and its executors that were never measured.

A rule that follows only from reading the sources is decorated with `unmeasured`;
`grep -rn "@unmeasured" lingeronnx/luna` lists these rules. Such a rule may refuse a graph;
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

from ...targets.verdict import VerdictFinding

__all__ = ["UNMEASURED_RULES", "is_unmeasured", "unmeasured"]

_Rule = TypeVar("_Rule", bound=Callable[..., Any])

#: "module.function" -> the assumption that the rule makes.
UNMEASURED_RULES: dict[str, str] = {}


def unmeasured(assumption: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers `assumption` for a rule that was never measured on a chip.

    It stores the text in `UNMEASURED_RULES` under "module.function" at import. A generator function
    is wrapped so that the findings it yields have the basis "read"; any other function is returned
    unchanged.
    """

    def mark(rule: _Rule) -> _Rule:
        """Store the enclosing `assumption` under "module.function" of `rule` in `UNMEASURED_RULES`.

        Returns `rule` itself, or for a generator function a wrapper whose findings have the basis
        "read".
        """
        UNMEASURED_RULES[_get_key(rule)] = assumption
        return _with_read_basis(rule) if inspect.isgeneratorfunction(rule) else rule

    return mark


def is_unmeasured(rule: Callable[..., Any]) -> bool:
    """Whether `rule` was registered by the decorator `unmeasured`: known from sources only.

    Looked up by "module.function", not by the object.
    """
    return _get_key(rule) in UNMEASURED_RULES


def _get_key(rule: Callable[..., Any]) -> str:
    """Return "module.function" of a rule, with the last part of the module's name only."""
    return f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}"


def _with_read_basis(rule: Any) -> Any:  # noqa: ANN401 - a function of the same signature
    """Wrap generator function `rule` so that its findings are copies with the basis "read".

    The wrapper takes positional arguments only.
    """

    @functools.wraps(rule)
    def read_rule(*arguments: object) -> Iterator[VerdictFinding]:
        """Yield copies of the findings of the wrapped rule for `arguments`, with basis "read"."""
        for finding in rule(*arguments):
            yield replace(finding, basis="read")

    return read_rule
