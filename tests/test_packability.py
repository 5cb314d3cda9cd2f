"""Law: what quantize calls chip-ready is what the venus packer takes and the executor computes right."""

import copy
import functools
from pathlib import Path

import numpy as np
import onnx
import pytest

from lingeronnx import ir
from lingeronnx.api import quantize
from tests import nets
from tests.packer import problems

MODELS = Path(__file__).resolve().parents[1] / "models"


def stress(seed):
    """Return a seeded random chain of layers, shortcuts, concatenations and pools of many sizes."""
    rng = np.random.default_rng(seed)
    net = nets.Net(int(rng.integers(1, 7)), 16, int(rng.integers(9, 20)), seed=seed)
    x, channels = "x", net.shape[0]
    for _ in range(int(rng.integers(3, 7))):
        kind = rng.choice(["conv", "depthwise", "block", "cat", "bn", "relu6", "wide"])
        k = int(rng.choice([1, 2, 3, 5]))
        pads = [int(p) for p in rng.integers(0, k, 4)]
        gain = float(rng.choice([0.1, 1.0, 6.0]))
        if kind == "conv":
            wide = int(rng.integers(2, 12))
            x = net.conv(x, (wide, channels, k, k), pads=pads, gain=gain, bias=bool(rng.integers(2)))
            channels = wide
        elif kind == "depthwise":
            x = net.node("Relu", net.conv(x, (channels, 1, 3, 3), group=channels, pads=[1] * 4, gain=gain))
        elif kind == "block":
            inner = net.node("Relu", net.conv(x, (4, channels, 1, 1), gain=gain))
            x = net.node("Relu", net.node("Add", net.conv(inner, (channels, 4, 3, 3), pads=[1] * 4), x))
        elif kind == "cat":
            x = net.node("Concat", x, net.conv(x, (3, channels, 3, 3), pads=[1] * 4, gain=gain), axis=1)
            channels += 3
        elif kind == "bn":
            four = [net.const(rng.uniform(0.5, 1.5, channels).astype(np.float32)) for _ in range(4)]
            x = net.node("BatchNormalization", net.node("Relu", x), *four)
        elif kind == "relu6":
            x = net.relu6(net.conv(x, (channels, channels, 1, 1), gain=gain))
        else:
            x = net.conv(x, (channels, channels, 1, 1), strides=[2, 1], gain=gain)
    pool = net.node("GlobalAveragePool", net.conv(x, (6, channels, 3, 3), pads=[1] * 4))
    return net.graph(net.linear(net.node("Flatten", pool), (6, 3), out="y"))


def checked(model, calib=None):
    """Quantize for venus and return (report, problems of the file as written)."""
    result = quantize(model, nets.samples(model) if calib is None else calib, platform="venus")
    return result.report, problems(ir.to_proto(result.graph))


@pytest.mark.parametrize("net", nets.NETS, ids=lambda net: net.__name__)
def test_nets(net):
    """Residual blocks, depthwise, concat, ReLU6, asymmetric pads, a strided 1x1 shortcut, branches."""
    report, found = checked(net())
    assert report.chip_ready
    assert found == []


@functools.cache
def random_case(seed):
    """Return `checked` of one random net, quantized once for all tests."""
    return checked(stress(seed))


@pytest.mark.parametrize("seed", range(12))
def test_random_nets(seed):
    """Whatever quantize calls chip-ready packs; what it does not call so has a reason."""
    report, found = random_case(seed)
    if report.chip_ready:
        assert found == []
    else:
        assert report.float_nodes
        assert all(node.why for node in report.float_nodes)


def test_random_nets_are_mostly_ready():
    """The test above would be empty if nothing were chip-ready."""
    assert sum(random_case(seed)[0].chip_ready for seed in range(12)) >= 6


def test_digits():
    """The model that the demo uses."""
    report, found = checked(ir.load(MODELS / "digits_cnn.onnx"), MODELS / "digits_calib.npz")
    assert report.chip_ready
    assert found == []


