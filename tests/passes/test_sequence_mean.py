"""The mean over a sequence as an average over a line."""

import pytest

from lingeronnx.passes.sequence_mean import sequence_mean
from tests.passes.helpers import fires, graph, stays

LEFT = ["Transpose", "Reshape", "AveragePool", "Reshape"]


@pytest.mark.parametrize("keep, shape", ((0, "[N,6]"), (1, "[N,1,6]")))
def test_mean(keep, shape):
    text = f"g (float[N,5,6] x) => (float{shape} y) {{ y = ReduceMean<axes = [1], keepdims = {keep}>(x) }}"
    fires(graph(text), sequence_mean, 1, LEFT, atol=1e-6)


@pytest.mark.parametrize("axes", ("[2]", "[1, 2]", "[0]"))
def test_other_axes(axes):
    stays(graph(f"g (float[N,5,6] x) => (float y) {{ y = ReduceMean<axes = {axes}>(x) }}"), sequence_mean)
