"""Report where the time of a test run went, by folder and by test.

`pytest --times` ends with both tables. In the fast tier, tests above `MAX_FAST_SECONDS` are listed
in any case. Seconds are those of the test processes, set-up and tear-down included, added up; wall
time is less if several run in parallel. `tests/conftest.py` imports the two hooks. They read
pytest's reports only, so they work with and without xdist.
"""

from collections import Counter
from pathlib import PurePosixPath

from tests.case_selection import TIER

__all__ = ["format_tables", "pytest_addoption", "pytest_terminal_summary", "sum_by_test"]

MAX_LISTED = 10
MAX_FAST_SECONDS = 5.0


def folder_of(nodeid):
    """Return the folder below `tests` of a node id, such as `flow`; "." for a file that lies in
    none.
    """
    parts = PurePosixPath(nodeid.partition("::")[0]).parts[:-1]
    return next(iter(parts[1:] if parts[:1] == ("tests",) else parts), ".")


def sum_by_test(durations):
    """Add up (node id, seconds) pairs, which come once for set-up, call and tear-down of each
    test.
    """
    seconds = Counter()
    for nodeid, part in durations:
        seconds[nodeid] += part
    return seconds


def format_tables(seconds):
    """Format the seconds of each test as two tables: by folder, and the slowest tests."""
    total = sum(seconds.values())
    tests, by_folder = Counter(map(folder_of, seconds)), Counter()
    for nodeid, each in seconds.items():
        by_folder[folder_of(nodeid)] += each
    width = max([6, *map(len, by_folder)])
    rows = [
        f"{name:<{width}}  {tests[name]:5}  {each:7.1f}  {each / total if total else 0:5.0%}"
        for name, each in by_folder.most_common()
    ]
    slowest = [f"{each:7.1f}  {nodeid}" for nodeid, each in seconds.most_common(MAX_LISTED)]
    return [
        f"{'folder':<{width}}  tests  seconds  share",
        *rows,
        "",
        "seconds  slowest tests",
        *slowest,
    ]


def pytest_addoption(parser):
    """Add the option --times."""
    parser.addoption("--times", action="store_true", help="end with a table of where the time went")


def pytest_terminal_summary(terminalreporter, config):
    """Print the tables if they are asked for, and the tests that are too slow for the fast tier."""
    reports = [
        report
        for group in terminalreporter.stats.values()
        for report in group
        if hasattr(report, "duration")
    ]
    seconds = sum_by_test((report.nodeid, report.duration) for report in reports)
    if config.getoption("--times") and seconds:
        terminalreporter.section("where the time went")
        for line in format_tables(seconds):
            terminalreporter.write_line(line)
    slow = {
        nodeid: each
        for nodeid, each in seconds.items()
        if TIER == "fast" and each > MAX_FAST_SECONDS
    }
    if slow:
        terminalreporter.section(
            f"tests above {MAX_FAST_SECONDS:.0f} s: make them smaller, or mark them slow"
        )
        for nodeid, each in sorted(slow.items(), key=lambda row: -row[1]):
            terminalreporter.write_line(f"{each:7.1f}  {nodeid}", yellow=True)
