"""Float operators of convolutional nets on every platform: they become integer, run, and stay close
to the float model.

What a platform does not have stays in float with a reason; both are in the table below. The
rewrites that mend some of that (`fit`) are off.
"""

import numpy as np
import pytest
from onnx import helper

from lingeronnx.api import quantize
from lingeronnx.ir import ir
from lingeronnx.runtime.session import Session
from lingeronnx.targets import PLATFORMS
from tests.case_selection import mark_rest_slow
from tests.nets import NETS, Net, samples
from tests.passes.helpers import proto, rand

ROWS = [target.name for target in PLATFORMS]
CHIPS = [target.name for target in PLATFORMS if target.has_packer]


def head(net, x=None, channels=6):
    """Begin with a convolution and a Relu, so that there is something to compute."""
    return net.node("Relu", net.conv(x or "x", (channels, net.shape[0], 3, 3), pads=[1] * 4))


def ints(net, *values):
    return net.const(np.array(values, np.int64))


def image(build, *shape, opset=13):
    """Return a function that makes the net conv -> relu -> build -> y."""

    def make():
        net = Net(*(shape or (3, 8, 8)), seed=3, opset=opset)
        return net.graph(build(net, head(net)))

    return make


def transposed(**attributes):
    def build(net, x):
        size = attributes.get("kernel_shape", [3, 3])
        weight = net.const((0.2 * net.rng.standard_normal((6, 4, *size))).astype(np.float32))
        return net.node("ConvTranspose", x, weight, **attributes)

    return image(build)


def minus(net, x):
    return net.node("Sub", net.conv(x, (6, 6, 1, 1)), net.conv(x, (6, 6, 3, 3), pads=[1] * 4))


def minus_rows():
    net = Net(10, seed=4)
    return net.graph(net.node("Sub", net.linear("x", (10, 7)), net.linear("x", (10, 7))))


def split(net, x):
    parts = [f"part{i}" for i in range(3)]
    net.nodes.append(helper.make_node("Split", [x, ints(net, 1, 3, 2)], parts, name="cut", axis=1))
    ends = [net.conv(parts[i], (4, size, 1, 1)) for i, size in ((0, 1), (2, 2))]
    return net.node("Add", *ends)


def slices(net, x):
    y = net.node("Slice", x, ints(net, 1, -5), ints(net, 5, 1 << 40), ints(net, 1, 3))
    return net.conv(y, (4, 4, 1, 1))


def strided_slice(net, x):
    return net.conv(
        net.node("Slice", x, ints(net, 0), ints(net, 8), ints(net, 2), ints(net, 2)), (4, 6, 1, 1)
    )


def reversed_slice(net, x):
    return net.conv(
        net.node("Slice", x, ints(net, -1), ints(net, -(1 << 63)), ints(net, 2), ints(net, -1)),
        (4, 6, 1, 1),
    )


def reversed_part(net, x):
    return net.conv(
        net.node("Slice", x, ints(net, 5), ints(net, 0), ints(net, 3), ints(net, -2)), (4, 6, 1, 1)
    )


def pick_channel(net, x):
    y = net.node("Gather", x, net.const(np.array(2, np.int64)), axis=2)
    return net.conv(y, (4, 6, 3), pads=[1, 1])


def tiled(net, x):
    return net.conv(net.node("Tile", x, ints(net, 1, 1, 2, 1)), (4, 6, 3, 3))


def expanded(net, x):
    p = net.node("GlobalAveragePool", x)
    return net.node("Add", net.conv(x, (6, 6, 1, 1)), net.node("Expand", p, ints(net, 1, 6, 8, 8)))


def gated(net, x):
    p = net.node("Relu", net.conv(net.node("GlobalAveragePool", x), (6, 6, 1, 1)))
    return net.node("Mul", x, p)


def gating(net, x):
    p = net.node("HardSigmoid", net.conv(net.node("GlobalAveragePool", x), (6, 6, 1, 1)))
    return net.node("HardSwish", net.node("Mul", p, x))


def padded(net, x):
    y = net.node("Pad", x, ints(net, 0, 0, 1, 0, 0, 0, 2, 1), net.const(np.float32(0.5)))
    return net.conv(y, (4, 6, 3, 3))


def reflected(net, x):
    return net.conv(
        net.node("Pad", x, ints(net, 0, 0, 1, 1, 0, 0, 1, 1), mode="reflect"), (4, 6, 3, 3)
    )


def enlarged(net, x):
    factors = net.const(np.array([1, 1, 2, 2], np.float32))
    y = net.node(
        "Resize",
        x,
        "",
        factors,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return net.conv(y, (4, 6, 3, 3))


def leaky(net, x):
    return net.node("LeakyRelu", net.conv(x, (4, 6, 3, 3)), alpha=0.1)


def prelu(net, x):
    slope = net.const(net.rng.uniform(-0.2, 0.5, (4, 1, 1)).astype(np.float32))
    return net.conv(net.node("PRelu", net.conv(x, (4, 6, 3, 3)), slope), (4, 4, 1, 1))


def shuffled(net, x):
    y = net.node("Reshape", x, ints(net, 0, 2, 3, 8, 8))
    y = net.node("Transpose", y, perm=[0, 2, 1, 3, 4])
    return net.conv(net.node("Reshape", y, ints(net, 0, 6, 8, 8)), (6, 1, 3, 3), group=6)


def swapped(net, x):
    return net.conv(net.node("Transpose", x, perm=[0, 2, 1, 3]), (4, 8, 3, 3))


def line(size=5, **attributes):
    def make():
        net = Net(4, 24, seed=5)
        y = net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]))
        return net.graph(net.conv(y, (5, 6, size), **attributes))

    return make


