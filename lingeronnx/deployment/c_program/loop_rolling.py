"""Equal steps of a program in a row, written once in a loop.

Their C differs only in where their arrays lie.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["roll_loops"]

#: A place in the arena, or the number of a part that is shown.
_PLACE = re.compile(r"AT\((\d+)\)|SHOW\((\d+),")
#: As many steps as are worth a loop.
MIN_REPEATS = 3


def roll_loops(steps: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return the lines of all steps, each given as its name and lines, in order."""
    shapes = [
        _PLACE.sub(lambda m: "AT" if m[1] else "SHOW", "\n".join(lines)) for _, lines in steps
    ]
    found: list[str] = []
    at = 0
    while at < len(steps):
        period, times = _find_repeat(shapes, at)
        if times < MIN_REPEATS:
            found += ["", f"    /* {steps[at][0]} */", *steps[at][1]]
            at += 1
        else:
            found += ["", *_format_loop(steps[at : at + period * times], period)]
            at += period * times
    return found


def _find_repeat(shapes: Sequence[str], at: int) -> tuple[int, int]:
    """Return the shortest period that covers most from `at` on, and how often it stands there."""
    best = (1, 1)
    for period in range(1, (len(shapes) - at) // MIN_REPEATS + 1):
        times = 1
        while shapes[at : at + period] == shapes[at + times * period : at + (times + 1) * period]:
            times += 1
        if times >= MIN_REPEATS and times * period > best[0] * best[1]:
            best = (period, times)
    return best


def _format_loop(steps: Sequence[tuple[str, Sequence[str]]], period: int) -> list[str]:
    times = len(steps) // period
    turns = [
        [line for _, lines in steps[k * period : (k + 1) * period] for line in lines]
        for k in range(times)
    ]
    places = [[m[1] for line in turn for m in _PLACE.finditer(line) if m[1]] for turn in turns]
    columns = list(
        dict.fromkeys(column for column in zip(*places, strict=True) if len(set(column)) > 1)
    )
    remaining = iter(zip(*places, strict=True))

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return f"SHOW({match[2]} + {period} * step,"
        column = next(remaining)
        return f"AT(at[step][{columns.index(column)}])" if column in columns else match[0]

    body = [_PLACE.sub(put, line) for line in turns[0]]
    lines = [f"    /* {steps[0][0]} to {steps[-1][0]}: {times} equal steps */"]
    lines += [f"    for (step = 0; step < {times}; step++) {{"]
    if columns:
        lines.append(f"        static const uint32_t at[{times}][{len(columns)}] = {{")
        lines += [f"            {{{', '.join(row)}}}," for row in zip(*columns, strict=True)]
        lines.append("        };")
    return [*lines, *(f"    {line}" for line in body), "    }"]
