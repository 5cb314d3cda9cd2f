# ruff: noqa: E501 (ONNX text reads better in long lines)
"""The many ways to write a model: opsets, number types, batch sizes, control flow, names. All end as the same few."""

import numpy as np
import onnx
import pytest

from lingeronnx.common.errors import LingerOnnxError, ModelError
from lingeronnx.ir import ir
from lingeronnx.quantization.normalize import normalize, resolve_control_flow, run_entry_passes
from lingeronnx.quantization.normalize.entry.convert_model import convert_opset
from lingeronnx.quantization.normalize.folding.identity import drop_identity
from lingeronnx.quantization.normalize.folding.zero_states import drop_zero_states
from tests.onnx_files.helpers import close, images, proto, quantized, rand
from tests.passes.helpers import (
    check_pass_fires,
    check_pass_leaves_alone,
    feeds,
    graph,
    ops,
    outputs,
    positive,
)


def readable(model, *, atol=1e-5, whole=True):
    """Take `model` through entry and normalisation (or `whole` False: control flow only); its outputs must stay."""
    feed = feeds(model, 4)
    before = outputs(model, feed)
    found, notes = run_entry_passes(model)
    resolve_control_flow(found, {name: array[:1] for name, array in feed.items()})
    if whole:
        normalize(found)
    onnx.checker.check_model(ir.to_proto(found), full_check=True)
    after = outputs(found, {name: array.astype(np.float32) for name, array in feed.items()})
    for name, array in after.items():
        np.testing.assert_allclose(array, before[name], rtol=0, atol=atol)
    return found, notes


# ---- opsets --------------------------------------------------------------------------------------

OLD = {
    "Clip": (9, "y = Clip<min: float = 0.0, max: float = 6.0>(x)"),
    "Clip, open": (10, "y = Clip<max: float = 0.5>(x)"),
    "Pad": (9, "y = Pad<pads = [0, 0, 0, 1, 0, 0, 0, 2], value: float = 0.5>(x)"),
    "Pad, zeros": (10, "y = Pad<pads = [0, 0, 1, 1, 0, 0, 0, 2]>(x)"),
    "Pad, reflect": (9, 'y = Pad<pads = [0, 0, 1, 1, 0, 0, 0, 2], mode = "reflect">(x)'),
    "Slice": (9, "y = Slice<starts = [1, 0], ends = [3, 4], axes = [1, 3]>(x)"),
    "Slice, first axes": (9, "y = Slice<starts = [0, 1], ends = [100, 3]>(x)"),
    "Upsample 7": (8, 'y = Upsample<scales = [1.0, 1.0, 2.0, 3.0], mode = "nearest">(x)'),
    "Upsample 9": (9, 'y = Upsample<mode = "linear">(x, scales)'),
    "Upsample 9, nearest": (9, "y = Upsample(x, scales)"),
    "Resize 10": (10, "y = Resize(x, scales)"),
    "Dropout": (9, "y = Dropout<ratio: float = 0.3>(x)"),
    "BatchNormalization 7": (8, "y = BatchNormalization<spatial = 1>(x, g, b, m, v)"),
    "TopK": (9, "t, i = TopK<k = 2, axis = 3>(x) y = Relu(t)"),
    "Split": (11, "a, b2 = Split<axis = 1, split = [1, 3]>(x) y = Relu(b2)"),
    "Squeeze": (11, "u = Unsqueeze<axes = [1]>(x) y = Squeeze<axes = [1]>(u)"),
    "Softmax": (11, "y = Softmax<axis = 1>(x)"),
}


@pytest.mark.parametrize("name", OLD)
def test_old_forms(name):
    """Attributes become inputs, retired operators their successors; the result is opset 12 and the same numbers."""
    opset, body = OLD[name]
    model = graph(
        f"g (float[N,4,6,6] x) => (float[N,A,B,C] y) {{ {body} }}",
        opset=opset,
        scales=np.array([1, 1, 2, 2], np.float32),
        g=rand(4),
        b=rand(4),
        m=rand(4),
        v=positive(4),
    )
    found, _ = readable(model)
    assert found.opset_imports[""] == 12
    assert convert_opset(found).changes == 0


