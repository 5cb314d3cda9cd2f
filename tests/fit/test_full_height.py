"""Kernels as high as their map: rows are read as channels, exactly, and by chips too."""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from tests import nets
from tests.fit.test_stride import CHIPS, ROWS, legalize_and_run


def build_tall_conv(height, kernel, **sizes):
    """A layer in front that keeps the height, and the convolution in question."""
    net = nets.Net(1, height, 12, seed=4)
    a = net.node("Relu", net.conv("x", (4, 1, 1, 1)))
    return net.graph(net.conv(a, (6, 4 // sizes.get("group", 1), *kernel), out="y", **sizes))


@pytest.mark.parametrize(
    "sizes", [{}, {"strides": [1, 2]}, {"pads": [0, 1, 0, 1]}, {"strides": [3, 1]}]
)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_become_channels(row, sizes):
    model = build_tall_conv(20, (20, 3), **sizes)
    want, have, rewrites = legalize_and_run(model, row)
    np.testing.assert_allclose(have, want, atol=1e-5)
    assert any(rewrite.what.startswith("kernel 20x3: rows") for rewrite in rewrites)
    kernels = [ir.require_shape(n.inputs[1])[2:] for n in model.graph if n.op_type == "Conv"]
    assert (1, 3) in kernels
    assert (20, 3) not in kernels


@pytest.mark.parametrize(
    ("height", "sizes"),
    [(21, {}), (20, {"pads": [1, 0, 0, 0]}), (20, {"group": 2})],
    ids=["higher map", "padding", "groups"],
)
def test_other_kernels_are_not_folded(height, sizes):
    _, _, rewrites = legalize_and_run(build_tall_conv(height, (20, 3), **sizes), ROWS[0])
    assert not any("rows read as channels" in rewrite.what for rewrite in rewrites)


@pytest.mark.parametrize("platform", CHIPS)
def test_a_chip_runs_it_completely(platform):
    model = build_tall_conv(40, (40, 3))
    report = quantize(model, nets.samples(model, 32), platform=platform, effort="fast").report
    assert report.chip_ready
    assert report.integer_macs == 1
