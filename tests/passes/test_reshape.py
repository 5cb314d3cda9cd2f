"""constant-reshape: a target that the exporter computes from the input's size is a constant."""

import numpy as np
import pytest

from lingeronnx.ir import ir
from lingeronnx.quantization.normalize.folding.constant_targets import make_targets_constant
from tests.passes.helpers import changes, check_pass_fires, check_pass_leaves_alone, graph

VIEW = """
    s = Shape(x) zero = Constant<value_int: int = 0>() n = Gather<axis = 0>(s, zero)
    a = Constant<value_ints = [0]>() u = Unsqueeze(n, a) m = Constant<value_ints = [{rest}]>()
    t = Concat<axis = 0>(u, m)
"""


def target(model):
    return ir.const_value(
        next(node for node in model.graph if node.op_type == "Reshape").inputs[1]
    ).tolist()


def test_view_of_the_batch():
    """``x.view(x.size(0), -1)``: the whole chain becomes one constant."""
    text = (
        f"g (float[N,3,4,5] x) => (float[N,60] y) {{ {VIEW.format(rest='-1')} y = Reshape(x, t) }}"
    )
    model = check_pass_fires(graph(text), make_targets_constant, 1, ["Reshape"], atol=0)
    assert target(model) == [0, 60]


def test_view_with_sizes():
    """Several axes behind the batch."""
    text = (
        f"g (float[N,3,4,5] x) => (float[N,12,5] y) {{ {VIEW.format(rest='12, 5')} y = "
        "Reshape(x, t) }"
    )
    assert target(check_pass_fires(graph(text), make_targets_constant, 1, ["Reshape"], atol=0)) == [
        0,
        12,
        5,
    ]


SIZED = "a = Shape(x) b = Slice(a, zero, two) t = Concat<axis = 0>(b, size)"


@pytest.mark.parametrize("size, count", (((8, 10), 1), ((6, 15), 1), ((7, 8), 1)))
@pytest.mark.parametrize("mode", ("nearest", "linear"))
def test_sizes_of_resize(size, count, mode):
    """Factors in their place, the same numbers."""
    text = f"""g (float[N,3,4,5] x) => (float[N,3,{size[0]},{size[1]}] y) {{
        {SIZED} y = Resize<mode = "{mode}">(x, , , t) }}"""
    held = {"zero": np.array([0]), "two": np.array([2]), "size": np.array(size)}
    model = check_pass_fires(
        graph(text, **held), make_targets_constant, count, ["Resize"], atol=1e-6
    )
    (node,) = model.graph
    assert (
        ir.const_value(node.inputs[2]).tolist()
        == np.array([1, 1, size[0] / 4, size[1] / 5], np.float32).tolist()
    )


def test_sizes_of_resize_that_no_factor_reaches_stay():
    """9 / 5 is less in float32, and 5 times that less than 9."""
    text = (
        f"g (float[N,3,4,5] x) => (float[N,3,8,9] y) {{ {SIZED} y = Resize<mode = "
        '"nearest">(x, '
        ", , t) }"
    )
    held = {"zero": np.array([0]), "two": np.array([2]), "size": np.array([8, 9])}
    check_pass_leaves_alone(graph(text, **held), make_targets_constant)


def test_sizes_of_resize_that_keep_a_ratio_stay():
    text = f"""g (float[N,3,4,5] x) => (float[N,3,8,10] y) {{
        {SIZED} y = Resize<mode = "nearest", keep_aspect_ratio_policy = "not_larger">(x, , , t) }}"""
    held = {"zero": np.array([0]), "two": np.array([2]), "size": np.array([8, 12])}
    check_pass_leaves_alone(graph(text, opset=18, **held), make_targets_constant)


def test_chain_read_twice():
    """Two views that share their target are both rewritten."""
    text = f"""g (float[N,3,4] x) => (float[N,12] y, float[N,12] z) {{
        {VIEW.format(rest="-1")} y = Reshape(x, t) e = Exp(x) z = Reshape(e, t)
    }}"""
    check_pass_fires(
        graph(text), make_targets_constant, 2, ["Reshape", "Exp", "Reshape"], atol=1e-6
    )


