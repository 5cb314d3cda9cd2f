"""docs/models.md joins what the measured pages say of one model, under the names that each of them has."""

from docs.pages.model_table import page, rows

ROWS = {(row[0], row[1]): row[2:] for row in rows()}


def test_figures_of_one_model_are_joined():
    ready, top, level, share, *memory, cycles = ROWS["dscnn", "arcs"]
    assert (ready, share) == ("yes", "100.00")
    assert float(top) > 95
    assert float(level) > 20
    assert len(memory) == 3
    assert int(cycles.replace(",", "")) > 100_000


def test_cycles_are_those_of_the_chip_that_has_them():
    assert {target for (_, target), row in ROWS.items() if row[-1]} == {"arcs"}
    assert len(ROWS) > 60
    assert all(len(row) == 8 for row in ROWS.values())
    assert page().count("\n| ") == len(ROWS) + 1
