"""Findings that are alike, told as one: how many, the worst of them, an example.

Two sentences are alike where they differ in what they quote and in numbers only. `escape_invisible`
shows names that hold what cannot be seen. Knows text, nothing of graphs.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

__all__ = [
    "SCREEN_LINES",
    "count_screen_lines",
    "escape_invisible",
    "format_violations",
    "group_by_key",
    "mask_quotes_and_numbers",
    "merge_similar_lines",
    "truncate_lines",
]

#: Lines and columns of a screen: what a report takes, unless the user wants all of it.
SCREEN_LINES = 24
_SCREEN_COLUMNS = 100

_T = TypeVar("_T")

_QUOTED = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def mask_quotes_and_numbers(text: str) -> str:
    """Return `text` without what it quotes and without its numbers."""
    return _NUMBER.sub("#", _QUOTED.sub("''", text))


def group_by_key(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Return the items in groups of one `key`, in the order in which the groups begin."""
    found: dict[Hashable, list[_T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def format_violations(rule: str, remedy: str, occurrences: Sequence[tuple[str, str]]) -> str:
    """Return one sentence on a `rule` that is broken at some places.

    occurrences : (place, value) of each, the value empty where the rule says it all. Of values with
    a number the farthest from the rule is shown: the smallest where that says "at least", else the
    largest.
    """
    places = list(dict.fromkeys(place for place, _ in occurrences))
    sizes = [_first_number(value) for _, value in occurrences]
    ranked = [(size, index) for index, size in enumerate(sizes) if size is not None]
    worst, kind = 0, "such as"
    if len(ranked) == len(occurrences) and len({size for size, _ in ranked}) > 1:
        sign = -1 if "at least" in rule else 1
        worst, kind = max(ranked, key=lambda item: (sign * item[0], -item[1]))[1], "the worst"
    place, value = occurrences[worst]
    end = f"; {remedy}" if remedy else ""
    if len(places) == 1:
        return f"{place}: {rule}{f'; here {value}' if value else ''}{end}"
    return f"{rule}: {len(places)} nodes, {kind} {place}{f' with {value}' if value else ''}{end}"


def merge_similar_lines(texts: Iterable[str]) -> list[str]:
    """Return the texts, one for those that are alike, with their number."""
    found = []
    for group in group_by_key(dict.fromkeys(texts), mask_quotes_and_numbers):
        found.append(group[0] if len(group) == 1 else f"{group[0]} ({len(group) - 1} more like it)")
    return found


def truncate_lines(lines: Sequence[str], max_lines: int | None) -> list[str]:
    """Return the first lines, `max_lines` of them, the last of which says how many there are beyond.

    None: all of them.
    """
    left = 0 if max_lines is None else len(lines) - max_lines
    if max_lines is None or left <= 0:
        return list(lines)
    return [*lines[: max_lines - 1], f"{lines[max_lines - 1]} (and {left} more: --notes full)"]


def count_screen_lines(lines: Iterable[str]) -> int:
    """Return how many lines of a screen these take."""
    return sum(max(math.ceil(len(line) / _SCREEN_COLUMNS), 1) for line in lines)


def _first_number(value: str) -> float | None:
    number = _NUMBER.search(value)
    return None if number is None else float(number.group().replace(",", ""))


def escape_invisible(text: str) -> str:
    """Return `text` with what has no glyph of its own, or turns the writing round, as an escape, as JSON has it."""
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else c
        for c in text
    )
