"""Standard graphs that move numbers along axis 0 of a sample, for a batch: each sample as NumPy has
it.
"""

import numpy as np
import pytest

import lingeronnx as lo
from lingeronnx.interchange.qdq.batch_axis import make_batch_dynamic, separate_batch_axis
from lingeronnx.interchange.qdq.exact.verification import (
    open_as_user,
    random_feeds,
)
from lingeronnx.interchange.qdq.exact.write import write_exact
from lingeronnx.ir import ir
from tests.nets import Net, quantized

CASES = {
    "turned": lambda net, x: (net.node("Transpose", x, perm=[1, 0]), lambda a: a.T),
    "some rows": lambda net, x: (
        net.node("Slice", x, *(net.const(np.array([n], np.int64)) for n in (1, 3, -2))),
        lambda a: a[1:3],
    ),
    "chosen": lambda net, x: (
        net.node("Gather", x, net.const(np.array([2, 0])), axis=0),
        lambda a: a[[2, 0]],
    ),
    "joined": lambda net, x: (net.node("Concat", x, x, axis=0), lambda a: np.concatenate([a, a])),
}


@pytest.mark.parametrize("case", CASES)
def test_samples_stay_apart(case):
    """A sample [1, 12] is a matrix of 3 rows; what comes out lies side by side again."""
    net = Net(12, batch=1)
    made, expected = CASES[case](
        net, net.node("Reshape", "x", net.const(np.array([-1, 4])), out="rows")
    )
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    size = expected(rows).size
    model = net.graph(net.node("Reshape", made, net.const(np.array([-1, size])), out="y"))
    separate_batch_axis(model)
    for value in ir.iter_values(model):  # of one sample
        if not value.is_initializer():
            value.shape = ir.Shape(["N", 12]) if value.is_graph_input() else None
    x = np.stack([rows.reshape(-1), 7 - rows.reshape(-1), rows.reshape(-1) ** 2])
    (y,) = open_as_user(model).run(["y"], {"x": x})
    np.testing.assert_array_equal(
        y, np.stack([expected(row.reshape(3, 4)).reshape(-1) for row in x])
    )


def test_a_batch_of_matrices_that_are_turned():
    """A chip's graph in which a map is turned: the file takes any batch, and gives the simulator's
    integers.
    """
    net = Net(8, 12, 12)
    y = net.node("Transpose", net.node("Relu", net.conv("x", (8, 8, 1, 1))), perm=[0, 2, 3, 1])
    made = quantized(
        net.graph(net.node("Reshape", y, net.const(np.array([0, -1])), out="y")), platform="arcs"
    ).graph
    assert [1, 0] in [
        ir.get_attr(node, "perm") for node in made.graph if node.op_type == "Transpose"
    ]
    found = make_batch_dynamic(
        made, write_exact(made, functions=True).standard.graph, random_feeds(made, True, 3)
    )
    assert not isinstance(found, str), found
    x = np.random.default_rng(0).standard_normal((5, 8, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(
        open_as_user(found).run(None, {"x": x})[0], lo.Session(made).run(["y"], {"x": x})[0]
    )
