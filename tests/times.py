"""Where the time of a run goes: `pytest --times` ends with a table by folder of tests, and the ten slowest tests.

Seconds are those of the test processes, set-up and tear-down included, added up; the clock shows less where several
run side by side. A plugin of pytest: `tests/conftest.py` takes its two hooks over. Knows reports only, so that it is
the same with and without xdist.
"""

from collections import Counter
from pathlib import PurePosixPath

__all__ = ["pytest_addoption", "pytest_terminal_summary", "table"]

SLOWEST = 10


def folder(nodeid):
    """Return the folder of tests that a test lies in, such as `flow`; "." for what lies in none."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts[:-1]
    return next(iter(parts[1:] if parts[:1] == ("tests",) else parts), ".")


def table(durations):
    """Return the lines of both tables.

    durations : (nodeid, seconds) of every part of every test; those of one test count together.
    """
    seconds = Counter()
    for nodeid, part in durations:
        seconds[nodeid] += part
    total = sum(seconds.values())
    tests, spent = Counter(map(folder, seconds)), Counter()
    for nodeid, each in seconds.items():
        spent[folder(nodeid)] += each
    width = max((len(name) for name in spent), default=0)
    head = f"{'folder':<{max(width, 6)}}  tests  seconds  share"
    rows = [
        f"{name:<{max(width, 6)}}  {tests[name]:5}  {each:7.1f}  {each / total if total else 0:5.0%}"
        for name, each in spent.most_common()
    ]
    slowest = [f"{each:7.1f}  {nodeid}" for nodeid, each in seconds.most_common(SLOWEST)]
    return [head, *rows, "", "seconds  slowest tests", *slowest]


def pytest_addoption(parser):
    """Add the option --times."""
    parser.addoption("--times", action="store_true", help="end with a table of where the time went")


def pytest_terminal_summary(terminalreporter, config):
    """Print the tables, where they are asked for and a test has run."""
    reports = [report for found in terminalreporter.stats.values() for report in found if hasattr(report, "duration")]
    if config.getoption("--times") and reports:
        terminalreporter.section("where the time went")
        for line in table((report.nodeid, report.duration) for report in reports):
            terminalreporter.write_line(line)
