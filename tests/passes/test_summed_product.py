"""summed-product: the sum of an elementwise product becomes a product of matrices, with numpy as
the oracle.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import normalize
from lingeronnx.quantization.normalize.folding.shape_tracing import trace_shapes
from lingeronnx.quantization.normalize.layers.summed_product import (
    convert_dot_products,
    convert_summed_products,
)
from lingeronnx.targets import get_target
from tests.case_selection import limit_examples
from tests.passes.helpers import (
    changes,
    check_pass_fires,
    graph,
    ops,
    outputs,
    rand,
    reasons,
)


def product_sum(left, right, axes, *, keepdims=0, reduction="ReduceSum", constant=None, opset=13):
    """Return a graph that reduces the product of tensors of shapes `left` and `right` over `axes`.

    `constant` is an array that replaces the second one.
    """
    arrays, attribute, operands = {"axes": np.array(axes)}, "", "p, axes"
    if reduction == "ReduceMean" and opset < 18:
        arrays, attribute, operands = {}, f", axes = {list(axes)}", "p"
    inputs = [f"float[{','.join(map(str, ('N', *left[1:])))}] a"]
    if constant is None:
        inputs.append(f"float[{','.join(map(str, ('N', *right[1:])))}] b")
    else:
        arrays["b"] = constant
    rank = len(left) if keepdims else len(left) - len(axes)
    out = ",".join(f"d{axis}" for axis in range(rank))
    return graph(
        f"g ({', '.join(inputs)}) => (float[{out}] y) {{ p = Mul(a, b) "
        f"y = {reduction}<keepdims = {keepdims}{attribute}>({operands}) }}",
        opset=opset,
        **arrays,
    )


@pytest.mark.parametrize(
    ("left", "right", "axes", "expected"),
    [
        # the state of a linear attention, read by a key
        ((2, 2, 4, 5), (2, 2, 4, 1), [2], ["Reshape", "MatMul", "Reshape"]),
        ((2, 2, 4, 1), (2, 2, 4, 5), [-2], ["Reshape", "MatMul", "Reshape"]),
        ((2, 2, 1, 4), (2, 2, 5, 4), [-1], ["Reshape", "MatMul", "Reshape"]),
        # attention pooling of frames, of channels first, and of a feature map
        ((2, 7, 6), (2, 7, 1), [1], ["Reshape", "MatMul", "Reshape"]),
        ((2, 6, 7), (2, 1, 7), [2], ["Reshape", "MatMul", "Reshape"]),
        ((2, 6, 3, 4), (2, 1, 3, 4), [2, 3], ["Reshape", "Reshape", "MatMul", "Reshape"]),
        # two vectors
        ((2, 6), (2, 6), [1], ["Reshape", "Reshape", "MatMul", "Reshape"]),
    ],
)
def test_no_more_nodes_than_needed(left, right, axes, expected):
    model = product_sum(left, right, axes)
    check_pass_fires(model, convert_summed_products, 1, expected, atol=1e-5)


def test_vectors_at_every_position():
    """Six products of two vectors: not for chips, which compute one after the other."""
    model = trace_model(product_sum((2, 6, 4), (2, 6, 4), [2]))
    assert reasons(convert_summed_products, model) == []
    expected = ["Reshape", "Reshape", "MatMul", "Reshape"]
    check_pass_fires(model, convert_dot_products, 1, expected, atol=1e-5)


@pytest.mark.parametrize(("platform", "operator"), (("generic", "BmmInt"), ("venus", "iqMul")))
def test_vectors_at_every_position_on_platforms(platform, operator):
    model = product_sum((2, 6, 4), (2, 6, 4), [2])
    calib = {"a": rand(32, 6, 4), "b": rand(32, 6, 4, seed=1)}
    quantized = lo.quantize(ir.to_proto(model), calib, platform=platform)
    assert quantized.report.layers[operator] == 1


@pytest.mark.parametrize("opset", (13, 18))
def test_mean(opset):
    """The axes are an attribute before opset 18, and an input from then on."""
    model = product_sum((2, 7, 6), (2, 7, 1), [1], keepdims=1, reduction="ReduceMean", opset=opset)
    expected = ["Reshape", "MatMul", "Mul"]
    check_pass_fires(model, convert_summed_products, 1, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "constant", "axes", "expected"),
    [
        ((2, 3, 6), rand(6), [2], ["MatMul", "Reshape"]),
        ((2, 6), rand(1, 6), [1], ["MatMul", "Reshape"]),
        ((2, 1, 6), rand(4, 6), [2], ["Reshape", "MatMul"]),
        ((2, 2, 3, 1), rand(2, 3, 4), [1, 2], ["Reshape", "MatMul"]),
        ((2, 6, 1), rand(6, 4), [1], ["Reshape", "MatMul"]),
    ],
)
def test_constant_factor_is_a_layer(left, constant, axes, expected):
    """A layer with constant weights, such as the expectation of a distribution."""
    model = product_sum(left, None, axes, constant=constant)
    check_pass_fires(model, convert_summed_products, 1, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("left", "right", "axes", "reason"),
    [
        # squeeze and excitation, behind which everything is averaged
        ((2, 6, 3, 4), (2, 6, 1, 1), [2, 3], "a factor does not have the axes that are added"),
        ((2, 6, 3, 4), (2, 6, 3, 1), [2, 3], "a factor does not have the axes that are added"),
        ((2, 6, 4), (2, 6, 4), [0], "it adds the samples of a batch"),
        ((2, 5, 4), (2, 5, 1), [1, 2], "a factor does not have the axes that are added"),
        ((2, 6, 4, 3), (2, 6, 4, 1), [1], "a factor would have to be transposed"),
        ((2, 5, 1, 4), (2, 1, 6, 4), [3], "a factor would have to be transposed"),
    ],
)
def test_skipped(left, right, axes, reason):
    assert reasons(
        convert_summed_products, trace_model(product_sum(left, right, axes, keepdims=1))
    ) == [f"ReduceSum ReduceSum_y: {reason}"]


def trace_model(model, batch=2):
    """Return `model` with the shapes of all tensors, and node names."""
    feed = {
        str(value.name): rand(batch, *ir.get_sample_dims(value), seed=index)
        for index, value in enumerate(model.graph.inputs)
        if value.const_value is None
    }
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    return model


def test_a_constant_that_differs_between_positions():
    model = product_sum((2, 3, 6), None, [2], constant=rand(3, 6))
    reason = "ReduceSum ReduceSum_y: a constant factor differs along an axis that is not added"
    assert reasons(convert_summed_products, trace_model(model)) == [reason]


@pytest.mark.parametrize(
    "text",
    [
        "p = Mul(a, b) y = ReduceSum<keepdims = 0>(p, axes) z = Neg(p)",
        "z = Mul(a, b) y = ReduceSum<keepdims = 0>(z, axes)",
        "p = Add(a, b) y = ReduceSum<keepdims = 0>(p, axes) z = Neg(p)",
        "p = Mul(a, b) y = ReduceMax<keepdims = 0, axes = [1]>(p) z = Neg(a)",
    ],
)
def test_not_made_for(text):
    """A product that is used elsewhere, and other operators, are none of its concern."""
    head = "g (float[N,7,6] a, float[N,7,1] b) => (float[N,6] y, float[N,7,6] z) {"
    model = trace_model(graph(f"{head} {text} }}", axes=np.array([1])))
    assert reasons(convert_summed_products, model) == []


AXIS_KINDS = ("shared", "left", "right", "summed", "one")


@given(
    st.lists(st.tuples(st.sampled_from(AXIS_KINDS), st.integers(2, 4)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(("ReduceSum", "ReduceMean")),
    st.booleans(),
    st.booleans(),
)
@limit_examples(80)
def test_equals_numpy(kinds, keepdims, reduction, is_constant, is_swapped):
    """Whatever the axes are: either the result is numpy's, or a reason says why nothing is done."""
    left, right, axes = [2], [1 if is_constant else 2], []
    for axis, (kind, size) in enumerate(kinds, 1):
        left.append(size if kind in ("shared", "left", "summed") else 1)
        right.append(size if kind in ("shared", "right", "summed") else 1)
        if kind == "summed":
            axes.append(axis)
    if not axes:
        return
    constant = rand(*right, seed=5) if is_constant else None
    model = product_sum(
        left, right, axes, keepdims=int(keepdims), reduction=reduction, constant=constant
    )
    if is_swapped:
        mul = next(node for node in model.graph if node.op_type == "Mul")
        first, second = mul.inputs
        mul.replace_input_with(0, second)
        mul.replace_input_with(1, first)
    feed = {"a": rand(*left)} if is_constant else {"a": rand(*left), "b": rand(*right, seed=1)}
    trace_shapes(model, {name: array[:1] for name, array in feed.items()})
    answer = convert_summed_products(model)
    if not answer.changes and not answer.skip_reasons:
        answer = convert_dot_products(model)
    assert answer.changes + len(answer.skip_reasons) == 1
    assert ("MatMul" in ops(model)) == bool(answer.changes)
    factors = [feed["a"].astype(np.float64), (constant if is_constant else feed["b"])]
    elements = factors[0] * factors[1]
    reduce = np.sum if reduction == "ReduceSum" else np.mean
    expected = reduce(elements, tuple(axes), keepdims=keepdims)
    bound = reduce(np.abs(elements), tuple(axes), keepdims=keepdims)
    result = outputs(model, feed)["y"]
    assert result.shape == expected.shape
    assert (np.abs(result - expected) <= 2e-6 * bound + 1e-9).all()
    assert changes(convert_summed_products, model) == changes(convert_dot_products, model) == 0


