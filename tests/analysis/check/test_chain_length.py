"""The work of `check` grows in proportion to the length of a chain of nodes."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.layers.linear import fuse_linear
from tests.call_counts import count_calls

SHAPE = (1, 4, 8, 8)
MAX_RATIO = 2.3  # of the calls for the second half of a chain that is twice as long


def make_chain(op_types, length):
    """Make a chain of `length` nodes with `op_types` in turn; an Add also reads the input, a Mul a
    constant per channel, and a MatMul a weight.
    """
    nodes, initializers, source = [], [], "x"
    rng = np.random.default_rng(0)
    for index in range(length):
        op_type = op_types[index % len(op_types)]
        inputs = [source]
        if op_type == "Add":
            inputs.append("x")
        if op_type == "Mul":
            factors = 1 + 0.1 * rng.random((1, 4, 1, 1))
            initializers.append(numpy_helper.from_array(factors.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        if op_type == "MatMul":
            weight = 0.3 * rng.standard_normal((8, 8))
            initializers.append(numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        if op_type == "Conv":
            weight = 0.5 * rng.standard_normal((4, 4, 1, 1))
            initializers.append(numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
            inputs.append(f"w{index}")
        source = "y" if index == length - 1 else f"t{index}"
        nodes.append(helper.make_node(op_type, inputs, [source], name=f"n{index}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in "xy")
    graph = helper.make_graph(nodes, "chain", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.mark.parametrize(
    "op_types, length",
    (
        (["Neg"], 100),
        (["Relu"], 100),
        (["Sigmoid"], 100),
        (["Neg", "Relu", "Sigmoid", "Tanh", "Abs"], 100),
        (["Conv"], 25),
        (["Add"], 50),
        (["Mul"], 50),
    ),
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_calls_grow_linearly(op_types, length):
    """Twice the nodes need twice the calls. Fixed costs are subtracted."""
    counts = []
    for factor in (1, 1, 2, 4):  # the first run fills caches
        model = make_chain(op_types, factor * length)
        counts.append(count_calls(lambda model=model: lo.check(model, platform="venus")))
    first, second = counts[2] - counts[1], counts[3] - counts[2]
    assert second <= MAX_RATIO * first


def test_linear_layers_are_fused_in_linear_time():
    """A pass that takes few calls per node is measured alone: `check` would hide its growth."""
    counts = []
    for length in (1, 20, 40, 80):  # the first run fills caches
        model = ir.from_proto(make_chain(["MatMul"], length))
        counts.append(count_calls(lambda model=model: fuse_linear(model)))
        assert [node.op_type for node in model.graph] == ["Linear"] * length
    assert counts[3] - counts[2] <= MAX_RATIO * (counts[2] - counts[1])
