"""Resize by whole factors as copies side by side: the float function stays, chips take it, nothing
else is touched.
"""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.luna import VENUS
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.runners import FloatRunner
from lingeronnx.targets import GENERIC, PLATFORMS
from tests import nets
from tests.case_selection import limit_examples

CHIPS = [target for target in PLATFORMS if target.has_packer]
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric")


def build_resize(factors, size=(5, 4), channels=3, **attributes):
    """A convolution, a Resize by `factors`, a Relu."""
    results = tuple(int(n * k) for n, k in zip(size, factors, strict=True))
    held = onnx.numpy_helper.from_array(np.array([1, 1, *factors], np.float32), "s")
    return _build_resize_net(size, results, channels, ["a", "", "s"], held, attributes)


def build_resize_to(size, results, channels=3, **attributes):
    """A convolution, a Resize to `results` rows and columns, a convolution."""
    held = onnx.numpy_helper.from_array(np.array([1, channels, *results], np.int64), "s")
    last = helper.make_node("Conv", ["r", "v"], ["y"], "last")
    return _build_resize_net(size, results, channels, ["a", "", "", "s"], held, attributes, last)


def _build_resize_net(size, results, channels, inputs, held, attributes, last=None):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        helper.make_node("Resize", inputs, ["r"], "resize", **attributes),
        last or helper.make_node("Relu", ["r"], ["y"], "relu"),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": (channels, 2, 1, 1)} | ({"v": (channels, channels, 1, 1)} if last else {})
    arrays = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 2, *size])],
        [helper.make_tensor_value_info("y", 1, ["N", channels, *results])],
        [*(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()), held],
    )
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    )
    trace_shapes(model, {"x": np.zeros((1, 2, *size), np.float32)})
    return model


def same(before, after, size=(5, 4), tolerance=0.0):
    x = np.random.default_rng(1).standard_normal((3, 2, *size)).astype(np.float32)
    (_, want, _), (_, have, _) = (
        next(FloatRunner(m, {"y"}).run({"x": x})) for m in (before, after)
    )
    np.testing.assert_allclose(have, want, rtol=0, atol=tolerance)


@limit_examples(15)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4)), st.tuples(st.integers(1, 4), st.integers(1, 4))
)
def test_nearest_keeps_every_element(factors, size):
    """Law: copies side by side are the nearest elements, whatever the factors and sizes."""
    if factors == (1, 1):
        return
    settings_ = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    model = build_resize(factors, size, **settings_)
    before = model.clone()
    rewrites = legalize_graph(model, VENUS)
    assert [(f.node, f.cost) for f in rewrites] == [("resize", "exact")]
    assert {node.op_type for node in model.graph} == {"Conv", "Reshape", "Concat", "Relu"}
    same(before, model, size)
    assert legalize_graph(model, VENUS) == []


@pytest.mark.parametrize("target", [*CHIPS, GENERIC], ids=lambda target: target.name)
@pytest.mark.parametrize("factors", [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("mode", COORDINATES)
def test_linear_by_two_is_a_filter(target, factors, mode):
    """Also where the platform has a Resize: it takes the nearest element only."""
    model = build_resize(factors, mode="linear", coordinate_transformation_mode=mode)
    before = model.clone()
    assert [f.node for f in legalize_graph(model, target)] == ["resize"]
    assert "Resize" not in {node.op_type for node in model.graph}
    same(before, model, tolerance=1e-6)


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3, 1), (4, 5)])
@pytest.mark.parametrize("mode", COORDINATES)
@pytest.mark.parametrize("count", (1, 3))
def test_linear_to_whole_parts_is_a_filter_that_moves(target, strides, mode, count):
    """The mean of the two elements in the middle, or the one there; of a single result pytorch
    takes the first.
    """
    size = tuple(stride * count for stride in strides)
    factors = tuple(1 / stride for stride in strides)
    model = build_resize(factors, size, mode="linear", coordinate_transformation_mode=mode)
    before = model.clone()
    assert "resize" in {f.node for f in legalize_graph(model, target)}
    assert "Resize" not in {node.op_type for node in model.graph}
    same(before, model, size, tolerance=1e-6)


