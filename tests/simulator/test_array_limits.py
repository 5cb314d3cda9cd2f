"""Tensors that no array can hold are refused when a program is compiled."""

import numpy as np
import pytest

from simulator.kernels import Reshape
from simulator.program import SimulatorError, Step, TensorSpec, compile_program


def reshape(shape):
    """Compile a Reshape of int8 [1, 6] to a shape."""
    return compile_program(
        [Step(Reshape(shape), ("x",), ("y",))], {"x": TensorSpec((1, 6), np.dtype(np.int8))}
    )


def test_axes():
    """64 axes are the limit of NumPy."""
    program = reshape((1,) * 63 + (6,))
    ((_, _), (_, y)) = program.run({"x": np.zeros((2, 6), np.int8)})
    assert y.ndim == 64
    with pytest.raises(SimulatorError, match=r"'y' has 68 axes; at most 64 .*: remove"):
        reshape((1,) * 67 + (6,))


def test_bytes():
    """Addresses have 47 bits."""

    class Enlarging(Reshape):
        def infer(self, *specs):
            return (TensorSpec((1, 1 << 40, 1 << 10), np.dtype(np.int8)),)

    with pytest.raises(SimulatorError, match=r"'y' has 1,125,899,906,842,624 bytes per sample"):
        compile_program(
            [Step(Enlarging((1, 6)), ("x",), ("y",))],
            {"x": TensorSpec((1, 6), np.dtype(np.int8))},
        )
