"""Constants behind nodes that only move them, and what becomes of ones that do not fit."""

import numpy as np
import pytest

from lingeronnx.common.errors import ModelError
from lingeronnx.interchange.qdq.qoperators import reshape_constant, transpose_constant
from lingeronnx.ir import ir
from tests.onnx_files.helpers import proto


def test_constants_move_as_their_nodes_say():
    """A Transpose and a Reshape of a constant are those of numpy; what does not fit is one line."""
    model = ir.from_proto(
        proto("g (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [1, 0]>(x) }")
    )
    node, array = model.graph.node(0), np.arange(6).reshape(2, 3)
    assert np.array_equal(transpose_constant(array, node), array.T)
    assert np.array_equal(reshape_constant(array, np.array([3, -1]), node), array.reshape(3, 2))
    with pytest.raises(
        ModelError, match=r"perm = \[1, 0\] does not match its constant with 3 axes"
    ):
        transpose_constant(array[None], node)
    with pytest.raises(ModelError, match=r"constant \[2, 3\] cannot be reshaped to \[4, 2\]"):
        reshape_constant(array, np.array([4, 2]), node)
