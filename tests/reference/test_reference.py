"""Law: ONNX's reference evaluator with our plain classes gives the integers of the simulator, and
of the chip.

Three ways to the same numbers, none knowing another: the compiled simulator behind `Session`, the
plain classes of `lingeronnx.operators.references`, and the vectors measured on the vendor's
executor.
"""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lingeronnx as lo
from lingeronnx.ir import ir
from lingeronnx.operators import _reference_arithmetic as _arithmetic
from lingeronnx.operators.integer_ops import INTEGER_OPS
from lingeronnx.operators.references import ONNX_NATIVE_OPS
from lingeronnx.targets import PLATFORMS
from lingeronnx.targets.arithmetic import LutArithmetic, TableInputRule
from simulator.fixed_point import Rescale, luna_divide
from tests.case_selection import mark_rest_slow
from tests.nets import NETS, Net, quantized, samples
from tests.oracles import fixed

NAMES = [target.name for target in PLATFORMS]
GOLDEN = Path(os.environ.get("LINGERONNX_GOLDEN", Path(__file__).parents[1] / "golden")) / "luna"


def differing(proto, name, feeds):
    """Run a graph both ways, sample by sample; return the tensors that differ and how many were
    compared.
    """
    session = lo.Session(ir.from_proto(proto))
    reference = ReferenceEvaluator(proto, new_ops=lo.reference_ops(name))
    wrong, compared = set(), 0
    for i in range(len(next(iter(feeds.values())))):
        feed = {key: array[i : i + 1] for key, array in feeds.items()}
        plain = reference.run(None, feed, intermediate=True)
        for tensor, array, _ in session.taps(feed):
            compared += 1
            if array.dtype != plain[tensor].dtype or not np.array_equal(array, plain[tensor]):
                wrong.add(tensor)
    return sorted(wrong), compared


def inputs_of(proto, count=4, seed=3):
    """Return inputs by name: normal ones, one far out of range, one at zero."""
    feeds = samples(ir.from_proto(proto), count, seed)
    for array in feeds.values():
        array[1] *= 100
        array[2] = 0
    return feeds


# ---- whole networks ------------------------------------------------------------------------------------------------


def moves():
    """Everything that moves data, and a difference."""
    net = Net(4, 6, 6, seed=7)
    a = net.conv("x", (8, 4, 3, 3), pads=[1] * 4)
    ints = [net.const(np.array([v])) for v in (1, 5, 2)]
    s = net.node("Slice", a, *ints)
    p = net.node(
        "Pad", s, net.const(np.array([0, 0, 1, 0, 0, 0, 1, 0])), net.const(np.float32(0.5))
    )
    d = net.node("Sub", net.conv(p, (8, 8, 3, 3), pads=[1] * 4), a)
    g = net.node("Gather", d, net.const(np.array([3, 1, 1, 0])), axis=1)
    t = net.node("Tile", g, net.const(np.array([1, 2, 1, 1])))
    u = net.node("Unsqueeze", t, net.const(np.array([2])))
    v = net.node("Squeeze", u, net.const(np.array([2])))
    f = net.node("Relu", net.conv(v, (6, 8, 3, 3)))
    e = net.node("Expand", net.node("GlobalAveragePool", f), net.const(np.array([1, 1, 4, 4])))
    m = net.node("Mul", e, f)
    return net.graph(net.node("LeakyRelu", m, alpha=0.1, out="y"))


