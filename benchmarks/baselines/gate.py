"""The gate itself: which cases of the table run, what their figures say, what is printed, what is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .table import (
    Case,
    Found,
    Outcome,
    Row,
    Verdict,
    compare_with_baseline,
    format_page,
    format_value,
    parse_page,
    update_rows,
)

__all__ = ["Measure", "Result", "measure_case", "run_gate"]

#: What measures a case.
Measure = Callable[[Case], Mapping[str, Found]]
#: A case, what was measured of it or why it failed, and the seconds it took.
Result = tuple[Case, Mapping[str, Found] | str, float]

_BAD = (Outcome.WORSE, Outcome.FAILED)


def measure_case(measure: Measure, case: Case) -> Result:
    """Measure a case; one that fails says why in one line."""
    began = time.monotonic()
    try:
        found: Mapping[str, Found] | str = measure(case)
    except Exception as error:  # one case that fails must not hide what the others say
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    return case, found, time.monotonic() - began


def run_gate(
    table: Path,
    run: Callable[[Sequence[Case]], Iterable[Result]],
    missing: Callable[[Case], str],
    only: Sequence[str] = (),
    write: bool = False,
    complete: bool = False,
) -> int:
    """Measure the cases of `table` with `run`, print the new table and what became worse, and return the exit code.

    missing : says why a case cannot run; nothing where it can. The others as `benchmarks.baselines`
    tells. Raises ValueError for a table that cannot be read, and where `only` leaves nothing.
    """
    page = table.read_text(encoding="utf-8")
    rows = parse_page(page)
    chosen = [row for row in rows if all(text in str(row.case) for text in only)]
    if not chosen:
        raise ValueError(f"no case of {table.name} holds {' and '.join(only) or 'anything'}")
    cases = list(dict.fromkeys(row.case for row in chosen))
    absent = {case: why for case in cases if (why := missing(case))}
    found: dict[Case, Mapping[str, Found] | str] = {}
    for case, values, seconds in run([case for case in cases if case not in absent]):
        found[case] = values
        print(f"{case}: {_line(values)} ({seconds:.0f} s)", flush=True)
        if write:  # what is measured is kept, whatever comes after it
            done = [row for row in rows if row.case in found]
            table.write_text(
                _update_page(page, rows, compare_with_baseline(done, found, {})), encoding="utf-8"
            )
    verdicts = compare_with_baseline(chosen, found, absent)
    print("", format_page("", update_rows(verdicts)), sep="\n")
    if write:
        table.write_text(_update_page(page, rows, verdicts), encoding="utf-8")
    return _print_verdicts(verdicts, complete)


def _line(values: Mapping[str, Found] | str) -> str:
    if isinstance(values, str):
        return values
    return "; ".join(f"{measure} {format_value(value)}" for measure, value in values.items())


def _update_page(page: str, rows: Sequence[Row], verdicts: Sequence[Verdict]) -> str:
    """Return the page with what these verdicts renew; the rows of other cases stay."""
    new: dict[Case, list[Row]] = {}
    for row in update_rows(verdicts):
        new.setdefault(row.case, []).append(row)
    kept: list[Row] = []
    for case in dict.fromkeys(row.case for row in rows):
        kept += new.get(case) or [row for row in rows if row.case == case]
    return format_page(page, kept)


def _print_verdicts(verdicts: Sequence[Verdict], complete: bool) -> int:
    """Print the rows that say something, the worst last, and return the exit code."""
    bad = (*_BAD, Outcome.ABSENT) if complete else _BAD
    for outcome in (
        Outcome.NEW,
        Outcome.BETTER,
        Outcome.TRADED,
        Outcome.ABSENT,
        Outcome.WORSE,
        Outcome.FAILED,
    ):
        for verdict in (v for v in verdicts if v.outcome is outcome):
            row = verdict.row
            change = format_value(verdict.found)
            if not isinstance(verdict.found, str) and row.value is not None:
                change = f"{format_value(row.value)} -> {change}"
            why = f" ({row.accepted_reason})" if outcome is Outcome.TRADED else ""
            print(f"{outcome.value}: {row.case}, {row.measure}: {change}{why}")
    wrong = sum(verdict.outcome in bad for verdict in verdicts)
    print(
        f"{len(verdicts)} figures, {len(verdicts) - wrong} within tolerance"
        + (", the others not" if wrong else "")
    )
    return 1 if wrong else 0
