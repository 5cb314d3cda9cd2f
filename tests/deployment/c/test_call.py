"""Names and literals of the C of a call."""

import pytest

from lingeronnx.deployment.c.call import names_of, quantizer, scale
from lingeronnx.deployment.c.program import Array


def test_names_are_unique():
    """Tensors whose names differ in signs only have names of their own in C."""
    arrays = [Array(name, name, (1,), "float32") for name in ("a/b", "a.b", "a_b", "a_b_2")]
    found = names_of(arrays, "in")
    assert len(set(found.values())) == len(arrays)
    assert all(name.isidentifier() for name in found.values())


@pytest.mark.parametrize("shift", (-20, -1, 0, 1, 7, 30))
def test_scales_are_exact(shift):
    assert float.fromhex(scale(shift).removesuffix("f")) == 2.0**shift


def test_which_border():
    """The half is added in float32 where the NPU does; exactly where that would round."""
    assert quantizer("int8", 0) == "quantize_int8"
    assert {quantizer("int8", -1), quantizer("int16", 3)} == {"quantize_int8_exact", "quantize_int16_exact"}
