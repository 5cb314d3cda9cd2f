"""average-pool: means over space become AveragePool; a ceil_mode that changes nothing goes away."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.spatial_pool import convert_spatial_pools
from tests.case_selection import limit_examples
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    outputs,
)

TOLERANCE = 1e-6
IN = "g (float[N,3,5,7] x)"


def test_global():
    """GlobalAveragePool is an AveragePool over the whole map."""
    model = graph(f"{IN} => (float[N,3,1,1] y) {{ y = GlobalAveragePool(x) }}")
    check_pass_fires(model, convert_spatial_pools, 1, ["AveragePool"], atol=TOLERANCE)
    assert list(model.graph.node(0).attributes["kernel_shape"].value) == [5, 7]


@pytest.mark.parametrize("axes", ("2, 3", "-1, -2", "3, 2", "2, -1"))
def test_reduce_mean_keeping_dims(axes):
    """ReduceMean over the last two axes, however they are counted."""
    text = f"{IN} => (float[N,3,1,1] y) {{ y = ReduceMean<axes = [{axes}], keepdims = 1>(x) }}"
    check_pass_fires(graph(text), convert_spatial_pools, 1, ["AveragePool"], atol=TOLERANCE)


def test_reduce_mean_dropping_dims():
    """Without keepdims a Flatten follows."""
    text = f"{IN} => (float[N,3] y) {{ y = ReduceMean<axes = [2, 3], keepdims = 0>(x) }}"
    check_pass_fires(
        graph(text), convert_spatial_pools, 1, ["AveragePool", "Flatten"], atol=TOLERANCE
    )


def test_axes_as_input():
    """From opset 18 on the axes are an input."""
    text = f"{IN} => (float[N,3] y) {{ y = ReduceMean<keepdims = 0>(x, a) }}"
    model = graph(text, opset=18, a=np.array([-2, -1]))
    check_pass_fires(model, convert_spatial_pools, 1, ["AveragePool", "Flatten"], atol=TOLERANCE)


@pytest.mark.parametrize("text", ("GlobalMaxPool(x)", "ReduceMax<axes = [2, 3], keepdims = 1>(x)"))
def test_maximum(text):
    """What takes the largest instead is a MaxPool."""
    check_pass_fires(
        graph(f"{IN} => (float[N,3,1,1] y) {{ y = {text} }}"),
        convert_spatial_pools,
        1,
        ["MaxPool"],
        atol=0,
    )


def test_two_readers():
    """Everybody who read the mean reads the pool."""
    text = (
        f"{IN} => (float[N,3,1,1] y, float[N,3,1,1] z) {{ m = GlobalAveragePool(x) y = Relu(m) "
        "z = Exp(m) }"
    )
    check_pass_fires(
        graph(text), convert_spatial_pools, 1, ["AveragePool", "Relu", "Exp"], atol=1e-5
    )


@pytest.mark.parametrize("axes", ("[1]", "[1, 2]", "[2]", "[3]", "[1, 2, 3]"))
def test_refuses_other_axes(axes):
    """A mean that is not over exactly the two spatial axes."""
    check_pass_leaves_alone(
        graph(
            f"{IN} => (float y) {{ m = ReduceMean<axes "
            f"= {axes}>(x) y = ReduceMax<keepdims = 0>(m) }}"
        ),
        convert_spatial_pools,
    )


def test_refuses_all_axes():
    """Without axes the batch is averaged too."""
    check_pass_leaves_alone(
        graph(f"{IN} => (float y) {{ y = ReduceMean<keepdims = 0>(x) }}"), convert_spatial_pools
    )


@pytest.mark.parametrize("shape", ("[N,3,5]", "[N,2,3,5,7]"))
def test_refuses_another_rank(shape):
    """Axes 2 and 3 of a tensor that is no map."""
    axes = "[2]" if shape.count(",") == 2 else "[2, 3]"
    text = (
        f"g (float{shape} x) => (float y) {{ m = ReduceMean<axes = {axes}>(x) y = "
        "ReduceMax<keepdims = 0>(m) }"
    )
    check_pass_leaves_alone(graph(text), convert_spatial_pools)


def test_refuses_axes_of_the_run():
    """Axes that are a graph input are not known."""
    text = (
        f"{IN[:-1]}, int64[2] a) => (float y) {{ m = ReduceMean(x, a) y = ReduceMax<keepdims = "
        "0>(m) }"
    )
    assert changes(convert_spatial_pools, graph(text, opset=18)) == 0


def test_refuses_unknown_size():
    """A window cannot have a size that is known at run time only."""
    model = graph("g (float[N,3,H,W] x) => (float[N,3,1,1] y) { y = GlobalAveragePool(x) }")
    assert changes(convert_spatial_pools, model) == 0


@pytest.mark.parametrize("kind", ("MaxPool", "AveragePool"))
def test_drops_idle_ceil_mode(kind):
    """Windows that fill the map exactly: floor and ceil agree."""
    text = f"""g (float[N,3,6,9] x) => (float[N,3,3,4] y) {{
        y = {kind}<kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1>(x)
    }}"""
    check_pass_fires(graph(text), convert_spatial_pools, 1, [kind], atol=0)


_SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3))


@limit_examples(40)
@given(
    st.sampled_from(("MaxPool", "AveragePool")),
    _SIZES,
    _SIZES,
    st.booleans(),
    st.booleans(),
    st.sampled_from((12, 19)),
    st.data(),
)
def test_every_window_is_full(kind, kernel, strides, ceil, counted, opset, data):
    """Law: windows over the edge, and averages whose padding does not count, give what they gave;
    nothing is left.
    """
    pads = [data.draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    extra = f", count_include_pad = {int(counted)}" if kind == "AveragePool" else ""
    given_ = (
        f"kernel_shape = {list(kernel)}, strides = {list(strides)}, pads = {pads}, ceil_mode "
        f"= {int(ceil)}{extra}"
    )
    model = graph(
        f"g (float[N,2,6,7] x) => (float[N,2,P,Q] y) {{ y = {kind}<{given_}>(x) }}", opset=opset
    )
    feed = feeds(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    want = outputs(model, feed)["y"]
    changes(convert_spatial_pools, model)
    (pool, *rest) = model.graph
    assert [node.op_type for node in rest] in ([], ["Mul"])
    assert not ir.get_attr(pool, "ceil_mode", 0)
    assert (
        kind == "MaxPool"
        or not any(ir.get_attr(pool, "pads", [0]))
        or ir.get_attr(pool, "count_include_pad", 0)
    )
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=TOLERANCE)
    assert changes(convert_spatial_pools, model) == 0


def test_largest_with_indices_keeps_its_form():
    """The places of the largest elements are counted in the map as it is."""
    text = """g (float[N,3,6,8] x) => (float[N,3,3,4] y, int64[N,3,3,4] i) {
        y, i = MaxPool<kernel_shape = [2, 3], strides = [2, 2], ceil_mode = 1>(x)
    }"""
    check_pass_leaves_alone(graph(text), convert_spatial_pools)
