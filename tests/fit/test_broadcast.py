"""Operands of different sizes: the same floats, and graphs that both judges take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.luna import ARCS
from lingeronnx.quantization.legalize import legalize_graph
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.runtime.session import Session
from tests.case_selection import limit_examples
from tests.fit.test_line_forms import assert_ready
from tests.passes.helpers import feeds, graph, ops, outputs


def pair(kind, left_sizes, right_sizes):
    """Return ``relu(a) kind relu(b)`` for operands of these sizes."""
    sizes = [",".join(map(str, s)) for s in (left_sizes, right_sizes)]
    out = ",".join(f"d{i}" for i in range(len(left_sizes)))
    body = f"p = Relu(a) q = Relu(b) y = {kind}(p, q)"
    return graph(
        f"g (float[N,{sizes[0]}] a, float[N,{sizes[1]}] b) => (float[N,{out}] y) {{ {body} }}"
    )


def legalize_pair(kind, left_sizes, right_sizes):
    """Legalize for arcs and compare; return the operators and the descriptions of the rewrites."""
    model = pair(kind, left_sizes, right_sizes)
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    want = outputs(pair(kind, left_sizes, right_sizes), feed)["y"]
    rewrites = legalize_graph(model, ARCS)
    np.testing.assert_array_equal(outputs(model, feed)["y"], want)
    assert legalize_graph(model, ARCS) == []
    return ops(model), [rewrite.what for rewrite in rewrites]


def test_one_number_per_row_is_one_per_channel():
    """Squeeze and excitation of a line, from either side."""
    for left_sizes, right_sizes in (((6, 9), (6, 1)), ((6, 1), (6, 9)), ((3, 4, 9), (3, 4, 1))):
        op_types, (description,) = legalize_pair("Mul", left_sizes, right_sizes)
        assert op_types == ["Relu", "Relu", "Reshape", "Reshape", "Mul", "Reshape"]
        assert description.startswith("a product with one value per row")


@pytest.mark.parametrize("kind", ("Add", "Sub", "Mul"))
def test_the_smaller_operand_is_repeated(kind):
    """A map for all channels; both operands where each lacks an axis."""
    assert legalize_pair(kind, (4, 6, 5), (1, 6, 5))[0] == ["Relu", "Relu", "Expand", kind]
    assert legalize_pair(kind, (4, 1), (1, 5))[0] == ["Relu", "Relu", "Expand", "Expand", kind]


def test_what_the_chip_takes_is_left():
    assert legalize_pair("Mul", (4, 6, 5), (4, 1, 1)) == (["Relu", "Relu", "Mul"], [])
    assert legalize_pair("Add", (4, 6), (4, 6)) == (["Relu", "Relu", "Add"], [])


@limit_examples(30)
@given(kind=st.sampled_from(("Add", "Sub", "Mul")), data=st.data())
def test_the_floats_are_the_same(kind, data):
    """Any sizes that broadcast, of two or three axes."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    keep = st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))
    masks = data.draw(keep), data.draw(keep)
    left_sizes, right_sizes = (np.where(mask, sizes, 1).tolist() for mask in masks)
    legalize_pair(kind, left_sizes, right_sizes)


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
@pytest.mark.parametrize("kind, right_sizes", (("Mul", (6, 1)), ("Mul", (1, 9)), ("Add", (6, 1))))
def test_whole_on_chips(kind, right_sizes, platform):
    """Both judges take the graph; its integers are near the floats."""
    model = pair(kind, (6, 9), right_sizes)
    rng = np.random.default_rng(3)
    data = {
        "a": rng.standard_normal((8, 6, 9)).astype(np.float32),
        "b": rng.standard_normal((8, *right_sizes)).astype(np.float32),
    }
    result = quantize(pair(kind, (6, 9), right_sizes), data, platform=platform, effort="fast")
    assert_ready(result, platform)
    want, have = (Session(m).run(["y"], data)[0] for m in (model, result.graph))
    assert 10 * np.log10(np.square(want).sum() / np.square(want - have).sum()) > 30
