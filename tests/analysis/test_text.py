"""Tables as text."""

from lingeronnx.analysis.text import framed


def test_columns_are_as_wide_as_their_longest_cell():
    assert framed(("a", "long"), [("cell", "x")]) == (
        "+------+------+\n| a    | long |\n+------+------+\n| cell | x    |\n+------+------+\n"
    )
