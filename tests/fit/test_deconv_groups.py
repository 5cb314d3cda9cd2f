"""Groups of a transposed convolution one by one: the same function, and each group within the
limits.
"""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize.windows import groups
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from tests import nets


def net(group, channels, bias=True, **attributes):
    builder = nets.Net(channels, 5, 6, seed=2)
    weight = builder.const(
        np.random.default_rng(0).standard_normal((channels, 3, 3, 2)).astype(np.float32)
    )
    inputs = ["x", weight]
    if bias:
        inputs.append(builder.const(np.arange(3.0 * group, dtype=np.float32)))
    builder.node("ConvTranspose", *inputs, out="y", group=group, **attributes)
    return builder.graph("y")


def run(model, feed):
    (_, array, _) = next(FloatRunner(model, {"y"}).run(feed))
    return array


@pytest.mark.parametrize("target", (VENUS, ARCS, VENUSA))
@pytest.mark.parametrize(
    "group, bias, attributes", [(2, True, {"strides": [2, 1]}), (4, False, {"pads": [1, 0, 1, 0]})]
)
def test_the_same_function(target, group, bias, attributes):
    model = net(group, 4 * group, bias, **attributes)
    feed = nets.samples(model, 2)
    trace_shapes(model, {"x": feed["x"][:1]})
    want = run(model.clone(), feed)
    (node,) = (n for n in model.graph if n.op_type == "ConvTranspose")
    rewrite = groups.split_conv_transpose_groups(model, node, target)
    assert rewrite == (f"transposed convolution split into its {group} groups", "exact")
    parts = [n for n in model.graph if n.op_type == "ConvTranspose"]
    assert len(parts) == group
    assert all(int(ir.get_attr(n, "group", 1)) == 1 for n in parts)
    np.testing.assert_allclose(run(model, feed), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("group", (1, 17))
def test_one_group_and_very_many_stay(group):
    model = net(group, group * 2)
    trace_shapes(model, {"x": nets.samples(model, 1)["x"]})
    (node,) = (n for n in model.graph if n.op_type == "ConvTranspose")
    assert groups.split_conv_transpose_groups(model, node, ARCS) is None


def test_what_does_not_fit_then_either_stays(monkeypatch):
    model = net(2, 8)
    trace_shapes(model, {"x": nets.samples(model, 1)["x"]})
    before = [n.op_type for n in model.graph]
    monkeypatch.setattr(groups, "find_lowering_rule", lambda *_: (None, "no"))
    (node,) = (n for n in model.graph if n.op_type == "ConvTranspose")
    assert groups.split_conv_transpose_groups(model, node, ARCS) is None
    assert [n.op_type for n in model.graph] == before
