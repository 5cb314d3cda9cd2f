"""split: every part that is read becomes a Slice under its old name."""

import numpy as np

from lingeronnx.quantization.normalize.axes.split_to_slices import convert_split_to_slices
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph

NET = "g (float[N,6,4] x) => (float[N,2,4] a, float[N,3,4] z) {{ {nodes} }}"


def test_sizes_as_an_input():
    text = NET.format(nodes="a, b, c = Split<axis = 1>(x, s) z = Exp(c)")
    model = check_pass_fires(
        graph(text, s=np.array([2, 1, 3])),
        convert_split_to_slices,
        1,
        ["Slice", "Slice", "Exp"],
        atol=0,
    )
    assert {v.name for node in model.graph for v in node.outputs} == {"a", "c", "z"}


def test_sizes_as_an_attribute():
    text = NET.format(nodes="a, z, c = Split<axis = -2, split = [2, 3, 1]>(x)")
    check_pass_fires(graph(text, opset=12), convert_split_to_slices, 1, ["Slice", "Slice"], atol=0)


def test_equal_parts():
    text = "g (float[N,6,4] x) => (float[N,3,4] a, float[N,3,4] b) { a, b = Split<axis = 1>(x) }"
    check_pass_fires(graph(text), convert_split_to_slices, 1, ["Slice", "Slice"], atol=0)


def test_a_part_may_be_read_twice():
    text = (
        "g (float[N,6] x) => (float[N,3] y) { a, b = Split<axis = 1>(x) c = Exp(a) d = Add(c, "
        "a) y = Add(d, b) }"
    )
    check_pass_fires(
        graph(text), convert_split_to_slices, 1, ["Slice", "Slice", "Exp", "Add", "Add"], atol=0
    )


def test_the_batch_is_left_alone():
    check_pass_leaves_alone(
        graph("g (float[2,6] x) => (float[1,6] a, float[1,6] b) { a, b = Split<axis = 0>(x) }"),
        convert_split_to_slices,
        trace=False,
    )


def test_computed_sizes_are_left_alone():
    text = (
        "g (float[N,2] x, int64[2] s) => (float[N,M] a, float[N,K] b) { a, b = Split<axis = "
        "1>(x, s) }"
    )
    check_pass_leaves_alone(graph(text), convert_split_to_slices, trace=False)