def test_fixed_batch():
    """A model written for one sample has only numbers."""
    text = f"g (float[1,3,4] x) => (float[1,12] y) {{ {VIEW.format(rest='-1')} y = Reshape(x, t) }}"
    assert target(check_pass_fires(graph(text), make_targets_constant, 1, ["Reshape"], atol=0)) == [
        1,
        12,
    ]


def test_batch_times_positions():
    """``x.view(x.size(0) * 3, -1)``: axis 0 is what is left over."""
    text = """g (float[N,3,4] x) => (float[M,4] y) {
        s = Shape(x) zero = Constant<value_ints = [0]>() n = Gather<axis = 0>(s, zero)
        three = Constant<value_ints = [3]>() k = Mul(n, three) four = Constant<value_ints = [4]>()
        t = Concat<axis = 0>(k, four) y = Reshape(x, t)
    }"""
    assert target(check_pass_fires(graph(text), make_targets_constant, 1, ["Reshape"], atol=0)) == [
        -1,
        4,
    ]


@pytest.mark.parametrize("allowzero", (0, 1))
def test_allowzero(allowzero):
    """With allowzero a 0 in the target means an empty axis, not 'as before'."""
    text = f"""g (float[N,3,4] x) => (float[N,12] y) {{
        {VIEW.format(rest="-1")} y = Reshape<allowzero: int = {allowzero}>(x, t)
    }}"""
    check_pass_fires(graph(text, opset=14), make_targets_constant, 1, ["Reshape"], atol=0)


def test_constant_target_stays():
    """Nothing to do."""
    check_pass_leaves_alone(
        graph("g (float[N,3,4] x) => (float[N,12] y) { y = Reshape(x, t) }", t=np.array([-1, 12])),
        make_targets_constant,
    )


def test_refuses_unknown_shapes():
    """Without a traced run nothing is known."""
    text = f"g (float[N,3,H] x) => (float[N,M] y) {{ {VIEW.format(rest='-1')} y = Reshape(x, t) }}"
    assert changes(make_targets_constant, graph(text)) == 0


def test_a_batch_that_stays_on_another_axis():
    """What torch writes behind a recurrent layer: [T, N, directions, H], its last axes joined by
    their sizes.
    """
    text = """g (float[N,5,4] x) => (float[5,N,M] y) {
        turned = Transpose<perm = [1, 0, 2]>(x) two = Constant<value_ints = [2]>() r = Unsqueeze(turned, two)
        s = Shape(r) zero = Constant<value_ints = [0]>() four = Constant<value_ints = [4]>()
        kept = Slice(s, zero, two) last = Slice(s, two, four) wide = ReduceProd<keepdims = 1>(last)
        t = Concat<axis = 0>(kept, wide) y = Reshape(r, t)
    }"""
    model = graph(text)
    check_pass_fires(
        model, make_targets_constant, 1, ["Transpose", "Constant", "Unsqueeze", "Reshape"], atol=0
    )
    assert target(model) == [5, 0, 4]


def test_refuses_batch_elsewhere():
    """The batch moves to axis 1: no constant says that."""
    text = """g (float[N,6] x) => (float[6,M] y) {
        s = Shape(x) zero = Constant<value_ints = [0]>() n = Gather<axis = 0>(s, zero)
        six = Constant<value_ints = [6]>() t = Concat<axis = 0>(six, n) y = Reshape(x, t)
    }"""
    model = check_pass_leaves_alone(graph(text), make_targets_constant)
    assert ir.const_value(model.graph.node(len(model.graph) - 1).inputs[1]) is None


def test_sizes_of_expand():
    """``a.expand_as(x)`` within a sample; the batch stays as it is."""
    text = (
        "g (float[N,3,1] a, float[N,3,5] x) => (float[N,3,5] y) { s = Shape(x) y = Expand(a, s) }"
    )
    model = check_pass_fires(graph(text), make_targets_constant, 1, ["Expand"], atol=0)
    assert ir.const_value(model.graph[0].inputs[1]).tolist() == [1, 3, 5]


def test_an_expand_that_makes_samples_stays():
    """A constant, once for each sample of another tensor."""
    text = "g (float[N,3,5] x) => (float[N,3,5] y) { s = Shape(x) y = Expand(a, s) }"
    check_pass_leaves_alone(graph(text, a=np.ones((1, 3, 1), np.float32)), make_targets_constant)
