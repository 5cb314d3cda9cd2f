"""The baseline table: a Markdown page, its rows, and the verdict of a new measurement on each.

What is called chip-ready and does not pack is a failure, whatever the table says.
A row may fall where its last column says why. `update_rows` then puts what it was in front of the
reason, and the reason is spent: the next fall needs another one. Knows nothing of models.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = [
    "HEAD",
    "Case",
    "Found",
    "Outcome",
    "Row",
    "Verdict",
    "compare_with_baseline",
    "parse_page",
    "format_page",
    "update_rows",
    "format_value",
]

HEAD = ("model", "platform", "settings", "measure", "value", "tolerance", "traded away because")

#: A value as it was measured; a text says why there is none.
Found = bool | float | str

_USED_REASON = re.compile(r"was \d")
_FALSE = "called so, but the second judge says that it does not pack or comes out wrong"
_WORDS = {"yes": True, "no": False}


@dataclass(frozen=True, order=True)
class Case:
    """One quantization. settings : options of `lingeronnx quantize`."""

    model: str
    platform: str
    settings: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.model, self.platform, self.settings) if part)


@dataclass(frozen=True)
class Row:
    """One figure of the table. value : None if it has not been measured yet.

    Traded : why it may be less than it was.
    """

    case: Case
    measure: str
    value: bool | float | None
    tolerance: float = 0.0
    accepted_reason: str = ""

    @property
    def is_regression_accepted(self) -> bool:
        """Whether the last column has a reason that is not spent yet."""
        return bool(self.accepted_reason) and _USED_REASON.match(self.accepted_reason) is None


class Outcome(enum.Enum):
    """What a measurement says of a row."""

    KEPT = ""
    BETTER = "better"
    WORSE = "WORSE"
    TRADED = "traded away"
    NEW = "new"
    FAILED = "FAILED"
    ABSENT = "could not run"


@dataclass(frozen=True)
class Verdict:
    """A row, what was measured, and what that means.

    A text in `found` says why there is no value.
    """

    row: Row
    found: Found
    outcome: Outcome


# ---- the page ------------------------------------------------------------------------------------------------------


def parse_page(page: str) -> list[Row]:
    """Return the rows of the page's table.

    Raises ValueError, which names the line, where one cannot be read.
    """
    lines = [
        (number, line) for number, line in enumerate(page.splitlines(), 1) if line.startswith("|")
    ]
    if len(lines) < 2 or tuple(_cells(lines[0][1])) != HEAD:
        raise ValueError(f"no table with the columns {', '.join(HEAD)}")
    rows = []
    for number, line in lines[2:]:
        try:
            model, platform, settings, measure, value, tolerance, traded = _cells(line)
            rows.append(
                Row(
                    Case(model, platform, settings.strip("`")),
                    measure,
                    _value(value),
                    float(tolerance or 0),
                    traded,
                )
            )
        except ValueError as error:
            raise ValueError(
                f"line {number} of the baseline table cannot be read: {line}"
            ) from error
    keys = [(row.case, row.measure) for row in rows]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the baseline table has two rows for {key[0]}, {key[1]}")
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _value(text: str) -> bool | float | None:
    return None if text == "?" else _WORDS[text] if text in _WORDS else float(text)


def format_value(value: Found | None) -> str:
    """Return a value as the table has it."""
    if value is None:
        return "?"
    return (
        value
        if isinstance(value, str)
        else ("no", "yes")[value]
        if isinstance(value, bool)
        else f"{value:.2f}"
    )


def format_page(page: str, rows: Iterable[Row]) -> str:
    """Return the page with these rows in its table."""
    lines = page.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith("|")]
    first, last = (places[0], places[-1] + 1) if places else (len(lines), len(lines))
    table = [_line(HEAD), _line(["---"] * len(HEAD))]
    for row in rows:
        settings = f"`{row.case.settings}`" if row.case.settings else ""
        tolerance = f"{row.tolerance:g}" if row.tolerance else ""
        table.append(
            _line(
                (
                    row.case.model,
                    row.case.platform,
                    settings,
                    row.measure,
                    format_value(row.value),
                    tolerance,
                    row.accepted_reason,
                )
            )
        )
    return "\n".join([*lines[:first], *table, *lines[last:]]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return re.sub(r" +", " ", f"| {' | '.join(cells)} |")


# ---- what a measurement says ---------------------------------------------------------------------------------------


def compare_with_baseline(
    rows: Sequence[Row],
    found: Mapping[Case, Mapping[str, Found] | str],
    absent: Mapping[Case, str],
) -> list[Verdict]:
    """Return what was measured of each row, in the table's order, and behind a case's rows what the table lacks.

    found : of the cases that ran {measure: value}, or why they failed. absent : why the others
    could not run.
    """
    verdicts: list[Verdict] = []
    listed = {(row.case, row.measure) for row in rows}
    for number, row in enumerate(rows):
        verdicts.append(_compare_row(row, found, absent))
        last = number + 1 == len(rows) or rows[number + 1].case != row.case
        values = found.get(row.case, {})
        if last and not isinstance(values, str):
            verdicts += [
                Verdict(Row(row.case, measure, None, get_tolerance(measure)), value, Outcome.NEW)
                for measure, value in values.items()
                if (row.case, measure) not in listed
            ]
    return verdicts


def get_tolerance(measure: str) -> float:
    """Return the tolerance of a new row.

    No more than what another processor's float sums change.
    """
    steps = {"dB": 0.3, "IoU": 0.01, "MACs": 0.05, "top-1": 0.21, "%": 0.5}
    return next((step for word, step in steps.items() if word in measure), 0.0)


def _compare_row(
    row: Row, found: Mapping[Case, Mapping[str, Found] | str], absent: Mapping[Case, str]
) -> Verdict:
    if row.case in absent:
        return Verdict(row, absent[row.case], Outcome.ABSENT)
    values = found[row.case]
    value = (
        values
        if isinstance(values, str)
        else values.get(row.measure, "nothing measures this any more")
    )
    if (
        row.measure == "chip-ready"
        and value is True
        and isinstance(values, Mapping)
        and values.get("packs") is False
    ):
        value = _FALSE
    if isinstance(value, str):
        return Verdict(row, value, Outcome.FAILED)
    if row.value is None:
        return Verdict(row, value, Outcome.NEW)
    return Verdict(row, value, _compare_values(row, row.value, value))


def _compare_values(row: Row, before: float, now: float) -> Outcome:
    if now < before - row.tolerance:
        return Outcome.TRADED if row.is_regression_accepted else Outcome.WORSE
    return Outcome.BETTER if now > before + row.tolerance else Outcome.KEPT


def update_rows(verdicts: Iterable[Verdict]) -> list[Row]:
    """Return the rows to keep.

    Better and new values and those traded away are taken over, all others stay.
    A value within its tolerance stays too, so that many small falls do not add up.
    """
    rows = []
    for row, found, outcome in ((v.row, v.found, v.outcome) for v in verdicts):
        if isinstance(found, str) or outcome in (Outcome.KEPT, Outcome.WORSE):
            rows.append(row)
        elif outcome is Outcome.TRADED:
            rows.append(
                replace(
                    row,
                    value=found,
                    accepted_reason=f"was {format_value(row.value)}: {row.accepted_reason}",
                )
            )
        else:
            rows.append(replace(row, value=found))
    return rows
