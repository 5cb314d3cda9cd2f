"""What exporters write, between two layers, one smallest graph for each: all of it in integers, and
right.

Right means that the chip's part packs and gives our integers (the tests' own packer says so), and
that it is as near to the float model as the two layers alone allow.
"""

import numpy as np
import pytest

from lingeronnx.api import check, quantize
from lingeronnx.ir import ir
from lingeronnx.targets import PLATFORMS
from tests.packability import evaluate_result
from tests.passes.helpers import positive, proto, rand

MAP, ROWS, LINE = "3,8,8", "4,16", "4,16"
#: kind of graph -> (shape of a sample, the layer in front, the one behind, its weights)
FRAMES = {
    "map": (
        MAP,
        "c = Conv<pads = [1, 1, 1, 1]>(x, w)",
        "y = Conv(z, v)",
        (8, 3, 3, 3),
        (4, 8, 3, 3),
    ),
    "rows": (ROWS, "c = MatMul(x, w)", "y = MatMul(z, v)", (16, 16), (16, 5)),
    "line": (LINE, "c = Conv<pads = [1, 1]>(x, w)", "y = Conv(z, v)", (8, 4, 3), (4, 8, 3)),
}
ONE, THREE, EIGHTH = np.float32(1), np.float32(3), np.float32(0.125)
GAMMA, BETA, AXIS = positive(16), rand(16), np.array([-1])
CENTRED = "m = ReduceMean<axes = [-1]>(c) d = Sub(c, m) "
ROOT = "v0 = ReduceMean<axes = [-1]>(q) e = Add(v0, eps) r = Sqrt(e) "
NORM = {"eps": np.float32(1e-5), "gamma": GAMMA, "beta": BETA}
NHALF = "a = Reshape(c, fold) b = Transpose<perm = [0, 2, 1, 3, 4]>(a) z = Reshape(b, back)"
SHUFFLED = {"fold": np.array([-1, 2, 4, 8, 8]), "back": np.array([-1, 8, 8, 8])}
HALVES = """a = Reshape(c, fold) b = Transpose<perm = [1, 0, 2]>(a) d = Reshape(b, back)
    e = Gather<axis = 0>(d, zero) f = Gather<axis = 0>(d, one) z = Concat<axis = 1>(f, e)"""
TWICE = {"scales": np.array([1, 1, 2, 2], np.float32)}

