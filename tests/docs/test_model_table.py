"""docs/reference/models.md joins what the measured pages say of one model, under the names that
each of them has.
"""

import pytest

from docs.pages.model_table import page, rows


@pytest.fixture(scope="module")
def table():
    """Return the figures of each model on each target."""
    return {(model, target): figures for model, target, *figures in rows()}


def test_figures_of_one_model_are_joined(table):
    ready, top, level, share, *memory, cycles = table["dscnn", "arcs"]
    assert (ready, share) == ("yes", "100.00")
    assert float(top) > 95
    assert float(level) > 20
    assert len(memory) == 3
    assert int(cycles.replace(",", "")) > 100_000


def test_cycles_are_those_of_the_chip_that_has_them(table):
    assert {target for (_, target), figures in table.items() if figures[-1]} == {"arcs"}
    assert len(table) > 60
    assert all(len(figures) == 8 for figures in table.values())
    assert page().count("\n| ") == len(table) + 1
