"""What all tests share: one thread for each process in some libraries, which tests run, and an order of the files.

Arrays are tiny, and the test processes side by side (`make test JOBS=...`) already fill the processors: threads that
wait for one another only cost, torch's most of all. The simulator's own threads are the tests' business: whoever tests
them says how many.

Python's garbage collector looks as seldom as in the commands (`lingeronnx.cli`), and never at what is there before the
first test.

A file is run by one process. The files that hold most slow tests come first, so that no process is left alone with one.
"""

import gc
import os
from collections import Counter

import pytest

from tests.examples import SIZE
from tests.selection import chosen
from tests.times import pytest_addoption, pytest_terminal_summary

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_terminal_summary"]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy's BLAS; before either is imported
os.environ.setdefault("LINGERONNX_STRICT", "1")  # a rewrite that changes an output is an error, not a line in a report
gc.set_threshold(100_000)


@pytest.hookimpl(trylast=True)  # what -m and -k leave
def pytest_collection_modifyitems(config, items):
    """Choose the tests; sort the files by their share of slow tests, and keep the order within a file."""
    kept = chosen(items, SIZE)
    taken = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    whole = Counter(item.path for item in kept)
    slow = Counter(item.path for item in kept if item.get_closest_marker("slow") or item.get_closest_marker("deep"))
    items[:] = sorted(kept, key=lambda item: (-slow[item.path] / whole[item.path], item.path))
    gc.freeze()
