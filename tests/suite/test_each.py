"""A test of many cases checks all of them and lists those that fail."""

import pytest

from tests.each import check_each


def test_every_failing_case_is_listed():
    checked = []

    def check(dividend, divisor):
        checked.append((dividend, divisor))
        assert dividend / divisor < 3, "too large"

    with pytest.raises(pytest.fail.Exception) as error:
        check_each(check, [(1, 1), (2, 0), (3, 1), (4, 2)])
    lines = str(error.value).splitlines()
    assert checked == [(1, 1), (2, 0), (3, 1), (4, 2)]
    assert lines[0] == "2, 0: ZeroDivisionError: division by zero"
    assert lines[1].startswith("3, 1: AssertionError: too large")
    assert not any(line.startswith(("1, 1:", "4, 2:")) for line in lines)


def test_a_single_argument_need_not_be_a_tuple():
    checked = []
    check_each(checked.append, ["a", "b"])
    assert checked == ["a", "b"]
