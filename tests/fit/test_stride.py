"""Strides that chips do not have, and large kernels with a stride: the same function, ready by both
judges.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import ARCS, VENUS, VENUSA
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from tests import nets
from tests.case_selection import limit_examples
from tests.fit.test_line_forms import outputs
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")
ROWS = (VENUS, ARCS, VENUSA)


def build_strided_conv(kernel, strides, pads, size, *, group=1, dilations=None, channels=4):
    """A layer in front, the convolution in question, a layer behind; of as many dimensions as
    `kernel` has.
    """
    rank = len(kernel)
    net = nets.Net(3, *size, seed=4)
    a = net.node("Relu", net.conv("x", (channels, 3, *[3] * rank), pads=[1] * 2 * rank))
    sizes = {
        "strides": list(strides),
        "pads": list(pads),
        "dilations": list(dilations or [1] * rank),
    }
    b = net.node("Relu", net.conv(a, (channels, channels // group, *kernel), group=group, **sizes))
    return net.graph(net.conv(b, (3, channels, *[1] * rank), out="y"))


def legalize_and_run(model, row):
    """Return the float outputs before and after legalization, and the rewrites."""
    feed = nets.samples(model, 2)
    trace_shapes(model, {"x": feed["x"][:1]})
    before = model.clone()
    rewrites = legalize_graph(model, row)
    (_, want, _), (_, have, _) = (next(FloatRunner(m, {"y"}).run(feed)) for m in (before, model))
    return want, have, rewrites


@limit_examples(30)
@given(
    sizes=st.lists(
        st.tuples(
            st.integers(1, 7),
            st.integers(3, 6),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(9, 16),
        ),
        min_size=1,
        max_size=2,
    ),
    group=st.sampled_from((1, 1, 2, 4)),
    index=st.integers(0, len(ROWS) - 1),
)
def test_the_same_function(sizes, group, index):
    """Law: whatever kernels, strides, pads, sizes and groups, of lines and of images."""
    row = ROWS[index]
    kernel, strides, begin, end, size = zip(*sizes, strict=True)
    pads = [min(p, k) for p, k in zip((*begin, *end), (*kernel, *kernel), strict=True)]
    want, have, rewrites = legalize_and_run(
        build_strided_conv(kernel, strides, pads, size, group=group), row
    )
    assert any(entry.what.startswith("stride ") for entry in rewrites) == any(
        s not in row.conv_limits.strides for s in strides
    )
    np.testing.assert_allclose(have, want, rtol=0, atol=5e-5)


def test_a_dilated_kernel_with_a_stride():
    """It is thinned out: its taps lie in one phase or in several."""
    model = build_strided_conv((3, 3), (3, 3), (2,) * 4, (15, 15), dilations=(2, 2))
    want, have, rewrites = legalize_and_run(model, ARCS)
    assert any("is kept" in entry.what for entry in rewrites)
    np.testing.assert_allclose(have, want, rtol=0, atol=5e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("platform", CHIPS)
@pytest.mark.parametrize(
    "kernel, stride, pad, size, group, expected_text",
    (
        (3, 3, 1, 24, 1, "phases"),
        (3, 3, 1, 25, 1, "is kept"),
        (3, 3, 1, 24, 8, "is kept"),
        (3, 3, 0, 24, 2, "is kept"),
        (7, 3, 3, 24, 1, "phases"),
        (16, 16, 0, 32, 1, "phases"),
        (1, 3, 0, 25, 1, "is kept"),
        (5, 5, 2, 25, 1, "phases"),
    ),
)
def test_ready(kernel, stride, pad, size, group, expected_text, platform):
    """All in integers, by both judges."""
    model = build_strided_conv(
        (kernel,) * 2, (stride,) * 2, (pad,) * 4, (size, size), group=group, channels=8
    )
    feed = nets.samples(model, 4)
    result = quantize(model, feed, platform=platform, effort="fast")
    report = result.report
    assert not report.float_nodes
    assert not report.host_part
    assert report.chip_ready
    assert any(expected_text in entry.what for entry in report.fitted)
    verdict = judge(ir.to_proto(result.graph), platform, report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    want, have = outputs(model, result, feed)
    assert np.square(want - have).sum() < 0.01 * np.square(want).sum()


@pytest.mark.slow
@pytest.mark.parametrize("platform", CHIPS)
def test_the_stem_of_large_pictures(platform):
    """7x7 with stride 2 on 224x224, where no sum of smaller kernels fits: one convolution of its
    phases.
    """
    net = nets.Net(3, 224, 224, seed=4, batch=1)
    a = net.node("Relu", net.conv("x", (32, 3, 7, 7), strides=[2, 2], pads=[3] * 4))
    b = net.node("MaxPool", a, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    model = net.graph(net.conv(b, (4, 32, 1, 1), out="y"))
    feed = nets.samples(model, 1)
    result = quantize(model, feed, platform=platform, effort="fast")
    report = result.report
    assert report.chip_ready
    assert not report.host_part
    assert not any("added" in entry.what for entry in report.fitted)
    verdict = judge(ir.to_proto(result.graph), platform, report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)


@pytest.mark.parametrize("target", ROWS, ids=lambda target: target.name)
def test_where_a_sum_fits_it_stays_one(target):
    """A large kernel with a stride of 2 on a small map is a sum of smaller ones, as before."""
    _, _, rewrites = legalize_and_run(
        build_strided_conv((7, 7), (2, 2), (3,) * 4, (16, 16)), target
    )
    assert [entry.what for entry in rewrites] == [
        "kernel 7x7 split into 4 that are added (4x4, 4x3, 3x4, 3x3)"
    ]


def test_a_stride_beyond_reason_stays():
    """Above 32 nothing is done."""
    model = build_strided_conv((3,), (40,), (0, 0), (90,))
    feed = nets.samples(model, 1)
    trace_shapes(model, feed)
    assert not any(entry.what.startswith("stride") for entry in legalize_graph(model, ARCS))