@pytest.mark.parametrize("size, factor", [((10, 10), 0.52), ((9, 10), 0.5)], ids=str)
def test_other_parts_are_left_alone(size, factor):
    """A scale that is no whole part, though the sizes are; sizes that are none."""
    assert legalize_graph(build_resize((factor, factor), size, mode="linear"), VENUS) == []


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric"])
def test_chips_take_the_half(target, mode):
    x = np.random.default_rng(2).standard_normal((8, 2, 8, 4)).astype(np.float32)
    model = build_resize((0.5, 0.5), (8, 4), mode="linear", coordinate_transformation_mode=mode)
    report = quantize(model, {"x": x}, platform=target.name, effort="fast").report
    assert report.chip_ready, report.findings
    assert not report.float_nodes
    assert min(fidelity["sqnr"] for fidelity in report.outputs.values()) > 25


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_chips_take_it(target, mode):
    """The smallest graph that stood in the way of detectors is chip-ready, with nothing in
    float.
    """
    x = np.random.default_rng(2).standard_normal((8, 2, 5, 4)).astype(np.float32)
    report = quantize(
        build_resize((2, 2), mode=mode), {"x": x}, platform=target.name, effort="fast"
    ).report
    assert report.chip_ready, report.findings
    assert not report.float_nodes
    assert min(fidelity["sqnr"] for fidelity in report.outputs.values()) > 25


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "cubic"},
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"},
    ],
    ids=str,
)
def test_other_coordinates_are_left_alone(attributes):
    model = build_resize((2, 2), **attributes)
    assert legalize_graph(model, VENUS) == []


def test_the_last_one_is_left_to_the_host():
    """Scores resized to the size of a picture."""
    for mode in ("half_pixel", "align_corners"):
        assert (
            legalize_graph(
                build_resize((3, 3), mode="linear", coordinate_transformation_mode=mode), VENUS
            )
            == []
        )


@limit_examples(25)
@given(
    st.tuples(st.integers(2, 6), st.integers(2, 6)),
    st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.sampled_from([*COORDINATES, "align_corners"]),
)
def test_linear_to_any_size_is_a_product_for_each_axis(size, results, mode):
    """Law: the float function stays, whatever the sizes and coordinates."""
    model = build_resize_to(size, results, coordinate_transformation_mode=mode, mode="linear")
    before = model.clone()
    rewrites = legalize_graph(model, VENUS)
    assert rewrites
    assert "Resize" not in {node.op_type for node in model.graph}
    same(before, model, size, tolerance=1e-5)


@pytest.mark.parametrize("target", CHIPS, ids=lambda target: target.name)
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("results", [(9, 11), (15, 8), (3, 3)])
def test_chips_take_any_size(target, mode, results):
    x = np.random.default_rng(2).standard_normal((8, 2, 5, 4)).astype(np.float32)
    model = build_resize_to((5, 4), results, coordinate_transformation_mode=mode, mode="linear")
    report = quantize(model, {"x": x}, platform=target.name, effort="fast").report
    assert report.chip_ready, report.findings
    assert not report.float_nodes
    assert min(fidelity["sqnr"] for fidelity in report.outputs.values()) > 25


@pytest.mark.parametrize(
    "factors, size, mode", [((2, 2), (5, 4), "nearest"), ((0.5, 0.5), (8, 4), "linear")], ids=str
)
def test_generic_keeps_its_own(factors, size, mode):
    """The half stays in float there: a filter would round once more and save nothing."""
    assert legalize_graph(build_resize(factors, size, mode=mode), GENERIC) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "target",
    [target for target in CHIPS if not target.can_run("Resize")],
    ids=lambda target: target.name,
)
def test_copies_have_the_scale_of_what_is_copied(target, seed):
    """The iqCat of copies has one scale, as the report promises an exact result.

    This also holds if the consumers require another scale.
    """
    net = nets.Net(4, 8, 8, seed=seed)
    a = net.node("Relu", net.conv("x", (8, 4, 3, 3), pads=[1] * 4))
    half = net.node("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    b = net.node("Relu", net.conv(half, (8, 8, 1, 1), gain=0.5))
    twice = net.const(np.array([1, 1, 2, 2], np.float32))
    nearest = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    total = net.node("Add", a, net.node("Resize", b, "", twice, **nearest))
    model = net.graph(net.conv(total, (4, 8, 1, 1), out="y"))
    result = quantize(
        model, nets.samples(model, 4), platform=target.name, effort="fast", objective="plain"
    )
    joins = [node for node in result.graph.graph if node.op_type == "iqCat"]
    assert joins
    for node in joins:
        assert {ir.get_attr(node, key) for key in node.attributes if key.startswith("scale_x")} == {
            ir.get_attr(node, "scale_o")
        }
    assert result.report.chip_ready
