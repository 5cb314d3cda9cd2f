"""What all tests share: one thread for each process in some libraries, and an order of the files.

Arrays are tiny, and the test processes side by side (`make test JOBS=...`) already fill the processors: threads that
wait for one another only cost, torch's most of all. The simulator's own threads are the tests' business: whoever tests
them says how many.

A file is run by one process. The files that hold most slow tests come first, so that no process is left alone with one.
"""

import os
from collections import Counter

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy's BLAS; before either is imported


def pytest_collection_modifyitems(items):
    """Sort the files by their share of slow tests, and keep the order within a file."""
    whole = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("deep"))
    items.sort(key=lambda item: (-slow[item.path] / whole[item.path], item.path))