#: pattern -> (kind of graph, what stands between the layers (c -> z), its constants)
TABLE = {
    "LeakyRelu of a line": ("line", "z = LeakyRelu<alpha = 0.2>(c)", {}),
    "PRelu of rows": ("rows", "z = PRelu(c, k)", {"k": positive(4, 1) / 4}),
    "batch normalisation of a line": (
        "line",
        "r = Relu(c) s = BatchNormalization(r, g, b, m, k) z = Sigmoid(s)",
        {"g": positive(8), "b": rand(8), "m": rand(8), "k": positive(8)},
    ),
    "ConvTranspose of a line": (
        "line",
        "z = ConvTranspose<strides = [2], pads = [1, 1]>(c, k)",
        {"k": rand(8, 8, 4)},
    ),
    "a long kernel along a line": ("line", "z = Conv<pads = [4, 4]>(c, k)", {"k": rand(8, 8, 9)}),
    "a dilated kernel along a line": (
        "line",
        "z = Conv<pads = [16, 0], dilations = [8]>(c, k)",
        {"k": rand(8, 8, 3)},
    ),
    "a long depthwise kernel along a line, as far around": (
        "line",
        "z = Conv<pads = [6, 6], group = 8>(c, k)",
        {"k": rand(8, 1, 13)},
    ),
    "GELU of channels that come last": (
        "map",
        """t = Transpose<perm = [0, 2, 3, 1]>(c) m = MatMul(t, k) d = Div(m, root) e = Erf(d) p = Add(e, one)
            q = Mul(m, p) h = Mul(q, half) z = Transpose<perm = [0, 3, 1, 2]>(h)""",
        {
            "k": 0.3 * rand(8, 8),
            "root": np.float32(np.sqrt(2)),
            "one": ONE,
            "half": np.float32(0.5),
        },
    ),
    "SiLU of a map": ("map", "s = Sigmoid(c) z = Mul(c, s)", {}),
    "tanh of a map": ("map", "z = Tanh(c)", {}),
    "tanh of rows beside what they come from": ("rows", "t = Tanh(c) z = Add(t, x)", {}),
    "gates of a line": (
        "line",
        """s = Slice(c, zero, four, one) t = Slice(c, four, eight, one) a = Tanh(s) b = Sigmoid(t)
            d = Mul(a, b) z = Concat<axis = 1>(d, d)""",
        {
            "zero": np.array([0]),
            "four": np.array([4]),
            "eight": np.array([8]),
            "one": np.array([1]),
        },
    ),
    "a reflection around a map": (
        "map",
        """z = Pad<mode = "reflect">(c, p)""",
        {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])},
    ),
    "the edge around a line": (
        "line",
        """z = Pad<mode = "edge">(c, p)""",
        {"p": np.array([0, 0, 2, 0, 0, 1])},
    ),
    "every second row and column": (
        "map",
        "z = Slice(c, start, end, axes, step)",
        {
            "start": np.array([0, 1]),
            "end": np.array([99, 99]),
            "axes": np.array([2, 3]),
            "step": np.array([2, 2]),
        },
    ),
    "the larger of two maps": ("map", "r = Conv(c, k) z = Max(c, r)", {"k": rand(8, 8, 1, 1)}),
    "squares of rows": ("rows", "z = Mul(c, c)", {}),
    "absolute values of a line": ("line", "z = Abs(c)", {}),
    "sigmoid of a map": ("map", "z = Sigmoid(c)", {}),
    "nearest by 2, to a computed size": (
        "map",
        """a = Shape(c) b = Slice(a, zero, two) s = Concat<axis = 0>(b, size) z = Resize<mode = "nearest",
            coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(c, , , s)""",
        {"zero": np.array([0]), "two": np.array([2]), "size": np.array([16, 16])},
    ),
    "mean over channels": (
        "map",
        "r = Relu(c) m = ReduceMean<axes = [1]>(r) s = Conv(m, k) z = Add(r, s)",
        {"k": rand(8, 1, 1, 1)},
    ),
    "sum of a line": (
        "rows",
        "r = Relu(c) s = ReduceSum<keepdims = 1>(r, k) z = Add(r, s)",
        {"k": np.array([1])},
    ),
    "excitation of a line": (
        "line",
        "r = Relu(c) p = GlobalAveragePool(r) s = Sigmoid(p) z = Mul(r, s)",
        {},
    ),
    "a map for all channels": (
        "map",
        "r = Relu(c) s = Conv(r, k) z = Mul(r, s)",
        {"k": rand(1, 8, 1, 1)},
    ),
    "zeros around a line": ("line", "z = Pad(c, p)", {"p": np.array([0, 0, 2, 0, 0, 3])}),
    "zeros around a map": (
        "map",
        "s = Relu(c) z = Pad(s, p)",
        {"p": np.array([0, 0, 1, 0, 0, 0, 0, 2])},
    ),
    "a stride of 3": (
        "map",
        "z = Conv<strides = [3, 3], pads = [1, 1, 1, 1]>(c, k)",
        {"k": rand(8, 8, 3, 3)},
    ),
    "channel shuffle": ("map", NHALF, SHUFFLED),
    "channel shuffle, batch spelled out": (
        "map",
        NHALF,
        {"fold": np.array([1, 2, 4, 8, 8]), "back": np.array([1, 8, 8, 8])},
    ),
    "channel shuffle, halves through the batch": (
        "map",
        HALVES,
        {
            "fold": np.array([-1, 2, 64]),
            "back": np.array([2, -1, 4, 8, 8]),
            "zero": np.array(0),
            "one": np.array(1),
        },
    ),
    "AveragePool of a line": ("line", "z = AveragePool<kernel_shape = [2], strides = [2]>(c)", {}),
    "MaxPool of a line": (
        "line",
        "z = MaxPool<kernel_shape = [3], strides = [2], pads = [1, 1]>(c)",
        {},
    ),
    "padding that does not count": (
        "map",
        "z = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(c)",
        {},
    ),
    "ceil_mode": (
        "map",
        "z = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(c)",
        {},
    ),
    "division behind a Relu": ("map", "r = Relu(c) z = Div(r, k)", {"k": THREE}),
    "division of every channel": ("map", "r = Relu(c) z = Div(r, k)", {"k": positive(8, 1, 1)}),
    "division of every place": ("map", "r = Relu(c) z = Div(r, k)", {"k": positive(8, 8, 8)}),
    "division of a sum": ("rows", "r = Add(c, x) z = Div(r, k)", {"k": THREE}),
    "one minus": ("rows", "r = Sigmoid(c) z = Sub(k, r)", {"k": ONE}),
    "a summand": ("rows", "r = Sigmoid(c) z = Add(r, k)", {"k": EIGHTH}),
    "a sign": ("rows", "s = Neg(c) r = Add(s, x) t = Sigmoid(c) z = Add(r, t)", {}),
    "layer norm of tf2onnx": (
        "rows",
        CENTRED
        + "q = Mul(d, d) "
        + ROOT
        + """i = Reciprocal(r) k = Mul(i, gamma) a = Mul(c, k)
            b = Mul(m, k) s = Sub(beta, b) z = Add(a, s)""",
        NORM | {"eps": np.float32(1e-3)},
    ),
    "layer norm of JAX": (
        "rows",
        """s0 = ReduceSum(c, axis) m = Div(s0, count) q = Mul(c, c) s1 = ReduceSum(q, axis)
            p = Div(s1, count) mm = Mul(m, m) v0 = Sub(p, mm) e = Add(v0, eps) r = Sqrt(e) i = Reciprocal(r)
            k = Mul(i, gamma) d = Sub(c, m) n = Mul(d, k) z = Add(n, beta)""",
        NORM | {"axis": AXIS, "count": np.float32(16), "eps": np.float32(1e-6)},
    ),
    "layer norm of PyTorch": (
        "rows",
        CENTRED
        + "q = Pow(d, two) "
        + ROOT
        + """n = Div(d, r) g = Mul(n, gamma)
        z = Add(g, beta)""",
        NORM | {"two": np.float32(2)},
    ),
    "layer norm of a sum, epsilon of Keras": (
        "rows",
        "h = Add(c, x) " + CENTRED.replace("(c", "(h") + "q = Mul(d, d) " + ROOT + "z = Div(d, r)",
        {"eps": np.float32(1e-3)},
    ),
    "nearest by 2": (
        "map",
        """z = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor">(c, , scales)""",
        TWICE,
    ),
    "linear by 2": (
        "map",
        """z = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(c, , scales)""",
        TWICE,
    ),
}


