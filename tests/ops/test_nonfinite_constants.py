"""Constants that are NaN or infinite: the operator stays in float, with the reason."""

import math

import numpy as np
import pytest
from onnx import helper, numpy_helper

import lingeronnx as lo

_RNG = np.random.default_rng(0)


def model(op_type, *constants):
    """Return Relu -> operator with constants."""
    tensors = [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants)]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node(op_type, ["r", *(t.name for t in tensors)], ["y"], name="it"),
    ]
    x = helper.make_tensor_value_info("x", 1, ["N", 4, 6, 6])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def draw(*shape, bad=None):
    """Return random numbers, the first of which may be `bad`."""
    array = np.abs(_RNG.standard_normal(shape)).astype(np.float32)
    if bad is not None:
        array.flat[0] = bad
    return array


CASES = {
    "PRelu": lambda bad: model("PRelu", draw(4, 1, 1, bad=bad)),
    "bias of Conv": lambda bad: model("Conv", draw(2, 4, 3, 3), draw(2, bad=bad)),
    "bias of ConvTranspose": lambda bad: model("ConvTranspose", draw(4, 2, 3, 3), draw(2, bad=bad)),
    "mean of BatchNormalization": lambda bad: model(
        "BatchNormalization", draw(4), draw(4), draw(4, bad=bad), draw(4)
    ),
}


_FLOAT_OPS = {"PRelu", "Conv", "ConvTranspose", "BatchNormalization"}


def refusal(call):
    """Return the message of an error of ours, an empty text without one; others pass."""
    try:
        call()
    except lo.LingerOnnxError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("platform", ["generic", "venus"])
def test_nonfinite_constants_stay_in_float(case, bad, platform):
    """An error of ours or a float operator; no warning of NumPy (they are errors in tests)."""
    graphs = []
    proto = CASES[case](bad)
    message = refusal(
        lambda: graphs.append(lo.quantize(proto, platform=platform, effort="fast").graph)
    )
    if message:
        assert "NaN" in message or "finite" in message
        return
    assert _FLOAT_OPS & {node.op_type for node in graphs[0].graph if not node.domain}


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_check_of_nonfinite_constants(case, bad):
    """The forecast lowers the graph without data."""
    message = refusal(lambda: lo.check(CASES[case](bad), platform="venus"))
    assert not message or "NaN" in message or "finite" in message