@pytest.mark.sweep
@pytest.mark.parametrize("opset", (9, 10, 11, 12, 13, 15, 18, 21, onnx.defs.onnx_opset_version()))
def test_one_network_in_every_opset(opset, tmp_path):
    """A convolutional net as each opset writes it is the same integer graph."""
    new, pads = opset >= 11, np.array([0, 0, 0, 0, 0, 0, 1, 1])
    pad = "Pad(x, pads)" if new else "Pad<pads = [0, 0, 0, 0, 0, 0, 1, 1]>(x)"
    clip = "Clip(n, zero, six)" if new else "Clip<min: float = 0.0, max: float = 6.0>(n)"
    mean = (
        "ReduceMean<keepdims = 0>(r, axes)"
        if opset >= 18
        else "ReduceMean<axes = [2, 3], keepdims = 0>(r)"
    )
    text = f"""g (float[N,3,9,9] x) => (float[N,5] y) {{ p = {pad} c = Conv<strides = [2, 2]>(p, w)
        n = BatchNormalization(c, g, b, m, v) r = {clip} a = {mean} y = Gemm<transB = 1>(a, w2, b2) }}"""
    model = proto(
        text,
        opset=opset,
        pads=pads,
        zero=np.float32(0),
        six=np.float32(6),
        axes=np.array([2, 3]),
        w=rand(4, 3, 3, 3),
        g=rand(4),
        b=rand(4),
        m=rand(4),
        v=positive(4),
        w2=rand(5, 4),
        b2=rand(5),
    )
    found = quantized(model, tmp_path, images(3, 9, 9))
    assert found.report.integer_macs == 1
    assert not found.report.float_nodes
    assert close(found)


def test_too_old(tmp_path):
    """Before opset 6 sizes are attributes."""
    with pytest.raises(ModelError, match="opset 5; the oldest supported opset is 6"):
        quantized(proto("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }", opset=5), tmp_path)


def test_gone_without_successor():
    """BatchNormalization over single elements (spatial = 0)."""
    text = (
        "g (float[N,4] x) => (float[N,4] y) { y = BatchNormalization<spatial = 0>(x, g, g, g, g) }"
    )
    with pytest.raises(ModelError, match="spatial = 0 does not exist in newer opsets"):
        convert_opset(graph(text, opset=8, g=positive(4)))


def test_new_opsets_stay():
    """Opset 12 and newer is the model's own business."""
    check_pass_leaves_alone(
        graph("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }", opset=12), convert_opset
    )


# ---- number types --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), (("float16", np.float16), ("double", np.float64)))
def test_other_floats(kind, dtype, tmp_path):
    """Weights, constants, casts, inputs and outputs become float32, with a note; integers stay."""
    text = f"""g ({kind}[N,4] x) => ({kind}[N,3] y) {{ a = MatMul(x, w) k = Constant<value = {kind} {{2}}>() m = Mul(a, k)
        c = Cast<to = {1 if kind == "double" else 10}>(m) s = Shape(c) z = ConstantOfShape<value = double[1] {{0.5}}>(s) e = Cast<to = 1>(z)
        f = Cast<to = 1>(c) p = Add(f, e) y = Cast<to = {11 if kind == "double" else 10}>(p) }}"""
    model = proto(text, w=rand(4, 3).astype(dtype))
    found = quantized(model, tmp_path, images(4).astype(dtype))
    assert {v.dtype.name for v in (*found.graph.graph.inputs, *found.graph.graph.outputs)} == {
        "FLOAT"
    }
    assert any("computed in float32" in note for note in found.report.notes)
    assert close(found)


def test_a_mask_that_float32_cannot_hold():
    """-1e308 becomes float32's smallest number, not minus infinity."""
    model = graph("g (double[N,4] x) => (double[N,4] y) { y = Add(x, k) }", k=np.full(4, -1e308))
    found, _ = run_entry_passes(model)
    assert np.isfinite(ir.const_value(found.graph.node(0).inputs[1])).all()