@pytest.mark.parametrize(
    "text",
    [
        # a normalization by the root mean square, by the length, and by mean and variance
        """q = Mul(a, a) m = ReduceMean<axes = [1]>(q) e = Add(m, eps) r = Sqrt(e) y = Div(a, r)""",
        """q = Mul(a, a) m = ReduceSum(q, axes) e = Add(m, eps) r = Sqrt(e) y = Div(a, r)""",
        """c = ReduceMean<axes = [1]>(a) d = Sub(a, c) q = Mul(d, d) m = ReduceMean<axes = [1]>(q)
        e = Add(m, eps) r = Sqrt(e) y = Div(d, r)""",
    ],
)
def test_norms_are_still_recognized(text):
    """Their mean squares are products with one result, which the pass would replace."""
    model = graph(
        f"g (float[N,8] a) => (float[N,8] y) {{ {text} }}",
        opset=17,
        axes=np.array([1]),
        eps=np.float32(1e-5),
    )
    count = normalize(trace_model(model))
    assert count["layer-norm"] == 1
    assert count["summed-product"] == count["dot-product"] == 0
    assert "LayerNormalization" in ops(model)
    assert "MatMul" not in ops(model)


@pytest.mark.parametrize("platform", ("generic", "venus", "arcs", "venusA"))
def test_a_state_is_read_in_integers(platform):
    """The sum is rounded once: no further from the float model than one step of its scale."""
    model = product_sum((2, 16, 12), (2, 16, 1), [1])
    calib = {"a": rand(32, 16, 12), "b": rand(32, 16, 1, seed=1)}
    quantized = lo.quantize(ir.to_proto(model), calib, platform=platform)
    assert quantized.report.layers["BmmInt"] == 1
    assert "iqMul" not in quantized.report.layers
    assert quantized.report.integer_macs == 1
    assert quantized.report.outputs["y"]["sqnr"] > 30


def test_left_out_on_a_target_without_products_of_activations():
    target = get_target("generic")
    without = replace(target, ops={k: op for k, op in target.ops.items() if k != "BmmInt"})
    model = product_sum((2, 16, 12), (2, 16, 1), [1])
    calib = {"a": rand(32, 16, 12), "b": rand(32, 16, 1, seed=1)}
    quantized = lo.quantize(ir.to_proto(model), calib, platform=without)
    assert quantized.report.layers["iqMul"]
    assert not quantized.report.float_nodes
