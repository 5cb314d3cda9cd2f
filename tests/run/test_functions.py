"""Functions of the user's, named in a line: what is found, and what is said where nothing is."""

import pytest

from lingeronnx.common.errors import DataError
from lingeronnx.runtime.data import load_function


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("NUMBER = 3\n\ndef batches():\n    return [1, 2]\n")
    return path


def test_a_function_of_a_module_or_of_a_file(file):
    assert load_function("math:hypot", "data")(3, 4) == 5
    assert load_function(f"{file}:batches", "data")() == [1, 2]


@pytest.mark.parametrize(
    "name, said",
    [
        ("batches", "'batches' is not module:function or file.py:function"),
        ("math:", "is not module:function"),
        ("no_such_module_here:f", "importing no_such_module_here failed"),
        ("math:hypott", "math has no function 'hypott'"),
        ("nowhere.py:f", "no file nowhere.py"),
    ],
)
def test_what_is_not_there_is_told_with_what_it_is_for(name, said):
    with pytest.raises(DataError, match="metric: ") as told:
        load_function(name, "metric")
    assert said in str(told.value)


def test_a_near_name_is_offered_and_numbers_are_no_functions(file):
    with pytest.raises(DataError, match="did you mean 'batches'"):
        load_function(f"{file}:batch", "data")
    with pytest.raises(DataError, match="has no function 'NUMBER'"):
        load_function(f"{file}:NUMBER", "data")


def test_an_error_of_the_file_itself_is_told(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('not today')\n")
    with pytest.raises(DataError, match="ValueError: not today"):
        load_function(f"{path}:f", "data")
