"""Channels of input pictures against those of calibration: exchanged, constant, or other by chance."""

import numpy as np
import pytest

import lingeronnx as lo
from tests.nets import Net

_COLORS = np.array([0.55, 0.45, 0.3]).reshape(1, 3, 1, 1)


def draw_pictures(count, seed, apart):
    """Draw pictures of three channels; their means vary by `apart` from picture to picture."""
    rng = np.random.default_rng(seed)
    means = _COLORS + apart * rng.standard_normal((count, 3, 1, 1))
    return (means + 0.2 * rng.standard_normal((count, 3, 8, 8))).astype(np.float32)


@pytest.fixture(scope="module", params=[0.02, 0.25])
def compare_inputs(request):
    """Return a function that gives the findings on inputs; colors vary little, or much."""
    net = Net(3, 8, 8, seed=1)
    model = net.graph(net.node("Relu", net.conv("x", (4, 3, 3, 3), out="c"), out="y"))
    calib = {"x": draw_pictures(48, 0, request.param)}
    result = lo.quantize(model, calib, platform="generic", effort="fast")

    def compare(data):
        findings = lo.compare(model, result, {"x": data}).findings
        return [finding for finding in findings if finding.operator == "Input"]

    compare.apart = request.param
    return compare


def test_other_pictures_by_chance_are_no_finding(compare_inputs):
    for seed in range(1, 9):
        assert not compare_inputs(draw_pictures(48, seed, compare_inputs.apart))


def test_exchanged_channels_are_found_unless_chance_explains_them(compare_inputs):
    findings = compare_inputs(draw_pictures(200, 1, compare_inputs.apart)[:, ::-1])
    assert [finding.kind for finding in findings] == ["input channels swapped"]
    assert "in the order [2, 1, 0]" in findings[0].measured


def test_a_channel_that_became_constant_is_named(compare_inputs):
    """At its mean, where neither the means nor the largest deviation tell."""
    data = draw_pictures(48, 1, compare_inputs.apart)
    data[:, 2] = 0.3
    (finding,) = compare_inputs(data)
    assert finding.kind == "input channel constant"
    assert finding.measured == "channel 2 is always 0.3"