def test_float32_alone_is_no_news():
    """No note, no change."""
    assert readable(graph("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"))[1] == []


# ---- batch ---------------------------------------------------------------------------------------

BATCHED = """g (float[{n},3,8,8] x) => (float[{n},5] y) {{ c = Conv(x, w) r = Relu(c) t = Reshape(r, target)
    k = Add(t, rows) y = MatMul(k, w2) }}"""


def batched(size):
    return proto(
        BATCHED.format(n=size),
        w=rand(4, 3, 3, 3),
        target=np.array([size, 144]),
        w2=rand(144, 5),
        rows=np.repeat(rand(1, 144), size, axis=0),
    )


@pytest.mark.parametrize("size", (1, 8))
def test_a_fixed_batch_is_freed(size, tmp_path):
    """Any number of samples calibrates it; a note says so."""
    found = quantized(batched(size), tmp_path, images(3, 8, 8, count=5))
    assert any("is made dynamic" in note for note in found.report.notes)
    assert found.session().run(None, {"x": images(3, 8, 8, count=3)})[0].shape == (3, 5)
    assert close(found)


def test_samples_that_depend_on_each_other(tmp_path):
    """A batch that is mixed cannot be taken apart: refused for 4, kept for 1."""
    text = "g (float[{n},6] x) => (float[{n},6] y) {{ m = ReduceMean<axes = [0]>(x) d = Sub(x, m) y = MatMul(d, w) }}"
    with pytest.raises(
        ModelError, match="made for batches of 4 and its samples cannot be separated"
    ):
        quantized(proto(text.format(n=4), w=rand(6, 6)), tmp_path, images(6))
    assert run_entry_passes(graph(text.format(n=1), w=rand(6, 6)))[1] == []


def test_a_model_for_one_sample_runs_on_many(tmp_path):
    """Squeeze of the batch axis: one sample at a time."""
    text = "g (float[1,3,6,6] x) => (float[1,4] y) { c = Conv(x, w) s = Squeeze(c, a) f = Reshape(s, t) y = MatMul(f, w2) }"
    model = proto(text, w=rand(2, 3, 3, 3), a=np.array([0]), t=np.array([1, 32]), w2=rand(32, 4))
    found = quantized(model, tmp_path, images(3, 6, 6))
    assert close(found)


def test_open_sizes_come_from_the_data(tmp_path):
    """Height and width unknown in the file; the report says what was taken."""
    text = """g (float[N,3,H,W] x) => (float[N,2] y) { c = Conv(x, w) g = GlobalAveragePool(c) s = Shape(g)
        z = Constant<value_int: int = 0>() n = Gather(s, z) u = Unsqueeze(n, a) r = Concat<axis = 0>(u, m) f = Reshape(g, r)
        y = MatMul(f, w2) }"""
    model = proto(text, w=rand(4, 3, 3, 3), a=np.array([0]), m=np.array([-1]), w2=rand(4, 2))
    found = quantized(model, tmp_path, images(3, 7, 9), platform="venus")
    assert any(
        "using [3, 7, 9] per sample from the calibration data" in note
        for note in found.report.notes
    )
    assert found.report.chip_ready
    with pytest.raises(
        LingerOnnxError, match="unknown dimensions: input '.*'; pass calibration data"
    ):
        quantized(model, tmp_path)
    with pytest.raises(LingerOnnxError, match="shape"):
        quantized(model, tmp_path, [{"x": images(3, 7, 9)}, {"x": images(3, 8, 9)}])


def test_an_output_without_batch_axis(tmp_path):
    """A mean over the batch among the outputs is named."""
    text = "g (float[N,4] x) => (float[N,4] y, float[A,4] z) { y = MatMul(x, w) z = ReduceMean<axes = [0]>(y) }"
    with pytest.raises(LingerOnnxError, match="output 'z' has no batch axis"):
        quantized(proto(text, w=rand(4, 4), k=rand(3, 4)), tmp_path, images(4))


# ---- control flow, functions, constants ----------------------------------------------------------


