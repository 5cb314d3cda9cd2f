"""Write equal consecutive steps of a program as a loop.

Steps are equal if their C differs only in arena offsets and part numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["roll_loops"]

#: An offset in the arena, or the index of a part that is passed to the watch function.
_VARIABLE = re.compile(r"AT\((\d+)\)|SHOW\((\d+),")
#: Minimum number of iterations of a loop.
MIN_REPEATS = 3


def roll_loops(steps: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the lines of all steps, with equal consecutive ones as a loop.

    `steps` are (name, lines of C). Steps are equal if they differ only in arena offsets and part
    numbers; a loop may have several steps per iteration, and needs MIN_REPEATS iterations. Other
    steps are headed by a comment with their name.
    """
    shapes = [
        _VARIABLE.sub(lambda match: "AT" if match[1] else "SHOW", "\n".join(lines))
        for _, lines in steps
    ]
    output: list[str] = []
    index = 0
    while index < len(steps):
        period, count = _find_repeat(shapes, index)
        if count < MIN_REPEATS:
            name, lines = steps[index]
            output += ["", f"    /* {name} */", *lines]
            index += 1
        else:
            output += ["", *_format_loop(steps[index : index + period * count], period)]
            index += period * count
    return output


def _find_repeat(shapes: Sequence[str], start: int) -> tuple[int, int]:
    """Return (period, count) of the repetition from `start` on that covers the most steps.

    Of several, the shortest period is returned; (1, 1) if there are fewer than `MIN_REPEATS`.
    """
    best_period, best_count = 1, 1
    for period in range(1, (len(shapes) - start) // MIN_REPEATS + 1):
        body, count = shapes[start : start + period], 1
        while shapes[start + count * period : start + (count + 1) * period] == body:
            count += 1
        if count >= MIN_REPEATS and count * period > best_period * best_count:
            best_period, best_count = period, count
    return best_period, best_count


def _format_loop(steps: Sequence[tuple[str, Sequence[str]]], period: int) -> list[str]:
    """Format consecutive equal steps as a C loop; varying arena offsets are read from a table.

    Parameters
    ----------
    steps
        (part name, lines) of each step; their number is a multiple of `period`.
    period
        Steps per iteration.
    """
    count = len(steps) // period
    iterations: list[list[str]] = [[] for _ in range(count)]
    for index, (_, lines) in enumerate(steps):
        iterations[index // period] += lines
    offsets = [_list_offsets(iteration) for iteration in iterations]
    offset_columns = list(zip(*offsets, strict=True))
    varying_columns = list(
        dict.fromkeys(column for column in offset_columns if len(set(column)) > 1)
    )
    remaining_columns = iter(offset_columns)

    def replace_variable(match: re.Match[str]) -> str:
        """Return the text for a matched variable: a part number plus the loop's step, or an offset.

        An arena offset is unchanged if all iterations have the same, else it is read from the
        table.
        """
        if match[1] is None:
            return f"SHOW({match[2]} + {period} * step,"
        column = next(remaining_columns)
        if column not in varying_columns:
            return match[0]
        return f"AT(at[step][{varying_columns.index(column)}])"

    body = [_VARIABLE.sub(replace_variable, line) for line in iterations[0]]
    output = [f"    /* {steps[0][0]} to {steps[-1][0]}: {count} equal steps */"]
    output += [f"    for (step = 0; step < {count}; step++) {{"]
    if varying_columns:
        output.append(f"        static const uint32_t at[{count}][{len(varying_columns)}] = {{")
        table = zip(*varying_columns, strict=True)
        output += [f"            {{{', '.join(row)}}}," for row in table]
        output.append("        };")
    return [*output, *(f"    {line}" for line in body), "    }"]


def _list_offsets(lines: Sequence[str]) -> list[str]:
    """Return the arena offsets in lines of C, in order."""
    offsets: list[str] = []
    for line in lines:
        offsets += [match[1] for match in _VARIABLE.finditer(line) if match[1]]
    return offsets
