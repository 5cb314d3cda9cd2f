"""prepare: functions inlined, Constant nodes as initializers, defaults of inputs as constants, dead
nodes gone.
"""

import onnx.parser
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.entry.lift_constants import lift_constants, remove_dead_nodes
from tests.passes.helpers import check_pass_fires, feeds, graph, interface, ops, outputs, rand


@pytest.mark.parametrize(
    "value",
    (
        "value = float[2] {1.0, 2.0}",
        "value_floats = [1.0, 2.0]",
        "value_float: float = 2.0",
        "value = float {2.0}",
    ),
)
def test_constant_nodes(value):
    """Constants of every spelling become initializers."""
    text = f"g (float[N,2] x) => (float[N,2] y) {{ k = Constant<{value}>() y = Mul(x, k) }}"
    model = check_pass_fires(graph(text), lift_constants, 1, ["Mul"], atol=0)
    assert ir.const_value(model.graph.node(0).inputs[1]).reshape(-1)[-1] == 2


def test_integer_constants():
    """Shapes and axes too."""
    text = (
        "g (float[N,2] x) => (float[N,1,2] y) { k = Constant<value_ints = [1]>() y = "
        "Unsqueeze(x, k) }"
    )
    check_pass_fires(graph(text), lift_constants, 1, ["Unsqueeze"], atol=0)


def test_initializers_listed_as_inputs():
    """Before IR version 4 every weight is listed as a graph input: they are constants, not inputs
    to feed.
    """
    text = (
        "g (float[N,4] x, float[4,3] w, float[3] b) => (float[N,3] y) { m = MatMul(x, w) y = "
        "Add(m, b) }"
    )
    model = graph(text, w=rand(4, 3), b=rand(3))
    feed = {"x": rand(2, 4)}
    want = outputs(model, feed)["y"]
    assert interface(model) == (["x"], ["y"])
    assert lift_constants(model) == 2
    assert [str(v.name) for v in model.graph.inputs] == ["x"]
    assert ir.const_value(model.graph.initializers["w"]) is not None
    assert (outputs(model, feed)["y"] == want).all()
    assert lift_constants(model) == 0


def test_functions_are_inlined():
    """A model-local function of a stranger becomes its body; ours stays."""
    text = """<ir_version: 8, opset_import: ["" : 13, "local" : 1]>
    g (float[N,4] x) => (float[N,4] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 13]>
    twice (a) => (b) { c = Exp(a) b = Add(c, c) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    check_pass_fires(model, lift_constants, 1, ["Exp", "Add"], atol=0, trace=False)
    assert not model.functions


def test_dead_nodes():
    """What leads to no output goes; it is no change that counts."""
    text = "g (float[N,4] x) => (float[N,4] y) { d = Exp(x) e = Add(d, d) y = Relu(x) }"
    check_pass_fires(graph(text), lift_constants, 0, ["Exp", "Add", "Relu"][2:], atol=0)


def test_clean_drops_unused_weights():
    """A weight that nobody reads any more is not written."""
    model = graph("g (float[N,4] x) => (float[N,4] y) { d = Mul(x, k) y = Relu(x) }", k=rand(4))
    assert remove_dead_nodes(model) == 0
    assert ops(model) == ["Relu"]
    assert not model.graph.initializers


def test_unused_input_stays():
    """A graph input is the user's, also when nobody reads it."""
    model = graph("g (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Relu(x) }")
    lift_constants(model)
    assert interface(model) == (["x", "z"], ["y"])
    assert outputs(model, feeds(model))["y"].shape == (2, 4)