@pytest.mark.parametrize("taken", (0, 1))
def test_decided_if(taken):
    """The branch that is taken stays, its constants and outer tensors with it."""
    text = f"""g (float[N,4] x) => (float[N,4] y) {{ c = Constant<value = bool {{{taken}}}>() o = Relu(x)
        i = If(c) <then_branch = a () => (float[N,4] t) {{ k = Constant<value_float: float = 2.0>() t = Mul(o, k) }},
        else_branch = b () => (float[N,4] e) {{ k = Constant<value_float: float = 3.0>() e = Sub(o, k) }}> y = Exp(i) }}"""
    assert ops(readable(graph(text), whole=False)[0]) == [
        "Relu",
        "Mul" if taken else "Sub",
        "Identity",
        "Exp",
    ]


def test_if_on_a_known_shape():
    """What torch writes for squeeze: a branch on a size that the run shows."""
    text = """g (float[N,4,1] x) => (float[A,B] y) { s = Shape(x) two = Constant<value_int: int = 2>() one = Constant<value_int: int = 1>()
        d = Gather(s, two) c = Equal(d, one) y = If(c) <then_branch = a () => (float[A,B] t)
        { ax = Constant<value_ints = [2]>() t = Squeeze(x, ax) }, else_branch = b () => (float[A,B,C] e) { e = Identity(x) }> }"""
    assert ops(readable(graph(text))[0]) == ["Squeeze"]


def test_counted_loop():
    """Unrolled, the turn's number and all; scan outputs are stacked."""
    text = """g (float[N,4] x) => (float[N,4] y, float[3,N,4] z) { n = Constant<value_int: int = 3>() c = Constant<value = bool {1}>()
        y, z = Loop(n, c, x) <body = b (int64 i, bool p, float[N,4] v) => (bool q, float[N,4] u, float[N,4] o)
        { q = Identity(p) f = Cast<to = 1>(i) u = Add(v, f) o = Mul(u, v) }> }"""
    assert "Loop" not in ops(readable(graph(text))[0])


def test_local_functions():
    """Functions, nested and with attributes, are inlined; the result is quantized like the plain model."""
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18, "pkg" : 1]>
        g (float[N,4] x) => (float[N,3] y) { h = pkg.layer<slope = 0.1>(x, w) y = pkg.twice(h) }
        <domain: "pkg", opset_import: ["" : 18, "pkg" : 1]> layer <slope>(a, b) => (c)
        { m = MatMul(a, b) c = LeakyRelu<alpha: float = @slope>(m) }
        <domain: "pkg", opset_import: ["" : 18]> twice (a) => (b) { b = Add(a, a) }"""
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(rand(4, 3), "w"))
    assert ops(readable(ir.from_proto(made))[0]) == ["Linear", "LeakyRelu", "Add"]


def test_functions_of_another_opset():
    """A function written for another opset cannot be inlined as it is."""
    made = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 13, "pkg" : 1]> g (float[N,4] x) => (float[N,4] y) { y = pkg.f(x) }
        <domain: "pkg", opset_import: ["" : 18]> f (a) => (b) { b = Relu(a) }"""
    )
    with pytest.raises(ModelError, match="function f uses opset 18, but the model uses opset 13"):
        run_entry_passes(ir.from_proto(made))


CONSTANTS = (
    "value_float: float = 2.0",
    "value_floats = [1.0, 2.0, 3.0, 4.0]",
    "value = float[4] {1, 2, 3, 4}",
)


@pytest.mark.parametrize("value", CONSTANTS)
def test_constant_nodes(value, tmp_path):
    """Constants of every spelling fold into the layer."""
    text = f"g (float[N,4] x) => (float[N,4] y) {{ m = MatMul(x, w) k = Constant<{value}>() y = Mul(m, k) }}"
    assert ops(readable(graph(text, w=rand(4, 4)))[0]) == ["Linear"]