def dilated(net, x):
    return net.conv(x, (4, 6, 3, 3), dilations=[2, 2], pads=[2] * 4)


def multiplied(net, x):
    return net.conv(x, (12, 1, 3, 3), group=6)


def matrices():
    net = Net(6, 8, seed=6)
    q, k = (
        net.node("MatMul", "x", net.const(net.rng.standard_normal((8, 5)).astype(np.float32)))
        for _ in "qk"
    )
    return net.graph(net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 1])))


def concatenated(net, x):
    return net.node(
        "Concat", net.conv(x, (3, 6, 1, 1), gain=4.0), net.conv(x, (4, 6, 1, 1), gain=0.2), axis=1
    )


def average(height, width, channels):
    def make():
        net = Net(3, height, width, seed=8)
        return net.graph(net.node("GlobalAveragePool", head(net, channels=channels)))

    return make


#: name -> net, the platforms on which all of it is integer.
CASES = {
    "deconv": (transposed(strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]), ROWS),
    "deconv-asymmetric": (
        transposed(strides=[2, 2], pads=[1, 0, 0, 1], output_padding=[1, 0]),
        ROWS,
    ),
    "deconv-4x4": (transposed(kernel_shape=[4, 4], strides=[4, 4]), ROWS),
    "deconv-dilated": (transposed(dilations=[2, 2]), ["generic"]),
    "sub": (image(minus), ROWS),
    "sub-rows": (minus_rows, ROWS),
    "split": (image(split), ROWS),
    "slices": (image(slices), ROWS),
    "slice-strided": (image(strided_slice), ["generic"]),
    "slice-reversed": (image(reversed_slice), ["generic"]),
    "slice-reversed-part": (image(reversed_part), ["generic"]),
    "gather": (image(pick_channel), ROWS),
    "tile": (image(tiled), ROWS),
    "expand": (image(expanded), ROWS),
    "mul-channels": (image(gated), ROWS),
    "mul-channels-first": (image(gating, opset=14), ROWS),
    "pad-value": (image(padded), ["generic", "venus"]),
    "pad-reflect": (image(reflected), ["generic"]),
    "resize": (image(enlarged), ["generic"]),
    "leaky-relu": (image(leaky), ROWS),
    "prelu": (image(prelu), ROWS),
    "shuffle": (image(shuffled), ROWS),
    "transpose": (image(swapped), ROWS),
    "conv1d": (line(strides=[2], pads=[2, 2]), ROWS),
    "conv1d-long": (line(size=9), ["generic", "arcs"]),
    "conv1d-dilated": (line(size=3, dilations=[4]), ["generic", "arcs", "venusA"]),
    "dilation": (image(dilated), ["generic", "arcs", "venusA"]),
    "multiplier": (image(multiplied), ["generic", "arcs", "venusA"]),
    "matmul": (matrices, ROWS),
    "concat": (image(concatenated), ROWS),
    "average-8x8": (average(8, 8, 16), ROWS),
    "average-7x7": (average(7, 7, 6), ROWS),
    "average-3x3": (average(3, 3, 16), ROWS),
    "average-9x9": (average(9, 9, 32), ROWS),
    "average-11x13": (average(11, 13, 8), ROWS),
}


@pytest.mark.parametrize("platform", ROWS)
def test_a_token_beside_what_is_computed(platform):
    """A constant beside a tensor is zeros around it and a sum: in integers on every platform."""
    text = (
        "g (float[1,4,6] x) => (float[1,5,3] y) { a = MatMul(x, v) c = Concat<axis = 1>(t, a) "
        "y "
        "= MatMul(c, w) }"
    )
    model, rng = proto(text, v=rand(6, 6), t=rand(1, 1, 6), w=rand(6, 3)), np.random.default_rng(0)
    feed = {"x": rng.standard_normal((32, 4, 6)).astype(np.float32)}
    result = quantize(ir.from_proto(model), feed, platform=platform, effort="fast")
    assert not [*result.report.float_nodes, *result.report.host_part]
    one = {"x": feed["x"][:1]}
    (want,), (got,) = (Session(m).run(None, one) for m in (ir.from_proto(model), result.graph))
    assert sqnr(want, got) > 25


def sqnr(want, got):
    return 10 * np.log10(np.mean(np.square(want)) / np.mean(np.square(want - got)))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "platform", mark_rest_slow(2, sorted(ROWS, key="generic venus arcs venusA".index))
)
@pytest.mark.parametrize("case", CASES)
def test_operator(case, platform):
    """Integer where the row has it, else float with a reason; close to the float model either
    way.
    """
    make, integer = CASES[case]
    model = make()
    feed = samples(model)
    effort = (
        "fast" if case == "concat" else "normal"
    )  # else the host joins, where that is measured to be better
    result = quantize(make(), feed, platform=platform, fit=False, effort=effort)
    floats = {
        node.op_type: node.why for node in result.report.float_nodes + result.report.host_part
    }
    assert (not floats) == (platform in integer), floats
    assert all(floats.values())
    (want,), (got,) = (Session(m).run(None, feed) for m in (model, result.graph))
    assert sqnr(want, got) > 20


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ROWS)
@pytest.mark.parametrize("net", mark_rest_slow(2, NETS), ids=lambda net: net.__name__)
def test_families(net, platform):
    """Families of convolutional nets are integer from the first layer to the last on every
    platform.
    """
    model = net()
    feed = samples(model)
    result = quantize(net(), feed, platform=platform, effort="fast")
    assert not result.report.float_nodes
    assert result.report.chip_ready == (platform in CHIPS)
    assert result.report.integer_macs == 1
    for want, got in zip(*(Session(m).run(None, feed) for m in (model, result.graph)), strict=True):
        assert sqnr(want, got) > 20
