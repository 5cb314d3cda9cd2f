"""Kernel calls of a node, counted by hand."""

import pytest

from lingeronnx.luna.timing.kernel_calls import Operand, TimingNode, list_kernel_calls


@pytest.mark.parametrize(
    ("shape", "factors", "lines", "length"),
    [
        ((1, 16, 48), (48,), 16, 48),
        ((1, 256, 1), (256, 1), 1, 256),  # the last two axes are one line
        ((1, 4, 8, 6), (8, 6), 4, 48),
        ((3, 5), (5,), 3, 5),
    ],
)
def test_a_layer_norm_goes_line_by_line(shape, factors, lines, length):
    """As many kernels for each line as section 7 of the page has, each on a line; scale and bias
    are fetched once.
    """
    inputs = [Operand(shape), Operand(factors), Operand(factors, 32)]
    work = list_kernel_calls(TimingNode("LayerNormInt", {}, inputs, [Operand(shape)]))
    fetched, *others = [
        call for call in work.calls if call.kernel in ("memcpy", "memcpy_from_psram")
    ]
    assert (fetched.arguments["n"], fetched.count) == (length, 1)
    assert [(call.arguments["n"], call.count) for call in others] == [
        (4 * length, 1),
        (length, lines),
    ]
    kernels = [call for call in work.calls if "memcpy" not in call.kernel]
    assert {call.arguments["n"] for call in kernels} == {length}
    assert sum(call.count for call in kernels) == (10 + 1) * lines  # and a copy out by the DMA
