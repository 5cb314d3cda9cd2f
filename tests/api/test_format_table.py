"""Tables as text."""

from lingeronnx.common.text import format_table


def test_columns_are_as_wide_as_their_longest_cell():
    assert format_table(("a", "long"), [("cell", "x")]) == (
        "+------+------+\n| a    | long |\n+------+------+\n| cell | x    |\n+------+------+\n"
    )