def test_sequences_that_are_known():
    """Split and stack through sequences, as unoptimised exports write them."""
    text = """g (float[N,6] x) => (float[N,6] y) { s = SplitToSequence<axis = 1>(x, sizes) a = SequenceAt(s, one)
        b = SequenceAt(s, zero) t = SequenceConstruct(a, b) y = ConcatFromSequence<axis = 1>(t) }"""
    arrays = {"sizes": np.array([2, 4]), "one": np.int64(1), "zero": np.int64(0)}
    assert ops(run_entry_passes(graph(text, **arrays))[0]) == [
        "Split",
        "Identity",
        "Identity",
        "Concat",
    ]
    readable(graph(text, **arrays))


def test_recurrent_zero_states():
    """Initial states that are zeros, computed from the batch size, are left out."""
    text = """g (float[N,6,4] x) => (float[T,D,N,5] y) { t = Transpose<perm = [1, 0, 2]>(x) s = Shape(x) n = Gather(s, i)
        c = Concat<axis = 0>(one, n, five) h = ConstantOfShape(c) e = Expand(z, c)
        y = LSTM<hidden_size = 5>(t, w, r, b, , h, e) }"""
    arrays = {
        "i": np.array([0]),
        "one": np.array([1]),
        "five": np.array([5]),
        "z": np.zeros(1, np.float32),
        "w": rand(1, 20, 4),
        "r": rand(1, 20, 5),
        "b": rand(1, 40),
    }
    found = check_pass_fires(
        graph(text, **arrays),
        drop_zero_states,
        2,
        ["Transpose", "Shape", "Gather", "Concat", "ConstantOfShape", "Expand", "LSTM"],
        atol=0,
    )
    assert [v.name for v in found.graph.node(-1).inputs if v is not None] == ["t", "w", "r", "b"]


# ---- activations and neutral arithmetic ----------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "left"),
    (
        ("y = Max(x, zero)", ["Relu"]),
        ("y = Max(zero, x)", ["Relu"]),
        ("m = Max(x, zero) y = Min(m, six)", ["Clip"]),
        ("m = Min(six, x) y = Relu(m)", ["Clip"]),
        ("y = Min(x, row)", ["Min"]),  # differs along the last axis
        ("y = Max(x, wide)", ["Max"]),  # widens the tensor
        ("y = Max(x, x)", ["Max"]),
        ("y = Max(x, zero, six)", ["Max"]),
        ("y = Min(x, nan)", ["Min"]),
    ),
)
def test_minimum_and_maximum(body, left):
    """Min and Max with one constant are Clip and Relu, with anything else they stay."""
    text = f"g (float[N,4] x) => (float[A,B] y) {{ {body} }}".replace(
        "[A,B]", "" if "wide" in body else "[A,B]"
    )
    model = graph(
        text,
        zero=np.float32(0),
        six=np.array([6], np.float32),
        row=rand(4),
        wide=rand(1, 1, 1),
        nan=np.float32("nan"),
    )
    assert ops(readable(model)[0]) == left


@pytest.mark.parametrize(
    "body",
    (
        "m = Mul(r, one)",
        "m = Mul(ones, r)",
        "m = Add(r, zero)",
        "m = Add(zero, r)",
        "m = Sub(r, zero)",
        "m = Div(r, one)",
        "m = Pow(r, one)",
        "m = Reshape(r, same)",
        "m = Slice(r, from, to)",
        "m = Clip(r)",
        "m = Flatten(r)",
        "m = Expand(r, one64)",
    ),
)
def test_neutral(body):
    """What changes nothing goes."""
    model = graph(
        f"g (float[N,4] x) => (float[N,4] y) {{ r = Exp(x) {body} y = Neg(m) }}",
        one=np.float32(1),
        zero=np.zeros(1, np.float32),
        ones=np.ones((1, 4), np.float32),
        same=np.array([-1, 4]),
        **{"from": np.array([0, 0]), "to": np.array([100, 9])},
        one64=np.array([1]),
    )
    check_pass_fires(model, drop_identity, 1, ["Exp", "Neg"], atol=0)


