"""Operands of different sizes: the same floats, and graphs that both judges take."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.legalization import legalize_graph
from lingeronnx.passes.folding.shape_tracing import trace_shapes
from lingeronnx.run.session import Session
from lingeronnx.targets.luna import ARCS
from tests.case_selection import limit_examples
from tests.fit.test_line_forms import agreed
from tests.passes.helpers import feeds, graph, ops, outputs


def pair(kind, left, right):
    """Return relu(a) `kind` relu(b) of the sizes told."""
    sizes = [",".join(map(str, s)) for s in (left, right)]
    out = ",".join(f"d{i}" for i in range(len(left)))
    body = f"p = Relu(a) q = Relu(b) y = {kind}(p, q)"
    return graph(
        f"g (float[N,{sizes[0]}] a, float[N,{sizes[1]}] b) => (float[N,{out}] y) {{ {body} }}"
    )


def fitted(kind, left, right):
    """Fit for arcs and compare; return (the operators, what was done)."""
    model = pair(kind, left, right)
    feed = feeds(model)
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    want = outputs(pair(kind, left, right), feed)["y"]
    done = legalize_graph(model, ARCS)
    np.testing.assert_array_equal(outputs(model, feed)["y"], want)
    assert legalize_graph(model, ARCS) == []
    return ops(model), [each.what for each in done]


def test_one_number_per_row_is_one_per_channel():
    """Squeeze and excitation of a line, from either side."""
    for left, right in (((6, 9), (6, 1)), ((6, 1), (6, 9)), ((3, 4, 9), (3, 4, 1))):
        found, (what,) = fitted("Mul", left, right)
        assert found == ["Relu", "Relu", "Reshape", "Reshape", "Mul", "Reshape"]
        assert what.startswith("a product with one value per row")


@pytest.mark.parametrize("kind", ("Add", "Sub", "Mul"))
def test_the_smaller_operand_is_repeated(kind):
    """A map for all channels; both operands where each lacks an axis."""
    assert fitted(kind, (4, 6, 5), (1, 6, 5))[0] == ["Relu", "Relu", "Expand", kind]
    assert fitted(kind, (4, 1), (1, 5))[0] == ["Relu", "Relu", "Expand", "Expand", kind]


def test_what_the_chip_takes_is_left():
    assert fitted("Mul", (4, 6, 5), (4, 1, 1)) == (["Relu", "Relu", "Mul"], [])
    assert fitted("Add", (4, 6), (4, 6)) == (["Relu", "Relu", "Add"], [])


@limit_examples(30)
@given(kind=st.sampled_from(("Add", "Sub", "Mul")), data=st.data())
def test_the_floats_are_the_same(kind, data):
    """Any sizes that broadcast, of two or three axes."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    keep = st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))
    left, right = (
        [n if kept else 1 for n, kept in zip(sizes, data.draw(keep), strict=True)] for _ in range(2)
    )
    fitted(kind, left, right)


@pytest.mark.parametrize("platform", ("venus", "arcs", "venusA"))
@pytest.mark.parametrize("kind, other", (("Mul", (6, 1)), ("Mul", (1, 9)), ("Add", (6, 1))))
def test_whole_on_chips(kind, other, platform):
    """Both judges take the graph; its integers are near the floats."""
    model = pair(kind, (6, 9), other)
    rng = np.random.default_rng(3)
    data = {
        "a": rng.standard_normal((8, 6, 9)).astype(np.float32),
        "b": rng.standard_normal((8, *other)).astype(np.float32),
    }
    found = quantize(pair(kind, (6, 9), other), data, platform=platform, effort="fast")
    agreed(found, platform)
    want, have = (Session(m).run(["y"], data)[0] for m in (model, found.graph))
    assert 10 * np.log10(np.square(want).sum() / np.square(want - have).sum()) > 30
