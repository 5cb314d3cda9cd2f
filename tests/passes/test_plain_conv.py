"""plain-conv: a transposed convolution without a stride is a convolution, where that helps."""

import numpy as np
import pytest

from lingeronnx.quantization.normalize.layers.batch_norm import fold_batch_norm
from lingeronnx.quantization.normalize.layers.unit_stride_conv_transpose import (
    convert_unit_stride_conv_transpose,
)
from tests.passes.helpers import (
    check_pass_fires,
    check_pass_leaves_alone,
    graph,
    ops,
    positive,
    rand,
)

TOLERANCE = 1e-5


def text(attributes, size, tail="", inputs=4, rank=2):
    axes = ",".join(["6"] * rank)
    result = ",".join(["M"] * rank)
    start = f"ConvTranspose<{attributes}>(x, w, b)"
    body = f"c = {start} {tail}" if tail else f"y = {start}"
    return f"g (float[N,{inputs},{axes}] x) => (float[N,{size},{result}] y) {{ {body} }}"


@pytest.mark.parametrize("pads", ["0,0,0,0", "1,2,0,1", "4,2,4,2"])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_groups_dilations_and_pads(group, pads):
    """What is computed stays: each group has its part of the weight, and pads are what is left of
    the reach.
    """
    attributes = f"group: int = {group}, dilations: ints = [2,1], pads: ints = [{pads}]"
    tail = "y = BatchNormalization(c, g, h, m, v)"
    size = 2 * group
    arrays = {
        "w": rand(4, 2, 3, 3),
        "b": rand(size),
        "g": rand(size, seed=1),
        "h": rand(size, seed=2),
    }
    model = graph(text(attributes, size, tail), **arrays, m=rand(size, seed=3), v=positive(size))
    check_pass_fires(
        model, convert_unit_stride_conv_transpose, 1, ["Conv", "BatchNormalization"], atol=TOLERANCE
    )


def test_a_batch_norm_behind_is_taken_up():
    tail = "y = BatchNormalization(c, g, h, m, v)"
    arrays = {"w": rand(4, 3, 1, 1), "b": rand(3), "g": rand(3, seed=1), "h": rand(3, seed=2)}
    model = graph(text("group: int = 1", 3, tail), **arrays, m=rand(3, seed=3), v=positive(3))
    convert_unit_stride_conv_transpose(model)
    check_pass_fires(model, fold_batch_norm, 1, ["Conv"], atol=TOLERANCE)


def test_a_line():
    model = graph(text("group: int = 2", 6, rank=1), w=rand(4, 3, 3), b=rand(6))
    check_pass_fires(model, convert_unit_stride_conv_transpose, 1, ["Conv"], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ("group: int = 2, strides: ints = [1,2]", "it has a stride"),
        ("group: int = 2, pads: ints = [0,3,0,0]", "its padding exceeds the extent of its kernel"),
        (
            'group: int = 2, auto_pad: string = "SAME_UPPER"',
            "its padding depends on a requested output size",
        ),
    ],
)
def test_what_is_none_stays(attributes, why):
    model = graph(text(attributes, 4), w=rand(4, 2, 3, 3), b=rand(4))
    check_pass_leaves_alone(model, convert_unit_stride_conv_transpose)
    assert [
        reason.explanation for reason in convert_unit_stride_conv_transpose(model).skip_reasons
    ] == [why]


def test_a_computed_weight_stays():
    model = graph(
        "g (float[N,4,6,6] x, float[4,2,3,3] w) => (float[N,4,M,K] y) { y = ConvTranspose<group: "
        "int = 2>(x, w) }"
    )
    assert [
        reason.explanation for reason in convert_unit_stride_conv_transpose(model).skip_reasons
    ] == ["its weight is computed at run time"]
    assert ops(model) == ["ConvTranspose"]


def test_one_group_with_nothing_behind_stays():
    """The chips take it as it is."""
    check_pass_leaves_alone(
        graph(text("group: int = 1", 2), w=rand(4, 2, 3, 3), b=np.zeros(2, np.float32)),
        convert_unit_stride_conv_transpose,
    )