@pytest.mark.parametrize(
    "body",
    (
        "m = Sub(zero, r)",
        "m = Div(one, r)",
        "m = Pow(one, r)",
        "m = Mul(r, wide)",
        "m = Add(r, one)",
        "m = Slice(r, from, to, axes, back)",
    ),
)
def test_not_neutral(body):
    """Constants on the other side, or that widen."""
    model = graph(
        f"g (float[N,4] x) => (float y) {{ r = Exp(x) {body} y = Neg(m) }}",
        one=np.float32(1),
        zero=np.zeros(1, np.float32),
        wide=np.ones((1, 1, 1), np.float32),
        axes=np.array([1]),
        back=np.array([-1]),
        **{"from": np.array([3]), "to": np.array([-9])},
    )
    model.graph.outputs[0].shape = None
    check_pass_leaves_alone(model, drop_identity)


# ---- graphs of unusual shape ---------------------------------------------------------------------

UNUSUAL = {
    "one tensor read twice": "a = Add(x, x) m = Mul(a, a) c = Concat<axis = 1>(m, m) y = Conv(c, w6)",
    "an output that is read": "y = Conv(x, w) z = Relu(y)",
    "an input that is an output": "y = Conv(x, w)",
    "a weight of two layers": "a = Conv(x, w) b = Mul(a, ten) c = Conv(b, w) y = Add(b, b)",
    "an unused branch": "a = Exp(x) b = Exp(a) y = Conv(x, w)",
    "a scalar": "m = ReduceMax<keepdims = 0>(x) s = Sqrt(ten) c = Conv(x, w) y = Mul(c, s)",
}


@pytest.mark.parametrize("platform", ("generic", "venus"))
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual(name, platform, tmp_path):
    """Every one of them is quantized, and close."""
    outs = {
        "an output that is read": ", float[N,A,B,C] z",
        "an input that is an output": ", float[N,3,6,6] x",
    }
    text = f"g (float[N,3,6,6] x, float[N,2] unused) => (float[N,D,E,F] y{outs.get(name, '')}) {{ {UNUSUAL[name]} }}"
    model = proto(text, w=rand(3, 3, 1, 1), w6=rand(4, 6, 3, 3), ten=np.float32(10))
    found = quantized(
        model, tmp_path, {"x": images(3, 6, 6), "unused": images(2)}, platform=platform
    )
    assert found.report.integer_macs == 1
    assert close(found, 0.98)


def test_several_inputs_and_outputs(tmp_path):
    """Names and order of both stay."""
    text = """g (float[N,4] b, float[N,4] a) => (float[N,3] z, float[N,3] y) { p = MatMul(a, w) q = MatMul(b, w)
        y = Add(p, q) z = Relu(p) }"""
    found = quantized(
        proto(text, w=rand(4, 3)), tmp_path, {"a": images(4), "b": rand(8, 4, seed=3)}
    )
    assert [v.name for v in found.graph.graph.inputs] == ["b", "a"]
    assert [v.name for v in found.graph.graph.outputs] == ["z", "y"]
    assert close(found)


def test_a_single_number_between_integers(tmp_path):
    """A float node that makes a tensor of no axes stands between integer ones; constants of no axes too."""
    text = """g (float[N,4] x) => (float[N,4] y) { m = MatMul(x, w) k = Constant<value_float: float = 3.0>()
        s = ReduceMax<keepdims = 0>(m) e = CumSum(m, one) d = Mod<fmod = 1>(e, k) f = Sub(d, s) y = MatMul(f, w) }"""
    model = proto(text, w=rand(4, 4), one=np.int64(1))
    assert quantized(model, tmp_path, images(4, count=1)).report.outputs["y"]["cosine"] > 0.9


def test_a_fixed_batch_of_numbers_without_axes():
    """Arithmetic on tensors of no axes is no batch to take apart."""
    text = "g (float[2,4] x) => (float[2,4] y) { a = Add(one, one) m = ReduceSum<keepdims = 0>(x) n = Mul(m, a) y = Mul(x, n) }"
    with pytest.raises(ModelError, match="its samples cannot be separated"):
        run_entry_passes(graph(text, one=np.float32(1)))
