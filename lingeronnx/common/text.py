"""Text of messages and pages: similar messages merged, values with units, tables, wrapped lines.

Messages are similar if they differ only in quoted strings and numbers. This module handles text
only, not graphs.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from .escaping import escape_invisible

__all__ = [
    "SCREEN_LINES",
    "count_screen_lines",
    "difference_unit",
    "format_decibels",
    "format_table",
    "format_value",
    "format_violations",
    "group_by_key",
    "mask_quotes_and_numbers",
    "merge_similar_lines",
    "truncate_lines",
    "wrap_text",
]

#: Lines and columns of a screen, the maximum size of a report unless the user requests all of it.
SCREEN_LINES = 24
_SCREEN_COLUMNS = 100

_T = TypeVar("_T")

_QUOTED = re.compile(r"'[^']*'")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

_PARAGRAPH_COLUMNS = 80  # of wrapped text


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


def format_value(value: float, unit: str) -> str:
    """Format a value with its unit: two decimals, or six significant digits without a unit.

    In dB, values that are not finite become words.
    """
    if unit == "dB":
        return format_decibels(value)
    return f"{value:.2f} {unit}" if unit else f"{value:.6g}"


def format_decibels(value: float) -> str:
    """Format a level in dB with two decimals; values that are not finite become words.

    NaN is "not finite", infinity "infinite (equal)", -infinity "-infinite".
    """
    if math.isnan(value):
        return "not finite"
    if math.isfinite(value):
        return f"{value:.2f} dB"
    return "infinite (equal)" if value > 0 else "-infinite"


def difference_unit(unit: str) -> str:
    """Return the unit of a difference of two values in `unit`: "%" becomes "points"."""
    return unit.replace("%", "points")


def wrap_text(text: str, head: str, indent: str) -> list[str]:
    """Wrap text to lines of 80 columns without breaking names, and return the list of lines.

    The first line begins with `head`, the others with `indent`. Invisible characters are escaped; a
    longer name makes a longer line. Empty for an empty text.
    """
    return textwrap.wrap(
        escape_invisible(text),
        _PARAGRAPH_COLUMNS,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a left-aligned table with ``+---+`` around the head and below the last row.

    Cells are separated by ``|``; invisible characters of rows are escaped, those of `head` are not.
    The text ends with a newline. Raises ValueError if a row has another number of cells than
    `head`.
    """
    lines = [list(head)]
    for row in rows:
        lines.append([escape_invisible(str(cell)) for cell in row])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = []
    for line in lines:
        cells = [f" {cell:<{width}} " for cell, width in zip(line, widths, strict=True)]
        text.append("|" + "|".join(cells) + "|")
    return "\n".join([rule, text[0], rule, *text[1:], rule, ""])


def format_bytes(count: float) -> str:
    """Format a number of bytes in units of powers of 1000: "512 B", "87.2 kB" or "8.4 MB"."""
    if count < 1000:
        return f"{count:.0f} B"
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
