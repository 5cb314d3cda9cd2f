"""Command lines: the models that one names, and options that are added to what the user typed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["find_model_paths", "replace_options"]

#: Options of `quantize` that can be repeated; of the others the last one counts.
_REPEATABLE_OPTIONS = frozenset({"--override", "--skip"})
#: A word of a command line as it is quoted.
_SHELL_WORD = re.compile(r"""(?:\$'(?:[^'\\]|\\.)*'|'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\])+""")


def find_model_paths(words: Iterable[str]) -> list[Path]:
    """Return the existing .onnx files that `words` of a command line name, each once.

    A word is a path, or ends in one after "=".
    """
    paths = [Path(word.rpartition("=")[2]) for word in words if word.endswith(".onnx")]
    return [path for path in dict.fromkeys(paths) if os.path.isfile(path)]


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
