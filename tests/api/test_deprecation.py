"""Former names of public members and parameters still work, and warn."""

from dataclasses import dataclass

import pytest

from lingeronnx.deprecation import accept_old_parameters, keep_old_members
from lingeronnx.targets import get_target
from lingeronnx.targets.arithmetic import LayerArithmetic

VENUS = get_target("venus")


@keep_old_members("9.9", old_size="size", area="get_area")
@dataclass(frozen=True)
class Box:
    size: int = 2

    def get_area(self, scale=1):
        return scale * self.size**2


def test_old_field():
    with pytest.warns(
        DeprecationWarning, match=r"^Box\.old_size is Box\.size; the old name goes with 9\.9$"
    ):
        assert Box(3).old_size == 3


def test_old_method():
    with pytest.warns(DeprecationWarning, match=r"Box\.area is Box\.get_area"):
        assert Box(3).area(scale=2) == 18


def test_old_constructor_keyword():
    with pytest.warns(DeprecationWarning, match="parameter old_size of __init__ is size"):
        box = Box(old_size=5)
    assert box == Box(5)


def test_new_names_do_not_warn(recwarn):
    assert Box(size=3).get_area() == 9
    assert not recwarn


def test_both_names_are_an_error():
    @accept_old_parameters("9.9", old="new")
    def double(new):
        return 2 * new

    with pytest.raises(TypeError, match="got both 'new' and its former name 'old'"):
        double(new=1, old=1)


def test_target_parameters():
    with pytest.warns(
        DeprecationWarning, match="parameter kind of get_arithmetic is arithmetic_type"
    ):
        old = VENUS.get_arithmetic("Conv2dInt", kind=LayerArithmetic)
    assert old == VENUS.get_arithmetic("Conv2dInt", arithmetic_type=LayerArithmetic)