def test_conv1d_squeeze_unsqueeze():
    """One-dimensional layers and the reshaping around them."""
    net = nets.Net(4, 20, seed=8)
    c = net.node("Relu", net.conv("x", (6, 4, 3), pads=[1, 1]))
    u = net.node("Unsqueeze", c, net.const(np.array([3])))
    p = net.node("MaxPool", u, kernel_shape=[2, 1], strides=[2, 1])
    net.conv(net.node("Squeeze", p, net.const(np.array([3]))), (3, 6, 5), out="y")
    report, found = checked(net.graph("y"))
    assert report.chip_ready
    assert report.layers["Conv1dInt"] == 2
    assert found == []


# ---- the check itself can fail ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good():
    """Return integer graphs that between them hold every operator."""
    return [ir.to_proto(nets.quantized(net()).graph) for net in nets.NETS]


def spoil(op_type, attribute, value):
    """Return a change of one attribute of the first such node (value None: drop it)."""

    def change(model):
        node = next(n for n in model.graph.node if n.op_type == op_type)
        old = next(a for a in node.attribute if a.name == attribute)
        node.attribute.remove(old)
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(attribute, value))

    return change


def retype(index, dtype):
    """Return a change of the type of input `index` of the first convolution."""

    def change(model):
        node = next(n for n in model.graph.node if n.op_type == "Conv2dInt")
        tensor = next(t for t in model.graph.initializer if t.name == node.input[index])
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(dtype), tensor.name))

    return change


def rename(op_type, other):
    """Return a change of the first such node to another operator."""

    def change(model):
        next(n for n in model.graph.node if n.op_type == op_type).op_type = other

    return change


def batch(model):
    """Make the batch of the input 2."""
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2


SPOILED = {
    "kernel": (spoil("Conv2dInt", "kernel_shape", [7, 7]), "do not fit"),
    "stride": (spoil("Conv2dInt", "strides", [3, 1]), "stride 3"),
    "stride above kernel": (spoil("Conv2dInt", "strides", [4, 1]), "stride 4 with kernel 3"),
    "pads": (spoil("Conv2dInt", "pads", [4, 0, 0, 0]), "pads"),
    "dilation": (spoil("Conv2dInt", "dilations", [1, 2]), "dilation"),
    "scale": (spoil("Conv2dInt", "scale_w", 3.0), "no power of two"),
    "shift": (spoil("Conv2dInt", "scale_o", 2.0**30), "to the left"),
    "read": (spoil("Conv2dInt", "scale_x", 2.0**9), "that was written at"),
    "bits": (spoil("Conv2dInt", "o_bits", 16), "o_bits is 16"),
    "platform": (spoil("Conv2dInt", "platform_quant", None), "platform_quant is missing"),
    "weight": (retype(1, np.int16), "no int8 constant"),
    "bias": (retype(2, np.int16), "no int32 constant"),
    "operator": (rename("Relu", "Sigmoid"), "does not run it"),
    "island": (rename("Conv2dInt", "Clip"), "does not run it"),
    "batch": (batch, "batch [2]"),
    "add": (spoil("iqAdd", "scale_o", 2.0**15), "shifted to the left"),
    "add mode": (spoil("iqAdd", "mode", None), "mode is missing"),
    "mul": (spoil("iqMul", "scale_o", 2.0**28), "shifted to the left"),
    "cat": (spoil("iqCat", "scale_x_1", None), "scale_x_1 is missing"),
    "cat axis": (spoil("iqCat", "dim", 0), "concatenates the batch"),
    "pool scale": (spoil("AvgPool2dInt", "scale_o", 2.0), "ignores a change of scale"),
    "pool area": (spoil("AvgPool2dInt", "kernel_shape", [12, 12]), "more than 127"),
    "max window": (spoil("MaxPool", "kernel_shape", [6, 6]), "window"),
    "dequant": (spoil("Dequant", "scale_o", 0.5), "that was written at"),
    "constants": (lambda model: model.graph.ClearField("initializer"), "no constant"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_the_check_can_fail(name, good):
    """Each kind of mistake is found in some graph that was right before."""
    change, text = SPOILED[name]
    found = []
    for model in good:
        spoiled = copy.deepcopy(model)
        try:
            change(spoiled)
        except StopIteration:
            continue
        found += problems(spoiled)
    assert any(text in line for line in found), found
