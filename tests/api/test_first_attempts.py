"""What people bring, and what they read: each input is quantized, or gets one line that names it
and the remedy.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.ir import ir
from tests.passes.helpers import proto, rand
from tests.passes.test_layer_norm import FUSED, FUSED_HELD

_LINEAR = "g (float[N,4] x) => (float[N,3] y) { a = MatMul(x, w) y = Relu(a) }"
_TWICE = "g (float[N,4] x) => (float[N,3] y) { a = MatMul(x, w) y = Mul(a, a) }"
_STATE = """g (float[N,4] x, float[N,3] h) => (float[N,3] y, float[N,3] h_out) {
    a = MatMul(x, w) h_out = Add(a, h) y = Relu(a)
}"""
_STATE_AND_NUMBER = """g (float[N,4] x, float[N,3] h, int64 rate) => (float[N,3] y, float[N,3] h_out) {
    a = MatMul(x, w) r = Cast<to = 1>(rate) b = Mul(a, r) h_out = Add(b, h) y = Relu(a)
}"""
_NUMBER = (
    "g (float[N,4] x, int64 rate) => (float[N,3] y) { r = Cast<to = 1>(rate) a = MatMul(x, "
    "w) y = Mul(a, r) }"
)
_ONE = (
    "g (float[1,4] x) => (float[1,3] y) { f = Reshape(x, flat) u = Unsqueeze(f, z) y = "
    "MatMul(u, w) }"
)
_SHUFFLED = """g (float[N,4,3,3] x) => (float[N,4,3,3] y) {
    c = Conv(x, w) a = Reshape(c, parts) t = Transpose<perm = [0, 2, 1, 3, 4]>(a) b = Reshape(t, whole) y = Conv(b, w)
}"""
_SHUFFLE = {
    "w": rand(4, 4, 1, 1),
    "parts": np.array([1, 2, 2, 3, 3]),
    "whole": np.array([1, 4, 3, 3]),
}
_OVER = (
    "g (float[N,4] x) => (float[N,3] y) { a = MatMul(x, w) r = Sigmoid(a) d = Div(r, k) y = "
    "MatMul(d, v) }"
)
_POOLED = (
    "g (float[N,4,8] x) => (float[N,3,4] y) { c = Conv(x, w) y = "
    "AveragePool<kernel_shape=[2], strides=[2]>(c) }"
)
_MINUS = "g (float[-1,4] x) => (float[-1,3] y) <float[-1,3] a> { a = MatMul(x, w) y = Relu(a) }"
_SPELLED = """g (float[1,6,4] x) => (float[1,T] y) {
    t = Transpose<perm = [1, 0, 2]>(x) f = Reshape(t, flat) m = MatMul(f, w) y = Reshape(m, back)
}"""
_SPELLING = {"flat": np.array([6, 4]), "back": np.array([6, 1, -1])}
_STATED = """g (float[{0},4] x) => (float[{1}] y) {{
    t = Transpose<perm = [1, 0, 2]>(x) l = GRU<hidden_size = 3>(t, gw, gr, "", "", start) y = Squeeze(l, one)
}}"""
_STATES = {"gw": rand(1, 9, 4), "gr": rand(1, 9, 3), "start": rand(1, 1, 3), "one": np.array([1])}
_WORDS = (
    "g (string[N,4] s) => (float[N,3] y) { q = Equal(s, word) c = Cast<to = 1>(q) y = "
    "MatMul(c, w) }"
)
_WEIGHTS = {"w": rand(4, 3)}
_BAND = """g (float[N,4] x, float low, float high) => (float[N,3] y) {
    a = MatMul(x, w) f = GreaterOrEqual(table, low) t = Less(table, high) b = And(f, t) y = Where(b, a, none)
}"""
_BANDS = {"table": np.float32([1.5, 2.5, 4.5]), "none": np.float32(0)}
_SURE = """g (float[N,4] x, float least) => (int64[N] y) {
    a = MatMul(x, w) p = Softmax<axis = 1>(a) m = ReduceMax<axes = [1], keepdims = 0>(p)
    k = ArgMax<axis = 1, keepdims = 0>(p) b = Less(m, least) y = Where(b, other, k)
}"""
_FRAMES = """g (float[1,samples] x{0}) => (float[1,frames] y) {{
    f = Reshape(x, cut) u = Unsqueeze(f, first) a = MatMul(u, w) b = Relu(a) c = MatMul(b, v) {1} y = Squeeze(d, last)
}}"""
_CUTS = {
    "cut": np.array([-1, 4]),
    "first": np.array([0]),
    "last": np.array([2]),
    "w": rand(4, 8),
    "v": rand(8, 1),
}
_MANY, _ROW = rand(16, 4), {"x": rand(16, 4)}

#: What is brought -> (model, its constants, calibration data, options, what is read; None: it is quantized)
TABLE = {
    "a tensor read twice": (_TWICE, _WEIGHTS, _ROW, (), None),
    "another name, one input": (
        _LINEAR,
        _WEIGHTS,
        {"data": _MANY},
        (),
        "array 'data' is fed to input 'x'",
    ),
    "a wrong name": (
        _STATE,
        _WEIGHTS,
        {"x": _MANY, "g": rand(16, 3)},
        (),
        "'g' is not an input of the model; inputs are x, h",
    ),
    "another size": (
        _LINEAR,
        _WEIGHTS,
        {"x": rand(16, 5)},
        (),
        "has shape [16, 5], the model takes [N, 4]",
    ),
    "no state in the data": (_STATE, _WEIGHTS, _ROW, (), "feed it back with --state h_out=h"),
    "a state that is not there": (
        _STATE,
        _WEIGHTS,
        _ROW,
        ("--state", "h_new=h"),
        "no output 'h_new'",
    ),
    "a state fed back": (_STATE, _WEIGHTS, _ROW, ("--state", "h_out=h", "--calls", "all"), None),
    "a state fed back, and no number": (
        _STATE_AND_NUMBER,
        _WEIGHTS,
        _ROW,
        ("--state", "h_out=h", "--calls", "all"),
        "fix it with --fix rate=1",
    ),
    "a single number": (_NUMBER, _WEIGHTS, {**_ROW, "rate": np.array(8)}, (), None),
    "a number that the data lack": (
        _NUMBER,
        _WEIGHTS,
        _ROW,
        (),
        "fix it with --fix rate=1 (rate: this value has",
    ),
    "numbers that a table is compared with": (
        _BAND,
        _WEIGHTS | _BANDS,
        _ROW,
        (),
        (
            "fix it with --fix low=1.5 --fix high=6 (low, high: compared with 1.5 to 4.5, all of "
            "which pass)"
        ),
    ),
    "these numbers fixed": (
        _BAND,
        _WEIGHTS | _BANDS,
        _ROW,
        ("--fix", "low=1.5", "--fix", "high=6"),
        None,
    ),
    "numbers in the data": (
        _BAND,
        _WEIGHTS | _BANDS,
        _ROW | {"low": np.float32(1), "high": np.float32(3)},
        (),
        None,
    ),
    "a number that shares are compared with": (
        _SURE,
        _WEIGHTS | {"other": np.array(-1)},
        _ROW,
        (),
        "fix it with --fix least=0.5 (least: compared with probabilities",
    ),
    "a number fixed": (_NUMBER, _WEIGHTS, _ROW, ("--fix", "rate=8"), None),
    "a wrong input fixed": (_NUMBER, _WEIGHTS, _ROW, ("--fix", "rat=8"), "did you mean 'rate'?"),
    "a layer norm of Keras": (FUSED, FUSED_HELD, {"x": rand(16, 6)}, (), None),
    "one Reshape spelled for one sample": (_SHUFFLED, _SHUFFLE, {"x": rand(16, 4, 3, 3)}, (), None),
    "division by a constant": (
        _OVER,
        {"w": rand(4, 4), "k": np.float32(3), "v": rand(4, 3)},
        _ROW,
        (),
        None,
    ),
    "a pool of lines": (_POOLED, {"w": rand(3, 4, 1)}, {"x": rand(16, 4, 8)}, (), None),
    "NaN in the data": (
        _LINEAR,
        _WEIGHTS,
        {"x": rand(16, 4) * np.nan},
        (),
        "has NaN or infinity in sample 0",
    ),
    "sizes of -1": (_MINUS, _WEIGHTS, _ROW, (), None),
    "a wrong output shape, time first": (
        _SPELLED,
        _WEIGHTS | _SPELLING,
        {"x": rand(16, 6, 4)},
        (),
        None,
    ),
    "states for one sample": (
        _STATED.format("N,6", "6,N,3"),
        _STATES,
        {"x": rand(16, 6, 4)},
        (),
        None,
    ),
    "states for one sample, open steps": (
        _STATED.format("N,T", "T,N,3"),
        _STATES,
        {"x": rand(16, 6, 4)},
        (),
        None,
    ),
    "frames of one sample": (
        _FRAMES.format("", "d = Relu(c)"),
        _CUTS,
        {"x": rand(16, 24)},
        (),
        None,
    ),
    "frames, and a number": (
        _FRAMES.format(", float k", "d = Mul(c, k)"),
        _CUTS,
        {"x": rand(16, 24), "k": np.float32(2)},
        (),
        None,
    ),
    "text": (
        _WORDS,
        {"w": rand(4, 3), "word": np.array(["a"], object)},
        {"s": rand(16, 4)},
        (),
        (
            "input 's' is text (strings, [?, 4]), which no platform supports; it is converted to "
            "numbers in 'q' (Equal)"
        ),
    ),
    "made for one sample": (
        _ONE,
        _WEIGHTS | {"flat": np.array([4]), "z": np.array([0])},
        _ROW,
        (),
        None,
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", TABLE)
def test_first_attempt(name, tmp_path, monkeypatch):
    text, held, data, options, words = TABLE[name]
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(text, **held), "m.onnx")
    np.savez("calib.npz", **data)
    run = CliRunner().invoke(
        cli.main, ["quantize", "m.onnx", "--calib", "calib.npz", "--platform", "generic", *options]
    )
    said = " ".join(run.output.split())
    assert "Traceback" not in said
    assert "onnxruntime" not in said
    if words is not None:
        assert words in said
    if run.exit_code:
        assert run.exit_code == 1
        assert words is not None
        assert said.startswith("error: ")
        assert not (tmp_path / "m_quant.onnx").exists()
    else:
        assert (tmp_path / "m_quant.onnx").exists()


def test_infinities_of_constants_are_the_hosts(tmp_path):
    """What a mask or a padding of the model makes infinite stays in float; the rest is
    quantized.
    """
    text = """g (float[N,4] x) => (float[N,5] y) { a = MatMul(x, w) r = Relu(a) p = Pad(r, more, low)
        c = Concat<axis = 1>(p, x) s = Slice(c, from, to, one) t = Transpose<perm = [0, 1]>(s) y = Identity(t) }"""
    held = {
        "more": np.array([0, 1, 0, 1]),
        "low": np.float32(-np.inf),
        "from": [0],
        "to": [5],
        "one": [1],
    }
    onnx.save(
        proto(text, w=rand(4, 3), **{k: np.array(v) for k, v in held.items()}), tmp_path / "m.onnx"
    )
    for platform in ("generic", "venus"):
        found = lo.quantize(tmp_path / "m.onnx", {"x": _MANY}, platform=platform)
        (y,) = lo.Session(found.graph).run(["y"], {"x": rand(2, 4, seed=1)})
        assert np.isneginf(y[:, 0]).all()
        assert np.isfinite(y[:, 1:4]).all()
        assert found.report.integer_macs == 1


#: What exporters write -> (opset, graph, constants). Old opsets hold as attributes what newer ones read as inputs.
_RELATIVES = {
    "Clip with attributes": (
        7,
        "{ c = Conv<pads = [1, 1, 1, 1]>(x, w) a = Clip<min = -0.4, max = 3.0>(c) y = Conv(a, v) }",
        {},
    ),
    "Slice and Pad with attributes": (
        9,
        (
            "{ c = Conv(x, w1) s = Slice<axes = [2], starts = [0], ends = [4]>(c) "
            "p = Pad<pads = [0, 0, 1, 1, 0, 0, 1, 1]>(s) y = Conv(p, v) }"
        ),
        {"w1": rand(5, 4, 1, 1)},
    ),
    "Upsample": (
        9,
        (
            '{ c = Conv<pads = [1, 1, 1, 1]>(x, w) u = Upsample<mode = "nearest">(c, sizes) y = '
            "Conv(u, v) }"
        ),
        {"sizes": np.float32([1, 1, 2, 2])},
    ),
    "Dropout and batch norm of opset 7": (
        7,
        (
            "{ c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization<epsilon = 0.001>(c, g, "
            "b, m, g) "
            "r = Relu(n) d = Dropout<ratio = 0.5>(r) y = Conv(d, v) }"
        ),
        {"g": np.abs(rand(5)) + 0.5, "b": rand(5), "m": rand(5, seed=1)},
    ),
    "a softmax over all behind axis 1": (
        11,
        "{ c = Conv(x, w) r = Relu(c) f = Flatten(r) s = Softmax<axis = 1>(f) y = MatMul(s, t) }",
        {"t": rand(80, 3)},
    ),
    "squeezed means": (
        11,
        (
            "{ c = Conv(x, w) r = Relu(c) m = ReduceMean<axes = [2, 3], keepdims = 1>(r) "
            "s = Squeeze<axes = [2, 3]>(m) y = Gemm<transB = 1>(s, t, b) }"
        ),
        {"t": rand(3, 5), "b": rand(3)},
    ),
    "names of keras": (
        13,
        (
            '{ "in:0" = Transpose<perm = [0, 1, 2, 3]>(x) "m/conv2d/Conv2D:0" = Conv<pads = [1, 1, '
            '1, 1]>("in:0", w) '
            '"m/re_lu/Relu;m/bn/FusedBatchNorm" = Relu("m/conv2d/Conv2D:0") '
            'y = Conv("m/re_lu/Relu;m/bn/FusedBatchNorm", v) }'
        ),
        {},
    ),
    "channels last": (
        13,
        (
            "{ n = Transpose<perm = [0, 2, 3, 1]>(x) b = Transpose<perm = [0, 3, 1, 2]>(n) "
            "c = Conv<pads = [1, 1, 1, 1]>(b, w) l = Transpose<perm = [0, 2, 3, 1]>(c) a = Add(l, "
            "k) r = Relu(a) "
            "o = Transpose<perm = [0, 3, 1, 2]>(r) y = Conv(o, v) }"
        ),
        {"k": rand(5)},
    ),
    "maximum of a leaky ReLU": (
        13,
        (
            "{ c = Conv<pads = [1, 1, 1, 1]>(x, w) l = LeakyRelu<alpha = 0.2>(c) a = Max(l, k) y = "
            "Conv(a, v) }"
        ),
        {"k": np.float32(-0.4)},
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("platform", ["generic", "venus"])
@pytest.mark.parametrize("name", _RELATIVES)
def test_relatives(name, platform):
    """What exporters write, old and new, is quantized with defaults."""
    opset, body, more = _RELATIVES[name]
    held = {"w": rand(5, 4, 3, 3), "v": rand(3, 5, 1, 1), **more}
    held = {key: array for key, array in held.items() if f"{key})" in body or f"{key}," in body}
    shape = "[N,3]" if "t" in held else "[N,a,b,c]"
    model = proto(f"g (float[N,4,6,6] x) => (float{shape} y) {body}", opset=opset, **held)
    found = lo.quantize(ir.from_proto(model), {"x": rand(32, 4, 6, 6)}, platform=platform)
    assert found.report.outputs["y"]["sqnr"] > 20
    assert found.report.integer_macs == 1