def model(name):
    kind, steps, held = TABLE[name]
    size, front, behind, w, v = FRAMES[kind]
    shape = {"map": "O,P,Q", "rows": "4,5", "line": "O,P"}[kind]
    text = f"g (float[N,{size}] x) => (float[N,{shape}] y) {{ {front} {steps} {behind} }}"
    return ir.from_proto(proto(text, w=0.3 * rand(*w), v=0.3 * rand(*v), **held))


def samples(name):
    size = [int(n) for n in FRAMES[TABLE[name][0]][0].split(",")]
    return {"x": np.random.default_rng(5).standard_normal((24, *size)).astype(np.float32)}


@pytest.mark.sweep
@pytest.mark.parametrize("target", PLATFORMS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", TABLE)
def test_pattern(name, target):
    found = quantize(model(name), samples(name), platform=target, effort="fast")
    report = found.report
    assert [*report.float_nodes, *report.host_part] == []
    assert report.integer_macs == 1
    assert report.outputs["y"]["sqnr"] > 25
    if target.has_packer:
        assert report.chip_ready
        if not name.startswith(
            "layer norm"
        ):  # which writes past its plan, over what nobody needs: a warning
            assert evaluate_result(found, target.name).problems == []


MENDED = "fixed by --fit (on by default in quantize)"
SAID = {
    "one minus": "Sub Sub_z -> z: venus has no operator for Sub with a constant; between layers, use a "
    "BatchNormalization; "
    f"{MENDED}",
    "layer norm of a sum, epsilon of Keras": "LayerNormalization Div_z -> z: epsilon is 1e-05 or "
    "less (less shows only "
    f"in rows that deviate by less than 0.01); here 0.001; {MENDED}",
}


@pytest.mark.parametrize("name", SAID)
def test_check_names_the_operator_and_the_reason_once(name):
    lines = check(model(name), platform="venus").lines()
    assert lines[0].startswith("venus: 1 limit is violated at 1 node")
    assert lines[1] == SAID[name]
    assert sum(SAID[name].split("; ")[0] in line for line in lines) == 1
    assert "with --fit nothing would remain" in lines
    assert not any("iqTable" in line for line in lines)


def test_check_names_what_the_user_wrote():
    """Not the function that passes join nodes to, nor the table that another platform has."""
    steps = "e = Add(c, k) r = Sqrt(e) z = Div(k, r)"
    text = (
        f"g (float[N,4,16] x) => (float[N,4,5] y) {{ c = MatMul(x, w) {steps} y = MatMul(z, v) }}"
    )
    graph = ir.from_proto(proto(text, w=rand(16, 16), v=rand(16, 5), k=ONE))
    found = check(graph, platform="venus")
    assert [(v.op_type, v.rule) for v in found] == [
        ("Sqrt, Div", "venus has no operator for Sqrt, Div")
    ]
    assert "--fit cannot fix any of it" in found.lines()
