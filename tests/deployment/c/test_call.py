"""Names and literals of the C of a call."""

import pytest

from lingeronnx.deployment.c_program.call_writer import (
    format_scale,
    get_quantize_function,
    make_c_names,
)
from lingeronnx.deployment.c_program.program import ProgramTensor


def test_names_are_unique():
    """Tensors whose names differ in signs only have names of their own in C."""
    arrays = [ProgramTensor(name, name, (1,), "float32") for name in ("a/b", "a.b", "a_b", "a_b_2")]
    found = make_c_names(arrays, "in")
    assert len(set(found.values())) == len(arrays)
    assert all(name.isidentifier() for name in found.values())


@pytest.mark.parametrize("shift", (-20, -1, 0, 1, 7, 30))
def test_scales_are_exact(shift):
    assert float.fromhex(format_scale(shift).removesuffix("f")) == 2.0**shift


def test_which_border():
    """The half is added in float32 where the NPU does; exactly where that would round."""
    assert get_quantize_function("int8", 0) == "quantize_int8"
    assert {get_quantize_function("int8", -1), get_quantize_function("int16", 3)} == {
        "quantize_int8_exact",
        "quantize_int16_exact",
    }
