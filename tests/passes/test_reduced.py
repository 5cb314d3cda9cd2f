"""reduced: means, maxima and sums over any neighbouring axes are pools."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.reductions_to_pools import convert_reductions_to_pools
from tests.case_selection import limit_examples
from tests.passes.helpers import changes, feeds, graph, ops, outputs, proto, rand


def reduction(kind, shape, axes, keep):
    sizes, out = (
        ",".join(map(str, shape)),
        ",".join(f"d{i}" for i in range(len(shape) - (0 if keep else len(axes)))),
    )
    told = "axes" if kind == "ReduceSum" else ""
    body = (
        f"y = {kind}<keepdims = {keep}>(x, axes)"
        if told
        else f"y = {kind}<keepdims = {keep}, axes = {axes}>(x)"
    )
    text = f"g (float[N,{sizes}] x) => (float[N{',' if out else ''}{out}] y) {{ {body} }}"
    return graph(text, **({"axes": np.array(axes)} if told else {}))


@limit_examples(60)
@given(
    kind=st.sampled_from(("ReduceMean", "ReduceMax", "ReduceSum")),
    keep=st.integers(0, 1),
    data=st.data(),
)
def test_the_floats_are_the_same(kind, keep, data):
    """Any run of axes behind the batch; a second run changes nothing."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    first = data.draw(st.integers(1, len(shape)))
    axes = list(range(first, data.draw(st.integers(first, len(shape))) + 1))
    model = reduction(kind, shape, axes, keep)
    feed = feeds(model)
    trace_shapes(model, {"x": feed["x"][:1]})
    changes(convert_reductions_to_pools, model)
    want = outputs(reduction(kind, shape, axes, keep), feed)["y"]
    np.testing.assert_allclose(outputs(model, feed)["y"], want, rtol=0, atol=1e-5)
    assert changes(convert_reductions_to_pools, model) == 0


def test_what_others_see_to_stays():
    for shape, axes in (((4, 5), [1]), ((4, 5), [2]), ((4, 5, 6), [2, 3])):
        model = reduction("ReduceMean", shape, axes, 1)
        trace_shapes(model, {"x": rand(1, *shape)})
        assert changes(convert_reductions_to_pools, model) == 0


@pytest.mark.parametrize("axes", ([1, 3], [0]))
def test_what_is_no_run_of_axes_stays(axes):
    model = reduction("ReduceMean", (4, 5, 6), axes, 1)
    trace_shapes(model, {"x": rand(1, 4, 5, 6)})
    assert changes(convert_reductions_to_pools, model) == 0
    assert ops(model) == ["ReduceMean"]


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA", "generic"))
@pytest.mark.parametrize("kind", ("ReduceMean", "ReduceMax"))
def test_channels_of_a_map_run_in_integers(kind, platform):
    """As spatial attention has it."""
    body = f"c = Conv(x, w) r = Relu(c) m = {kind}<axes = [1]>(r) y = Conv(m, v)"
    model = proto(
        f"g (float[N,3,8,8] x) => (float[N,2,6,6] y) {{ {body} }}",
        w=rand(8, 3, 3, 3),
        v=rand(2, 1, 1, 1),
    )
    report = quantize(model, {"x": rand(16, 3, 8, 8)}, platform=platform, effort="fast").report
    assert not report.float_nodes
    assert platform == "generic" or report.chip_ready
