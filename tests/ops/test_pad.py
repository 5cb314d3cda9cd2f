"""Padding by iqPad or by convolutions of one tap: the integers of numpy's padding, in graphs that
both judges take.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests.case_selection import limit_examples
from tests.nets import Net
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")
LINE_BUFFER = 65536  # bytes of a row with 8 channels; a longer one leaves the last layer in float


def padded(shape, pads, value=0.0, mode="constant"):
    """Return conv -> relu -> reshape to `shape` -> Pad (named "p") -> reshape -> conv."""
    size = int(np.prod(shape))
    net = Net(4, size, seed=3)
    a = net.node("Relu", net.conv("x", (2, 4, 1)))
    a = net.node("Slice", a, *(net.const(np.array([n], np.int64)) for n in (0, 1, 1)))
    a = net.node("Reshape", a, net.const(np.array([0, *shape], np.int64)), out="a")
    half = len(pads) // 2
    full = np.array([0, *pads[:half], 0, *pads[half:]], np.int64)
    b = net.node("Pad", a, net.const(full), net.const(np.float32(value)), mode=mode, out="p")
    total = int(
        np.prod([n + x + y for n, x, y in zip(shape, pads[:half], pads[half:], strict=True)])
    )
    b = net.node("Reshape", b, net.const(np.array([0, 1, total], np.int64)))
    return net.graph(net.conv(b, (3, 1, 1), out="y"))


def agrees(shape, pads, platform, value=0.0):
    """Quantize and check integers and verdicts; return the operators."""
    model = padded(shape, pads, value)
    data = {
        "x": np.random.default_rng(5)
        .standard_normal((6, 4, int(np.prod(shape))))
        .astype(np.float32)
    }
    result = quantize(model, data, platform=platform, effort="fast")
    assert not result.report.float_nodes
    assert result.report.chip_ready
    verdict = judge(ir.to_proto(result.graph), platform, result.report.packer_args)
    assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
    held = {name: (array, scale) for name, array, scale in Session(result.graph).taps(data)}
    (before, scale), (after, same) = held["a"], held["p"]
    assert scale == same
    half = len(pads) // 2
    width = [(0, 0), *zip(pads[:half], pads[half:], strict=True)]
    constant = int(np.clip(np.floor(value * scale + 0.5), -128, 127))
    np.testing.assert_array_equal(after, np.pad(before, width, constant_values=constant))
    return [node.op_type for node in result.graph.graph]


@limit_examples(25)
@given(
    shape=st.lists(st.integers(2, 7), min_size=1, max_size=3),
    data=st.data(),
    platform=st.sampled_from(CHIPS),
)
def test_zeros_around_any_axes(shape, data, platform):
    """One to three axes behind the batch, up to nine zeros on a side."""
    pads = data.draw(st.lists(st.integers(0, 9), min_size=2 * len(shape), max_size=2 * len(shape)))
    sizes = np.add(shape, np.reshape(pads, (2, -1)).sum(axis=0))
    if any(pads) and 8 * np.prod(sizes) <= LINE_BUFFER:
        agrees(tuple(shape), pads, platform)


@pytest.mark.parametrize("platform", ("arcs", "venusA"))
def test_an_image_is_padded_by_one_convolution(platform):
    """Up to four zeros along each axis; five take a second one."""
    assert agrees((4, 6, 5), [0, 1, 2, 0, 3, 2], platform).count("iqPad") == 0
    one = agrees((4, 6, 5), [0, 1, 2, 0, 3, 2], platform).count("Conv2dInt")
    assert agrees((4, 6, 5), [0, 1, 2, 0, 4, 2], platform).count("Conv2dInt") == one + 1


def test_a_line_is_padded_by_an_iqpad_where_there_is_one():
    """Of four axes alone: the line is seen as an image, and any constant will do."""
    assert "iqPad" in agrees((4, 9), [0, 2, 0, 5], "venus", value=0.5)


@pytest.mark.parametrize("platform", ("arcs", "venusA"))
@pytest.mark.parametrize("kind", ({"value": 1.0}, {"mode": "edge"}))
def test_what_is_no_zero_stays_in_float(platform, kind):
    """With the reason, where no slices may stand in for it."""
    data = {"x": np.random.default_rng(5).standard_normal((6, 4, 36)).astype(np.float32)}
    report = quantize(
        padded((4, 9), [0, 2, 0, 2], **kind), data, platform=platform, effort="fast", fit=False
    ).report
    (found,) = [node for node in report.float_nodes if node.op_type == "Pad"]
    assert "padding is by a constant with an iqPad, else by zeros" in found.why
