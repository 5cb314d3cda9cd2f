"""What all tests share: one thread for each process in some libraries, the tests of a tier, and an
order of the files.

Arrays are tiny, and the test processes side by side (`make test JOBS=...`) already fill the
processors: threads that wait for one another only cost, torch's most of all. The simulator's own
threads are the tests' business: a test of them says how many.

Python's garbage collector runs as seldom as in the commands (`lingeronnx.cli`), and never looks at
objects from before the first test.

A module's random generator `RNG` starts each test in the same state, so that no test depends on
those before it.

One process runs a file. The files with the most tests come first, so that no process is left alone
with a long one.
"""

import gc
import os
import shutil
import tempfile
from collections import Counter

import pytest

from tests.selection import drop_unselected_items, pytest_generate_tests
from tests.times import pytest_addoption, pytest_terminal_summary

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_generate_tests",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "pytest_unconfigure",
]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy's BLAS; before either is imported
os.environ.setdefault(
    "LINGERONNX_STRICT", "1"
)  # a rewrite that changes an output is an error, not a line in a report
gc.set_threshold(100_000)

_ARTEFACTS = "LINGERONNX_TEST_ARTEFACTS"
_own_folder = pytest.StashKey[str]()
_generator_states = pytest.StashKey[dict]()


def pytest_configure(config):
    """Make the folder of the artefacts that test processes share (`tests/artefacts.py`)."""
    if _ARTEFACTS not in os.environ:
        config.stash[_own_folder] = os.environ[_ARTEFACTS] = tempfile.mkdtemp(
            prefix="lingeronnx-artefacts-"
        )


def pytest_unconfigure(config):
    """Remove the folder of the artefacts if this process made it."""
    if _own_folder in config.stash:
        del os.environ[_ARTEFACTS]
        shutil.rmtree(config.stash[_own_folder], ignore_errors=True)


@pytest.hookimpl(trylast=True)  # what -m and -k leave
def pytest_collection_modifyitems(config, items):
    """Keep the tests of the tier; sort the files by their number of tests, and keep the order
    within a file.
    """
    kept, dropped = drop_unselected_items(config, items)
    config.hook.pytest_deselected(items=dropped)
    size = Counter(item.path for item in kept)
    items[:] = sorted(kept, key=lambda item: (-size[item.path], item.path))
    generators = {
        item.module: item.module.RNG
        for item in items
        if hasattr(getattr(item, "module", None), "RNG")
    }
    config.stash[_generator_states] = {
        module: rng.bit_generator.state for module, rng in generators.items()
    }
    gc.freeze()


def pytest_runtest_setup(item):
    """Put the random generator of the test's module back to the state after the import."""
    state = item.config.stash[_generator_states].get(getattr(item, "module", None))
    if state is not None:
        item.module.RNG.bit_generator.state = state
