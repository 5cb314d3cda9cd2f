"""Command lines that are printed to be copied, with options added to what the user typed."""

from __future__ import annotations

import re

__all__ = ["replace_options"]

#: Options of `quantize` that can be repeated; of the others the last one counts.
_REPEATABLE_OPTIONS = frozenset({"--override", "--skip"})
#: A word of a command line as it is quoted.
_SHELL_WORD = re.compile(r"""(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+""")


def replace_options(command: str, options: str) -> str:
    """Return a command line with `options` at its end, and without others of the same names.

    Options that can be repeated stay. Both texts are quoted for a shell.
    """
    added = _SHELL_WORD.findall(options)
    followers = zip(added, [*added[1:], "-"], strict=True)
    has_value = {name: not follower.startswith("-") for name, follower in followers}
    kept, words = [], iter(_SHELL_WORD.findall(command))
    for word in words:
        name, equals, _ = word.partition("=")
        if not name.startswith("-") or name not in has_value or name in _REPEATABLE_OPTIONS:
            kept.append(word)
        elif has_value[name] and not equals:
            next(words, None)
    return " ".join([*kept, options])
