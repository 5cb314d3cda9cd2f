"""The mean and the maximum over a sequence as pooling over a line."""

import pytest

from lingeronnx.quantization.normalize.layers.sequence_pool import convert_sequence_pools
from tests.passes.helpers import check_pass_fires, check_pass_leaves_alone, graph


@pytest.mark.parametrize("kind, pool", (("ReduceMean", "AveragePool"), ("ReduceMax", "MaxPool")))
@pytest.mark.parametrize(
    "axis, shape", ((1, "[N,6]"), (1, "[N,1,6]"), (2, "[N,5]"), (-1, "[N,5,1]"))
)
def test_reduced(kind, pool, axis, shape):
    keep = int(shape.count(",") == 2)
    text = (
        f"g (float[N,5,6] x) => (float{shape} y) {{ y = {kind}<axes = [{axis}], keepdims = "
        f"{keep}>(x) }}"
    )
    left = [*(["Transpose"] if axis == 1 else []), "Reshape", pool, "Reshape"]
    check_pass_fires(graph(text), convert_sequence_pools, 1, left, atol=1e-6)


@pytest.mark.parametrize(
    "kind, pool", (("GlobalAveragePool", "AveragePool"), ("GlobalMaxPool", "MaxPool"))
)
def test_global(kind, pool):
    text = f"g (float[N,5,6] x) => (float[N,5,1] y) {{ y = {kind}(x) }}"
    check_pass_fires(
        graph(text), convert_sequence_pools, 1, ["Reshape", pool, "Reshape"], atol=1e-6
    )


@pytest.mark.parametrize("kind", ("AveragePool", "MaxPool"))
@pytest.mark.parametrize(
    "window",
    (
        "kernel_shape = [2]",
        "kernel_shape = [3], strides = [2], pads = [1, 0]",
        "kernel_shape = [6]",
    ),
)
def test_window_of_a_line(kind, window):
    """Windows 1 x k over maps of height 1."""
    text = f"g (float[N,5,6] x) => (float[N,5,P] y) {{ y = {kind}<{window}>(x) }}"
    check_pass_fires(
        graph(text), convert_sequence_pools, 1, ["Reshape", kind, "Reshape"], atol=1e-6
    )


@pytest.mark.parametrize(
    "text",
    (
        "g (float[N,5,6,4] x) => (float[N,5,5,3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }",
        (
            "g (float[N,5,6] x) => (float[N,5,5] y, int64[N,5,5] i) { y, i = MaxPool<kernel_shape = "
            "[2]>(x) }"
        ),
    ),
)
def test_other_windows(text):
    check_pass_leaves_alone(graph(text), convert_sequence_pools)


@pytest.mark.parametrize("axes", ("[1, 2]", "[0]"))
@pytest.mark.parametrize("kind", ("ReduceMean", "ReduceMax"))
def test_other_axes(kind, axes):
    check_pass_leaves_alone(
        graph(f"g (float[N,5,6] x) => (float y) {{ y = {kind}<axes = {axes}>(x) }}"),
        convert_sequence_pools,
    )


def test_whole_numbers_are_not_pooled():
    check_pass_leaves_alone(
        graph("g (int64[N,5,6] x) => (int64[N,1,6] y) { y = ReduceMax<axes = [1]>(x) }"),
        convert_sequence_pools,
    )
