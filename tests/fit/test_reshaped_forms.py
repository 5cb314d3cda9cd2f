"""Operators that chips support for images only, on tensors of other ranks: reshaped, exact.

The integers of a row or a vector are those of an image with the same elements. Both judges call the
graphs right.
"""

import numpy as np
import pytest

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from tests import nets
from tests.packer import judge

CHIPS = ("venus", "arcs", "venusA")
#: rank -> what a sample of 6 channels has behind them.
SHAPES = {2: (), 3: (10,), 5: (2, 3, 2)}


def slopes(net, kind, rank):
    """Append LeakyRelu, PRelu with one slope per channel or one for all, or a batch
    normalisation.
    """

    def values(low, high, *shape):
        return net.const(net.rng.uniform(low, high, shape).astype(np.float32))

    if kind == "leaky":
        return lambda x: net.node("LeakyRelu", x, alpha=0.2)
    if kind == "prelu":
        return lambda x: net.node("PRelu", x, values(0.1, 0.5, 6, *[1] * (rank - 2)))
    if kind == "prelu_one":
        return lambda x: net.node("PRelu", x, values(0.1, 0.5, 1))
    parameters = [values(0.5, 1.5, 6), values(-1, 1, 6), values(-1, 1, 6), values(0.5, 1.5, 6)]
    return lambda x: net.node("BatchNormalization", x, *parameters)


def net_of(kind, rank, image=False):
    """Linear over all numbers, the operator on a tensor of `rank` (or an image of the same
    numbers), Linear again.
    """
    trailing = SHAPES[rank]
    size = 6 * int(np.prod(trailing, dtype=int))
    net = nets.Net(5, seed=rank)
    first = (
        net.node("Relu", net.linear("x", (5, size)))
        if kind == "norm"
        else net.linear("x", (5, size))
    )
    shape = (6, 1, size // 6) if image else (6, *trailing)
    held = net.node("Reshape", first, net.const(np.array([0, *shape])))
    activated = slopes(net, kind, 4 if image else rank)(held)
    flat = net.node("Reshape", activated, net.const(np.array([0, size])))
    return net.graph(net.linear(net.node("Relu", flat), (size, 3), out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", (*CHIPS, "generic"))
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("kind", ("leaky", "prelu", "prelu_one", "norm"))
def test_other_ranks(kind, rank, platform):
    """All in integers, ready, and the integers of the image."""
    model, twin = net_of(kind, rank), net_of(kind, rank, image=True)
    feed = nets.samples(model, 16)
    result, image_result = (
        quantize(m, feed, platform=platform, effort="fast") for m in (model, twin)
    )
    report = result.report
    assert not report.float_nodes
    assert not report.host_part
    (have,), (want,) = (Session(r.graph).run(["y"], feed) for r in (result, image_result))
    np.testing.assert_array_equal(have, want)
    (real,) = Session(model).run(["y"], feed)
    assert np.mean(np.square(real - have)) < 3e-3 * np.mean(np.square(real))
    if platform in CHIPS:
        assert report.chip_ready
        verdict = judge(ir.to_proto(result.graph), platform, report.packer_args)
        assert (verdict.problems, verdict.packs, verdict.right) == ([], True, True)
