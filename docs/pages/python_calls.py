"""docs/reference/python.md: the public calls of the package, with the docstrings that they have."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType

import lingeronnx as lo

from .markdown import MADE

__all__ = ["page"]

_WIDTH = 88  # characters of a code block that the site shows without scrolling

_HEAD = f"""{MADE}

# Python

    import lingeronnx as lo

What `help(lo.X)` says. Calls of other tools (`lo.compat`) are told in [coming from other tools](../tutorials/coming-from.md),
what needs PyTorch (`lo.torch`) in [calls of a training library](torch-calls.md), [fine-tuning](../tutorials/fine-tuning.md) and
[export](../how-to/export-from-torch.md).
"""


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for name in sorted(lo.__all__, key=str.lower):
        thing = getattr(lo, name)
        if not isinstance(thing, ModuleType) and not name.startswith("__"):
            lines += _entry(name, thing)
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, thing: object) -> list[str]:
    """Return a call or a class, with the public methods that a class defines itself."""
    lines = [f"## lo.{name}", "", *_told(name, thing)]
    if thing is lo.QuantConfig:
        lines += ["The fields, with types and defaults, are the [settings](json.md#quant).", ""]
    if inspect.isclass(thing):
        for method, member in _methods(thing):
            lines += [f"### {name}.{method}", "", *_told(method, member)]
    return lines


def _methods(kind: type) -> Iterator[tuple[str, object]]:
    for name, member in vars(kind).items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name, plain


def _told(name: str, thing: object) -> list[str]:
    """Return the signature as it stands in the source, and the docstring.

    Both as they are written.
    """
    function = thing.fget if isinstance(thing, property) else thing
    shown = [] if isinstance(thing, property) else _signature(name, function)
    text = inspect.cleandoc(inspect.getdoc(function) or "")
    said = text if _own(thing, text) else ""
    return [
        *_block(shown),
        *_block([line for part in said.split("\n\n") for line in _wrapped(part)][:-1]),
    ]


def _wrapped(paragraph: str) -> list[str]:
    """Return the lines of a paragraph as a page is wide, and an empty one.

    What is indented stays as it is.
    """
    lines = paragraph.splitlines()
    plain = not any(line.startswith(" ") for line in lines)
    return [
        *(textwrap.wrap(" ".join(lines), _WIDTH, break_on_hyphens=False) if plain else lines),
        "",
    ]


def _own(thing: object, text: str) -> bool:
    """Tell whether a class's text was written for it.

    Dataclasses and exceptions without one inherit or make theirs.
    """
    return (
        not inspect.isclass(thing)
        or bool(thing.__doc__)
        and not text.startswith(f"{thing.__name__}(")
    )


def _signature(name: str, thing: object) -> list[str]:
    """Return the header of a function, or of a class's initialiser, with its annotations and defaults."""
    target = thing.__init__ if inspect.isclass(thing) else thing  # type: ignore[misc]
    try:
        tree = ast.parse(inspect.cleandoc(inspect.getsource(target))).body[0]
    except (OSError, TypeError, SyntaxError):
        return []
    if not isinstance(tree, ast.FunctionDef):
        return []
    return _folded(f"{name}({_without_self(tree.args)})")


def _without_self(arguments: ast.arguments) -> str:
    arguments.args = [each for each in arguments.args if each.arg not in ("self", "cls")]
    return ast.unparse(arguments)


def _folded(call: str) -> list[str]:
    """Return a call on lines that fit a page: an argument each where it is long."""
    if len(call) <= _WIDTH:
        return [call]
    head, _, rest = call.partition("(")
    parts, depth, start = [], 0, 0
    for index, sign in enumerate(rest[:-1]):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append(rest[start : index + 1].strip())
            start = index + 1
    return [f"{head}(", *(f"    {part}" for part in [*parts, rest[start:-1].strip()]), ")"]


def _block(lines: list[str]) -> list[str]:
    return [*(f"    {line}".rstrip() for line in lines), ""] if lines else []
