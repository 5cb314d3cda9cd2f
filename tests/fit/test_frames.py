"""Long kernels over a line of samples as products with frames: the same function, and a whisper is
heard.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS
from lingeronnx.quantization.legalize import collect_host_reasons, legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from tests import nets
from tests.case_selection import limit_examples


def front(
    kernel, stride, length, *, channels=1, outputs=6, bias=True, behind="Pow", last=3, **attributes
):
    """Return a 1-D convolution and its consumers."""
    net = nets.Net(channels, length, seed=7)
    a = net.conv("x", (outputs, channels, kernel), strides=[stride], bias=bias, **attributes)
    a = net.node("Pow", a, net.const(np.float32(2))) if behind == "Pow" else net.node(behind, a)
    return net.graph(net.conv(a, (last, outputs, 1), out="y"))


def both(model, x, target=ARCS):
    """Return the descriptions of the rewrites, and y of the model before and after them."""
    trace_shapes(model, {"x": x[:1]})
    before = model.clone()
    descriptions = [rewrite.what for rewrite in legalize_graph(model, target)]
    assert legalize_graph(model, target) == []
    want, have = (_run_float(m, x) for m in (before, model))
    return descriptions, want, have


def _run_float(model, x):
    (_, y, _) = next(FloatRunner(model, {"y"}).run({"x": x}))
    return y


def line(length, count=3, channels=1):
    return np.random.default_rng(1).standard_normal((count, channels, length)).astype(np.float32)


@limit_examples(30)
@given(
    kernel=st.integers(13, 60),
    stride=st.integers(1, 45),
    count=st.integers(1, 5),
    extra=st.integers(0, 9),
)
def test_a_product_with_frames_is_the_convolution(kernel, stride, count, extra):
    """Law: the same function, of each sample by itself, whatever the sizes; loud, quiet and
    silent.
    """
    length = (count - 1) * stride + kernel + extra
    x = line(length) * np.array([1e3, 1e-3, 0], np.float32).reshape(3, 1, 1)
    descriptions, want, have = both(front(kernel, stride, length), x)
    assert f"kernel of {kernel} samples" in descriptions[0]
    for expected, actual in zip(want, have, strict=True):
        np.testing.assert_allclose(
            actual, expected, rtol=0, atol=1e-5 * max(float(np.abs(expected).max()), 1e-6)
        )


CASES = {
    "two channels": {"channels": 2},
    "pads": {"pads": [16, 16]},
    "a dilation": {"dilations": [2]},
    "a reader on the chip": {"behind": "Relu"},
    "a kernel that is short enough": {"kernel": 12},
}


@pytest.mark.parametrize("case", CASES)
def test_others_stay_as_they_are(case):
    """Convolutions that the chip can run, or whose result it uses, are unchanged."""
    sizes = {"kernel": 32, "stride": 16, "length": 128, **CASES[case]}
    descriptions, want, have = both(front(**sizes), line(128, channels=sizes.get("channels", 1)))
    assert not any("frames" in description for description in descriptions)
    np.testing.assert_allclose(have, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("target", (ARCS, VENUS))
def test_the_host_frames_and_the_chip_multiplies(target):
    """All that is made stays with the host, but for the product, which no other node is needed
    for.
    """
    model = front(32, 16, 128)
    both(model, line(128), target)
    (product,) = [node for node in model.graph if node.op_type == "Linear"]
    new_nodes = [node for node in model.graph if ir.origin_name(node) == ir.origin_name(product)]
    assert {str(node.name) for node in new_nodes} - {*collect_host_reasons(model)} == {
        str(product.name)
    }
    assert len(collect_host_reasons(model)) == len(new_nodes) - 1 > 5


@pytest.mark.parametrize("platform", ("arcs", "venus", "venusA"))
def test_a_whisper_is_as_near_as_a_shout(platform):
    """A sample 1000 times weaker than those of calibration loses no precision at the product.

    In a program of parts the product leaves the chip with 32 bits, because the host reads it.
    """
    model = front(32, 16, 128, outputs=12, last=24)
    result = lo.quantize(model, {"x": line(128, 32)}, platform=platform, effort="fast", max_parts=9)
    assert result.report.integer_macs == 1.0
    assert not result.report.chip_ready
    (layer,) = [node for node in result.graph.graph if node.op_type == "LinearInt"]
    assert ir.get_attr(layer, "o_bits") == 32
    (name,) = [str(v.name) for v in layer.outputs]
    x = line(128, 1)
    session = result.session()
    values = {factor: _real(session, name, x * np.float32(factor)) for factor in (1.0, 1e-3)}
    np.testing.assert_array_equal(values[1.0], values[1e-3])


def _real(session, name, x):
    """Return the product's integers."""
    return next(array for tensor, array, _ in session.tensors({"x": x}) if tensor == name)
