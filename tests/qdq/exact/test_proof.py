"""How a file is compared, and when its batch is open."""

import numpy as np
import onnx
import pytest

import lingeronnx as lo
from lingeronnx.interchange.qdq.batch_axis import make_batch_dynamic
from lingeronnx.interchange.qdq.exact.verification import (
    compare_with_simulator,
    open_as_user,
    outputs_match,
    random_feeds,
)
from lingeronnx.interchange.qdq.exact.write import write_exact
from lingeronnx.ir import ir
from lingeronnx.ir.plan import Affine
from tests.nets import Net, quantized


def test_one_integer_off_is_seen():
    q, want = Affine(16.0), np.array([0.5, 1.0], np.float32)
    assert outputs_match(want, want.copy(), None)
    assert not outputs_match(want, np.nextafter(want, 2), None)
    assert outputs_match(want, np.nextafter(want, 2), q)
    assert not outputs_match(want, want + np.float32(1 / 16), q)
    assert not outputs_match(want, want[:1], q)


def test_a_file_that_rounds_otherwise_is_seen():
    """The plain form of the same graph, whose ties go to even, is not found equal."""
    net = Net(4, 5, 5)
    a, b = net.conv("x", (4, 4, 1, 1)), net.conv("x", (4, 4, 1, 1))
    made = quantized(
        net.graph(net.node("Add", a, b, out="y")), platform="venus", effort="fast"
    ).graph
    feeds = random_feeds(made, False, 8)
    plain = compare_with_simulator(made, open_as_user(lo.convert(made, "qdq").graph), feeds)
    exact = compare_with_simulator(
        made, open_as_user(write_exact(made, functions=True).standard.graph), feeds
    )
    assert plain.equal < plain.count
    assert exact.equal == exact.count == 8


def test_random_inputs_hold_ties():
    net = Net(2, 3, 3)
    made = quantized(
        net.graph(net.conv("x", (2, 2, 1, 1), out="y")), platform="venus", effort="fast"
    ).graph
    (quant,) = (node for node in made.graph if node.op_type == "Quant")
    counts = random_feeds(made, False, 20)
    counts = np.concatenate([feed["x"].reshape(-1) for feed in counts]) * ir.get_attr(
        quant, "scale_x"
    )
    assert 0.1 < (counts % 1 == 0.5).mean() < 0.5


@pytest.mark.parametrize("mixed", (False, True))
def test_batch(mixed):
    """Open where samples stay apart; a float operator that may mix them keeps it at 1, with its
    name.
    """
    net = Net(2, 4, 4)
    y = net.node("Flatten", net.conv("x", (2, 2, 1, 1)))
    y = (
        net.node("CumSum", y, net.const(np.int64(0)), out="y")
        if mixed
        else net.node("Relu", y, out="y")
    )
    made = quantized(net.graph(y), platform="venus", effort="fast").graph
    standard = write_exact(made, functions=True).standard.graph
    found = make_batch_dynamic(made, standard, random_feeds(made, True, 3))
    if mixed:
        assert found == "CumSum may mix samples"
        return
    proto = ir.to_proto(found)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    x = np.random.default_rng(0).standard_normal((5, 2, 4, 4)).astype(np.float32)
    assert np.array_equal(
        open_as_user(found).run(None, {"x": x})[0], lo.Session(made).run(["y"], {"x": x})[0]
    )
