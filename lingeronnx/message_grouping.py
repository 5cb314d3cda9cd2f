"""Merging of similar messages, and preparation of text for the terminal.

Messages are similar if they differ only in quoted strings and numbers. This module handles text
only, not graphs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

__all__ = [
    "SCREEN_LINES",
    "count_screen_lines",
    "format_violations",
    "group_by_key",
    "mask_quotes_and_numbers",
    "merge_similar_lines",
    "truncate_lines",
]

#: Lines and columns of a screen, the maximum size of a report unless the user requests all of it.
SCREEN_LINES = 24
_SCREEN_COLUMNS = 100

_T = TypeVar("_T")

_QUOTED = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def mask_quotes_and_numbers(text: str) -> str:
    """Replace quoted strings by '' and numbers by #."""
    return _NUMBER.sub("#", _QUOTED.sub("''", text))


def group_by_key(items: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    """Group items with equal `key`; groups are in the order of their first items."""
    groups: dict[Hashable, list[_T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def format_violations(rule: str, remedy: str, occurrences: Sequence[tuple[str, str]]) -> str:
    """Format all violations of one rule as a single sentence.

    Parameters
    ----------
    rule, remedy
        The violated rule, and how to satisfy it (may be empty).
    occurrences
        (location, value) of each violation; the value is empty if the rule needs none. If all
        values are numbers that differ, the location farthest from the rule is named, else the first
        one.
    """
    suffix = f"; {remedy}" if remedy else ""
    locations = {location for location, _ in occurrences}
    worst_index = _find_worst(rule, [value for _, value in occurrences])
    location, value = occurrences[worst_index or 0]
    if len(locations) == 1:
        actual = f"; here {value}" if value else ""
        return f"{location}: {rule}{actual}{suffix}"
    label = "such as" if worst_index is None else "the worst"
    actual = f" with {value}" if value else ""
    return f"{rule}: {len(locations)} nodes, {label} {location}{actual}{suffix}"


def _find_worst(rule: str, values: Sequence[str]) -> int | None:
    """Return the index of the value farthest from `rule`, or None if they cannot be ranked.

    It is the smallest value for a rule with "at least", else the largest.
    """
    numbers = [number for value in values if (number := _first_number(value)) is not None]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        return None
    return numbers.index(min(numbers) if "at least" in rule else max(numbers))


def merge_similar_lines(texts: Iterable[str]) -> list[str]:
    """Return one line per group of similar texts: the first, with the number of the others.

    Similar are texts that differ only in quoted parts and numbers; equal ones count once.
    """
    lines = []
    for group in group_by_key(dict.fromkeys(texts), mask_quotes_and_numbers):
        lines.append(group[0] if len(group) == 1 else f"{group[0]} ({len(group) - 1} more like it)")
    return lines


def truncate_lines(lines: Sequence[str], max_lines: int | None) -> list[str]:
    """Return the first `max_lines` lines, or all of them for None.

    If some are omitted, " (and N more: --notes full)" is appended to the last line.
    """
    if max_lines is None or len(lines) <= max_lines:
        return list(lines)
    omitted = len(lines) - max_lines
    return [*lines[: max_lines - 1], f"{lines[max_lines - 1]} (and {omitted} more: --notes full)"]


def count_screen_lines(lines: Iterable[str]) -> int:
    """Return the number of lines of 100 columns that `lines` occupy when wrapped.

    An empty line counts as one.
    """
    return sum(max(math.ceil(len(line) / _SCREEN_COLUMNS), 1) for line in lines)


def _first_number(value: str) -> float | None:
    """Return the first number in a string, with "," as thousands separator; None without any."""
    number = _NUMBER.search(value)
    return None if number is None else float(number.group().replace(",", ""))
