"""constant-rows: constants beside a tensor become zeros around it and a sum."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.quantization.normalize.axes.constant_concat import replace_concat_with_constants
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from tests.passes.helpers import changes, feeds, graph, ops, outputs, proto, rand

TOKEN = """n = Shape<start = 0, end = 1>(x) r = Constant<value_ints = [1, 4]>() s = Concat<axis = 0>(n, r)
    e = Expand(k, s) y = Concat<axis = 1>(e, x)"""


def test_a_class_token_of_each_sample():
    """An Expand along the batch, in front of the rows."""
    text = f"g (float[N,5,4] x) => (float[N,6,4] y) {{ {TOKEN} }}"
    model = graph(text, opset=15, k=rand(1, 1, 4))
    feed = feeds(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    want = outputs(graph(text, opset=15, k=rand(1, 1, 4)), feed)["y"]
    assert changes(replace_concat_with_constants, model) == 1
    assert ops(model) == ["Pad", "Add"]
    np.testing.assert_array_equal(outputs(model, feed)["y"], want)
    assert changes(replace_concat_with_constants, model) == 0


@pytest.mark.parametrize(
    "body, constants",
    (
        ("y = Concat<axis = 1>(x, z)", {"z": rand(2, 1, 4)}),  # two samples
        ("s = Relu(x) y = Concat<axis = 1>(x, s)", {}),  # no constant
        ("y = Concat<axis = 0>(x, z)", {"z": rand(1, 5, 4)}),  # more samples
    ),
)
def test_other_joins_stay(body, constants):
    model = graph(f"g (float[N,5,4] x) => (float[N,A,B] y) {{ {body} }}", **constants)
    trace_shapes(model, {"x": rand(2, 5, 4)})
    before = ops(model)
    assert changes(replace_concat_with_constants, model) == 0
    assert ops(model) == before


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA", "generic"))
@pytest.mark.parametrize("fixed", (False, True))
def test_a_token_runs_in_integers(platform, fixed):
    """In front and behind, in files for any number of samples and for one; as near as rows without
    it.
    """
    body = TOKEN if not fixed else "y = Concat<axis = 1>(k, x, k)"
    text = (
        f"g (float[{1 if fixed else 'N'},5,4] a) => (float[M,6,3] z) {{ x = MatMul(a, v) "
        f"{body} "
        "z = MatMul(y, w) }"
    )
    constants = {"k": rand(1, 1, 4), "v": rand(4, 4), "w": rand(4, 3)}
    if fixed:
        text = text.replace("[M,6,3]", "[1,7,3]")
    model, data = proto(text, opset=15, **constants), {"a": rand(16, 5, 4)}
    found = quantize(model, data, platform=platform, effort="fast")
    assert not found.report.float_nodes
    assert platform == "generic" or found.report.chip_ready
    have = Session(found.graph).run(["z"], data)[0]
    want = np.concatenate(
        [Session(model).run(["z"], {"a": data["a"][i : i + 1]})[0] for i in range(16)]
    )
    assert 10 * np.log10(np.square(want).sum() / np.square(want - have).sum()) > 30