def spread():
    """Up and down again: transposed convolution, nearest resizing, a matrix product."""
    net = Net(4, 5, 5, seed=8)
    a = net.conv("x", (6, 4, 3, 3), pads=[1] * 4)
    w = net.const((0.3 * net.rng.standard_normal((6, 5, 3, 3))).astype(np.float32))
    up = net.node("ConvTranspose", a, w, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    r = net.node("Resize", up, "", net.const(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
    n = net.node(
        "AveragePool", r, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, count_include_pad=1
    )
    h = net.node("Reshape", n, net.const(np.array([0, 5, 100])))
    t = net.node("Transpose", h, perm=[0, 2, 1])
    return net.graph(net.node("MatMul", h, t, out="y"))


def line():
    """One-dimensional convolutions and a linear layer on rows."""
    net = Net(6, 20, seed=9)
    a = net.node("Relu", net.conv("x", (8, 6, 5), strides=[2], pads=[2, 1]))
    b = net.conv(a, (8, 1, 3), group=8, pads=[1, 1])
    t = net.node("Transpose", net.node("Add", a, b), perm=[0, 2, 1])
    w = net.const((0.4 * net.rng.standard_normal((8, 5))).astype(np.float32))
    return net.graph(net.node("MatMul", t, w, out="y"))


@pytest.mark.sweep
@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize(
    "build", mark_rest_slow(3, (moves, spread, line, *NETS)), ids=lambda f: f.__name__
)
def test_networks(build, platform):
    """Every integer tensor of every small net is the same."""
    proto = ir.to_proto(quantized(build(), platform=platform, effort="fast").graph)
    wrong, compared = differing(proto, platform, inputs_of(proto))
    assert compared > 8
    assert not wrong, [
        f"{n.op_type} {n.name}" for n in proto.graph.node if set(n.output) & set(wrong)
    ]


def heads():
    """Tables, rows and a recurrent layer."""
    net = Net(6, 5, seed=10, opset=18, batch=1)
    ones = [net.const(net.rng.uniform(0.5, 1.5, 5).astype(np.float32)) for _ in range(2)]
    n = net.node("LayerNormalization", "x", *ones)
    w = [
        net.const((0.5 * net.rng.standard_normal(s)).astype(np.float32))
        for s in ((1, 16, 5), (1, 16, 4), (1, 32))
    ]
    t = net.node("Transpose", n, perm=[1, 0, 2])
    y = net.node("LSTM", t, *w, hidden_size=4)
    b = net.node("Transpose", net.node("Squeeze", y, net.const(np.array([1]))), perm=[1, 0, 2])
    s = net.node("Mul", net.node("Sigmoid", b), net.node("Tanh", b))
    return net.graph(net.node("HardSwish", net.node("Softmax", s, axis=-1), out="y"))


def test_heads():
    """On `generic` nothing of it stays in float."""
    proto = ir.to_proto(quantized(heads(), platform="generic", effort="fast").graph)
    assert all(node.domain == "thinker" or node.op_type in RUNNABLE for node in proto.graph.node)
    assert {"LayerNormInt", "LSTMInt", "SoftmaxInt", "iqTable"} <= {
        node.op_type for node in proto.graph.node
    }
    wrong, compared = differing(proto, "generic", inputs_of(proto))
    assert compared > 8
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("platform", NAMES)
def test_shipped_model(platform):
    """The trained digits classifier."""
    models = Path(__file__).parents[2] / "models"
    calib = np.load(models / "digits_calib.npz")
    name = calib.files[0]
    model = lo.quantize(models / "digits_cnn.onnx", {name: calib[name]}, platform=platform)
    proto = ir.to_proto(model.graph)
    wrong, compared = differing(proto, platform, {proto.graph.input[0].name: calib[name][:3]})
    assert compared > 8
    assert not wrong


# ---- measured vectors ----------------------------------------------------------------------------------------------

CASES = json.loads((GOLDEN / "index.json").read_text())["cases"]
RUNNABLE = {cls.__name__ for cls in lo.reference_ops()} | set(ONNX_NATIVE_OPS)


@pytest.mark.slow
def test_golden():
    """Every vector whose operators there are: the integers of the vendor's executor."""
    count, wrong = Counter(), []
    for case in CASES:
        proto = onnx.load(GOLDEN / f"{case['name']}.onnx")
        if not {node.op_type for node in proto.graph.node} <= RUNNABLE:
            continue
        want = np.load(GOLDEN / f"{case['name']}.npz")
        evaluator = ReferenceEvaluator(proto, new_ops=lo.reference_ops(case["platform"]))
        got = evaluator.run(None, {key: want[key] for key in case["inputs"]}, intermediate=True)
        writers = {name: node for node in proto.graph.node for name in node.output}
        for output in case["outputs"]:
            writer = writers[output]
            array = got[writer.input[0] if writer.op_type == "Dequant" else output]
            if array.shape != want[output].shape or not np.array_equal(array, want[output]):
                wrong.append(f"{case['name']} {output}")
        count[case["op"]] += 1
    assert not wrong
    assert count.total() >= 598
    assert {
        "Conv2dInt",
        "LinearInt",
        "AvgPool2dInt",
        "iqAdd",
        "iqMul",
        "iqCat",
        "Requant",
        "net",
    } <= set(count)


# ---- single operators, scales that quantize would not choose -------------------------------------------------------

RNG = np.random.default_rng(11)


def array(*shape, dtype=np.int8, low=-128, high=127):
    """Return random integers with both ends among them."""
    values = RNG.integers(low, high + 1, shape).astype(dtype)
    values.reshape(-1)[:2] = low, high
    return values


def single(
    op_type, inputs, constants=(), domain="thinker", platform="venus", outputs=1, **attributes
):
    """Return a graph of one node on integer inputs; behind an idle integer node where it is one of
    ONNX's own.
    """
    chip = next(target for target in PLATFORMS if target.name == platform).needs_power_of_two_scales
    extra = {"platform": platform} if chip else {}
    given = [f"x{i}" for i in range(len(inputs))]
    names = [*given, *(f"k{i}" if c is not None else "" for i, c in enumerate(constants))]
    results = [f"y{i}" for i in range(outputs)]
    nodes = []
    if not domain:
        nodes.append(
            helper.make_node("ShuffleChannel", ["x0"], ["x"], groups=1, domain="thinker", **extra)
        )
        names[0], extra = "x", {}
    nodes.append(
        helper.make_node(op_type, names, results, name="n", domain=domain, **extra, **attributes)
    )
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(given, inputs, strict=True)
    ]
    held = [numpy_helper.from_array(c, f"k{i}") for i, c in enumerate(constants) if c is not None]
    ends = [helper.make_tensor_value_info(r, TensorProto.INT8, None) for r in results]
    opsets = [helper.make_opsetid("", 12), helper.make_opsetid("thinker", 1)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", types, ends, held), opset_imports=opsets, ir_version=6
    )
    if not chip:
        helper.set_model_props(model, {"lingeronnx.platform": platform})
    return model


def agrees(op_type, inputs, constants=(), platform="venus", **attributes):
    """Compare both on one node; refusing alike is agreeing. Return the numbers, None where
    refused.
    """
    model = single(op_type, inputs, constants, platform=platform, **attributes)
    feeds = {f"x{i}": a for i, a in enumerate(inputs)}
    try:
        want = lo.Session(ir.from_proto(model)).run(None, feeds)
    except lo.ModelError:
        want = None
    evaluator = ReferenceEvaluator(model, new_ops=lo.reference_ops(platform))
    if want is None:
        with pytest.raises(ValueError, match="shift|power of two"):
            evaluator.run(None, feeds)
        return None
    got = evaluator.run(None, feeds)
    for a, b in zip(want, got, strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b), f"{np.count_nonzero(a != b)} of {a.size} differ"
    return want


def scales(platform, *powers):
    """Return scales: powers of two for chips, 1.37 times as large for those that take any."""
    factor = (
        1.0
        if next(target for target in PLATFORMS if target.name == platform).needs_power_of_two_scales
        else 1.37
    )
    return [factor * 2.0**q for q in powers]


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q_o", (-3, 3, 9, 12, 13))
@pytest.mark.parametrize(
    "kind", ("conv", "dilated", "grouped", "depthwise", "line", "turned", "turned groups")
)
def test_convolutions(kind, q_o, platform):
    """All geometries; shifts from large to negative."""
    x, w, o = scales(platform, 6, 6, q_o)
    bias = array(6, dtype=np.int32, low=-(2**31), high=2**31 - 1)
    attrs = {
        "scale_x": x,
        "scale_w": w,
        "scale_o": o,
        "data_bits": 8,
        "parameter_bits": 8,
        "o_bits": 8,
    }
    if kind == "line":
        geometry = {
            "kernel_shape": [3],
            "strides": [2],
            "pads": [2, 1],
            "dilations": [1],
            "group": 1,
        }
        agrees(
            "Conv1dInt", [array(1, 4, 11)], [array(6, 4, 3), bias], platform, **attrs, **geometry
        )
    elif kind.startswith("turned"):
        group = 2 if "groups" in kind else 1
        geometry = {
            "kernel_shape": [3, 2],
            "strides": [2, 1],
            "pads": [1, 0, 0, 1],
            "dilations": [1, 2],
            "output_padding": [1, 0],
            "group": group,
        }
        weight = array(4, 6 // group, 3, 2)
        agrees(
            "ConvTranspose2dInt", [array(1, 4, 5, 6)], [weight, bias], platform, **attrs, **geometry
        )
    else:
        group = {"grouped": 2, "depthwise": 6}.get(kind, 1)
        dilations = [2, 1] if kind == "dilated" else [1, 1]
        geometry = {
            "kernel_shape": [3, 2],
            "strides": [1, 2],
            "pads": [0, 1, 2, 1],
            "dilations": dilations,
        }
        weight = array(6, 6 // group, 3, 2)
        agrees(
            "Conv2dInt",
            [array(1, 6, 7, 8)],
            [weight, bias],
            platform,
            group=group,
            **attrs,
            **geometry,
        )


@pytest.mark.sweep
@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("bits", (8, 16, 32))
@pytest.mark.parametrize("q_o", (5, 11, 12))
def test_products(q_o, bits, platform):
    """Linear, BmmInt, iqMul, BatchNorm2dInt; wide outputs."""
    x, w, o = scales(platform, 5, 6, q_o)
    common = {"scale_x": x, "scale_o": o, "o_bits": bits}
    agrees(
        "LinearInt",
        [array(1, 3, 8)],
        [array(5, 8), array(5, dtype=np.int32)],
        platform,
        scale_w=w,
        **common,
    )
    agrees("LinearInt", [array(1, 8)], [array(5, 8)], platform, scale_w=w, **common)
    agrees("BmmInt", [array(1, 3, 8), array(1, 8, 4)], (), platform, scale_y=w, **common)
    agrees("iqMul", [array(1, 4, 3, 3), array(1, 4, 1, 1)], (), platform, scale_y=w, **common)
    constants = [array(4), array(4, dtype=np.int32, low=-(2**31), high=2**31 - 1)]
    agrees("BatchNorm2dInt", [array(1, 4, 3, 3)], constants, platform, scale_w=w, **common)


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q_o", (3, 5, 6, 7))
def test_sums(q_o, platform):
    """All pairs of a grid of integers, at every relation of the scales."""
    x, y, o = scales(platform, 5, 6, q_o)
    grid = np.arange(-128, 128, 5).astype(np.int8)
    pair = [a.reshape(1, -1) for a in np.meshgrid(grid, grid)]
    for op in ("iqAdd", "iqSub"):
        agrees(op, pair, (), platform, scale_x=x, scale_y=y * 1.1 if x > 32 else y, scale_o=o)
    agrees("iqCat", pair, (), platform, scale_x_0=x, scale_x_1=y, scale_o=o, dim=1)


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("kernel", ([2, 2], [3, 3], [2, 5], [12, 12], [4, 8]), ids=str)
@pytest.mark.parametrize("left", (-1, 0, 2))
def test_averages(left, kernel, platform):
    """Areas that are shifted, divided by, and too large for a byte."""
    x, o = scales(platform, 5, 5 + left)
    window = {"kernel_shape": kernel, "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 0}
    agrees("AvgPool2dInt", [array(1, 3, 13, 14)], (), platform, scale_x=x, scale_o=o, **window)


@pytest.mark.parametrize("ceil_mode", (0, 1))
@pytest.mark.parametrize("dtype", (np.int8, np.int16))
def test_max_pool(dtype, ceil_mode):
    """Padding never wins, also where everything is at the bottom."""
    x = array(1, 2, 7, 8, dtype=dtype)
    x[0, 0] = np.iinfo(dtype).min
    window = {
        "kernel_shape": [3, 2],
        "strides": [2, 2],
        "pads": [1, 1, 1, 0],
        "ceil_mode": ceil_mode,
    }
    agrees("MaxPool", [x], (), domain="", **window)


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q_o, bits", ((3, 8), (6, 8), (7, 8), (11, 16), (22, 32)))
def test_requant(q_o, bits, platform):
    """All int8 values, up and down."""
    x, o = scales(platform, 6, q_o)
    every = np.arange(-128, 128).astype(np.int8)[None]
    agrees("Requant", [every], (), platform, scale_x=x, scale_o=o, data_bits=8, o_bits=bits)


@pytest.mark.parametrize(
    "platform", [target.name for target in PLATFORMS if target.can_run("iqDiv")]
)
@pytest.mark.parametrize("q_o", (2, 4, 9))
def test_division(q_o, platform):
    """The NPU's quotients, by zero too."""
    x = array(1, 400, dtype=np.int32, low=-(2**30), high=2**30)
    y = array(1, 400, dtype=np.int32, low=-3000, high=3000)
    y[0, ::7] = 0
    agrees("iqDiv", [x, y], (), platform, scale_x=16.0, scale_y=4.0, scale_o=2.0**q_o)


def test_vendor_forms():
    """Split by `dims`, ArgMax, ShuffleChannel, GluInt, swapped padding modes."""
    x = array(1, 6, 4, 4)
    agrees("Split", [x], (), domain="", outputs=2, axis=1, dims=[2, 4])
    agrees("ArgMax", [array(1, 1, 1, 40)], (), domain="", axis=3)
    agrees("ShuffleChannel", [x], (), groups=3)
    agrees(
        "GluInt",
        [np.tile(np.arange(-128, 128).astype(np.int8), 2)[None]],
        (),
        "venusA",
        scale_x=8.0,
        scale_o=16.0,
    )
    pads = np.array([0, 0, 1, 2, 0, 0, 2, 1])
    for mode in ("constant", "reflect", "replicate"):
        agrees("iqPad", [x], [pads, np.array([7], np.int64)], "venus", mode=mode)


def reads_wide(platform, op_type):
    """Whether the platform's table takes int16."""
    how = next(target for target in PLATFORMS if target.name == platform).get_arithmetic(
        op_type, LutArithmetic
    )
    return how is not None and how.input_rule is TableInputRule.RIGHT_SHIFT_ONLY


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q", (0, 4, 9, 13))
@pytest.mark.parametrize("op_type", ("iqSigmoid", "iqTanh"))
def test_curves(op_type, q, platform):
    """Every input integer, above and below the scale that the table wants."""
    bits = 16 if reads_wide(platform, op_type) else 8
    every = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1), 1 if bits == 8 else 7)
    agrees(op_type, [every.astype(f"int{bits}")[None]], (), platform, scale_x=2.0**q, scale_o=128.0)


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q", (0, 3, 6))
@pytest.mark.parametrize("op_type", ("SoftmaxInt", "LogSoftmaxInt"))
def test_softmax(op_type, q, platform):
    """Rows of random numbers, of one number, of equal numbers; rows of two axes."""
    (x, o) = scales(platform, q, 7 if op_type == "SoftmaxInt" else 3)
    rows = array(1, 9, 3, 12)
    rows[0, 0] = 127
    rows[0, 1, :, 1:] = -128
    for axis in (-1, -2):
        agrees(op_type, [rows], (), platform, scale_x=x, scale_o=o, axis=axis)
    agrees(op_type, [array(1, 5, 1)], (), platform, scale_x=x, scale_o=o, axis=-1)


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q_o", (3, 5, 14))
def test_layer_norm(q_o, platform):
    """Rows of all kinds of spread, constant ones too."""
    x, w, o = scales(platform, 5, 6, q_o)
    rows = (array(1, 40, 24) * np.linspace(0, 1, 40)[None, :, None]).astype(np.int8)
    beta = array(24, dtype=np.int32, low=-(2**20), high=2**20)
    agrees("LayerNormInt", [rows], [array(24), beta], platform, scale_x=x, scale_w=w, scale_o=o)
    agrees(
        "LayerNormInt",
        [rows],
        [array(24), np.zeros(24, np.int32)],
        platform,
        scale_x=x,
        scale_w=w,
        scale_o=o,
    )


@pytest.mark.parametrize("platform", NAMES)
@pytest.mark.parametrize("q_i, q_h", ((5, 7), (2, 5), (12, 6)))
@pytest.mark.parametrize("op_type, gates, outputs", (("LSTMInt", 4, 3), ("GRUInt", 3, 2)))
def test_recurrent(op_type, gates, outputs, q_i, q_h, platform):
    """Both directions, sums above and below the gates' format, saturated gates."""
    x, h, i, o = scales(platform, q_i, q_h, 6, 5)
    units, width = 3, 6
    weights = [array(gates * units, width), array(gates * units, units)]
    biases = [array(gates * units, dtype=np.int32, low=-(2**14), high=2**14) for _ in range(2)]
    sizes = {"input_size": width, "hidden_size": units, "batch_first": 1, "o_bits": 8}
    for forward in (1, 0):
        agrees(
            op_type,
            [array(1, 9, width)],
            [*weights, *biases],
            platform,
            outputs=outputs,
            go_forward=forward,
            scale_x=x,
            scale_h=h,
            scale_o=h,
            scale_iw=i,
            scale_hw=o,
            **sizes,
        )


def test_gru_before_the_product():
    """The other place of the reset gate, on `generic` only."""
    weights = [
        array(9, 5),
        array(9, 3),
        array(9, dtype=np.int32, low=-999, high=999),
        np.zeros(9, np.int32),
    ]
    agrees(
        "GRUInt",
        [array(1, 7, 5)],
        weights,
        "generic",
        outputs=2,
        input_size=5,
        hidden_size=3,
        batch_first=1,
        linear_before_reset=0,
        scale_x=21.0,
        scale_h=100.0,
        scale_o=100.0,
        scale_iw=50.0,
        scale_hw=40.0,
    )


@pytest.mark.parametrize(
    "coordinates", ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
)
@pytest.mark.parametrize("ties", ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
def test_resize(coordinates, ties):
    """Nearest by every rule."""
    constants = [np.zeros(0, np.float32), np.array([1, 1, 2, 3], np.float32)]
    agrees(
        "Resize",
        [array(1, 2, 4, 5)],
        constants,
        "generic",
        domain="",
        mode="nearest",
        nearest_mode=ties,
        coordinate_transformation_mode=coordinates,
    )


# ---- the arithmetic itself -----------------------------------------------------------------------------------------


def test_arithmetic():
    """Rounding agrees with rational numbers; multipliers and the division with the simulator, which
    shares no code.
    """
    rng = np.random.default_rng(0)
    for v in (*range(-40, 41), 2**40 + 1, -(2**40) - 1):
        for s in range(-3, 6):
            assert _arithmetic.round_shift_half_up(v, s) == fixed.rsh(v, s)
    for ratio in (*np.exp(rng.uniform(-30, 10, 300)), 1.0, 0.5, 2.0**-20, 1 - 2.0**-53, 0.75):
        rescale = Rescale.from_ratio(float(ratio), 8)
        assert _arithmetic.fixed_point_multiplier(float(ratio)) == (
            rescale.multiplier,
            rescale.shift,
        )
    for n, d in zip(
        rng.integers(-(2**31), 2**31, 2000).tolist(),
        rng.integers(1, 2**31, 2000).tolist(),
        strict=True,
    ):
        for divisor in (d >> (n & 31) | 1, -d):
            assert _arithmetic.divide(n, divisor, n & 3) == luna_divide(n, divisor, n & 3)


def test_no_operator_is_forgotten():
    """Every integer operator has a plain class, or ONNX's own is right on integers."""
    missing = {form.name for form in INTEGER_OPS} - RUNNABLE
    assert not missing, f"write a class for {missing} in lingeronnx/operators/*/reference.py"


def test_unknown_platform():
    """A misspelt platform is the user's fault."""
    with pytest.raises(lo.ConfigError, match="did you mean 'venus'"):
        lo.reference_ops("venu")


def test_float_nodes_stay_onnxs():
    """Between integer nodes the evaluator's own float operators run, of the same names too."""
    x = np.array([[[[-1.5, 2.0], [0.25, 4.0]]]], np.float32)
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[2, 2]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    (y,) = ReferenceEvaluator(model, new_ops=lo.reference_ops()).run(None, {"x": x})
    assert y.dtype == np.float32
    assert y.item() == 4.0
