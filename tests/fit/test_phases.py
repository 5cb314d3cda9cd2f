"""Dilated lines as rows of phases: the same floats on every chip, in graphs that both judges
take.
"""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.luna import ARCS, VENUS
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from tests.case_selection import limit_examples
from tests.fit.test_fit import assert_legalized, conv
from tests.fit.test_line_forms import assert_ready
from tests.nets import Net
from tests.passes.helpers import ops


def test_whole_rows_take_no_other_node():
    """40 positions in rows of 4; the padding is two rows ahead."""
    (rewrite,) = assert_legalized(
        conv((2, 40), (3, 2, 3), dilations=[4], pads=[8, 0]), VENUS, ["Reshape", "Conv", "Reshape"]
    )
    assert (rewrite.what, rewrite.cost) == (
        "kernel 3 with dilation 4 as 3x1 over rows of 4",
        "exact",
    )


def test_rows_are_filled_up_and_the_rest_is_cut_off():
    """41 positions become 11 rows of 4, and 44 results 41."""
    assert_legalized(
        conv((2, 41), (3, 2, 3), dilations=[4], pads=[8, 0]),
        VENUS,
        ["Pad", "Reshape", "Conv", "Reshape", "Slice"],
    )
    assert_legalized(
        conv((2, 40), (3, 2, 3), dilations=[4], pads=[5, 3]),
        VENUS,
        ["Reshape", "Conv", "Reshape", "Slice"],
    )


def test_a_kernel_of_one_column_and_a_flat_image():
    """An image has its columns beside the phases; a row of an image is a line."""
    assert_legalized(
        conv((2, 24, 5), (3, 2, 3, 1), dilations=[4, 1], pads=[4, 0, 4, 0]),
        VENUS,
        ["Reshape", "Conv", "Reshape"],
    )
    assert_legalized(
        conv((2, 1, 24), (3, 2, 1, 3), dilations=[1, 4], pads=[0, 4, 0, 4]),
        VENUS,
        ["Reshape", "Conv", "Reshape"],
    )


@pytest.mark.parametrize(
    "shape, weight, kind",
    (
        ((2, 40, 40), (3, 2, 3, 3), {"dilations": [4, 4]}),  # both axes
        ((2, 6, 40), (3, 2, 1, 3), {"dilations": [1, 4]}),  # rows ahead of the line
        ((2, 40), (3, 2, 3), {"dilations": [4], "strides": [2]}),
        (
            (2, 41),
            (3, 2, 3),
            {"dilations": [2]},
        ),  # five taps with zeros are one kernel, and take no other node
    ),
)
def test_what_is_spread_by_zeros_instead(shape, weight, kind):
    model = conv(shape, weight, **kind)
    trace_shapes(model, {"x": np.ones((1, *shape), np.float32)})
    assert any("with zeros" in rewrite.what for rewrite in legalize_graph(model, VENUS))


def test_a_chip_that_dilates_images_needs_it_for_padding_alone():
    """arcs takes pads up to the kernel: four are too many for three taps."""
    model = conv((2, 40), (3, 2, 3), dilations=[4], pads=[3, 3])
    trace_shapes(model, {"x": np.ones((1, 2, 40), np.float32)})
    assert legalize_graph(model, ARCS) == []
    assert_legalized(
        conv((2, 40), (3, 2, 3), dilations=[4], pads=[4, 4]), ARCS, ["Reshape", "Conv", "Reshape"]
    )


@limit_examples(40)
@given(
    length=st.integers(6, 40),
    taps=st.integers(2, 5),
    dilation=st.sampled_from((2, 3, 4, 8, 16)),
    pads=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    grouped=st.booleans(),
)
def test_the_floats_are_the_same(length, taps, dilation, pads, grouped):
    """Whatever the sizes are; that it can be refused is not tested here."""
    extent = (taps - 1) * dilation
    pads = tuple(min(p, extent) for p in pads)
    assume(length + sum(pads) > extent)
    model = conv(
        (4, length),
        (4, 1 if grouped else 4, taps),
        dilations=[dilation],
        pads=list(pads),
        group=4 if grouped else 1,
    )
    x = np.random.default_rng(length).standard_normal((2, 4, length)).astype(np.float32)
    trace_shapes(model, {"x": x[:1]})
    want = Session(model.clone()).run(["y"], {"x": x})[0]
    rewrites = legalize_graph(model, VENUS)
    if any("over rows" in rewrite.what for rewrite in rewrites):
        assert "Conv" in ops(model)
        np.testing.assert_allclose(Session(model).run(["y"], {"x": x})[0], want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
@pytest.mark.parametrize("length", (48, 50))
def test_a_causal_net_is_whole(platform, length):
    """Depthwise layers with dilations 1 to 8, as in networks over time: nothing is left in
    float.
    """
    net = Net(4, length, seed=2)
    x = "x"
    for dilation in (1, 2, 4, 8):
        y = net.conv(x, (4, 1, 3), group=4, dilations=[dilation], pads=[2 * dilation, 0])
        x = net.node("Add", x, net.conv(net.node("Relu", y), (4, 4, 1)))
    model = net.graph(net.conv(x, (2, 4, 1), out="y"))
    data = {"x": np.random.default_rng(1).standard_normal((8, 4, length)).astype(np.float32)}
    assert_ready(quantize(model, data, platform=platform, effort="fast"), platform)
