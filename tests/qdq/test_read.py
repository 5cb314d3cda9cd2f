"""Models that another tool has quantized: read with their scales, held as far as the platform holds
them.
"""

import json

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization as ort_quantization

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.interchange.qdq.import_model import import_quantized_model
from lingeronnx.ir import float_ops, ir
from lingeronnx.ir.plan import Affine, Rounding
from lingeronnx.runtime.runners import FloatRunner
from tests import nets
from tests.case_selection import mark_rest_slow
from tests.each import check_each
from tests.nets import NETS, quantized, samples
from tests.passes.helpers import ops


class Reader:
    """What onnxruntime asks of calibration data."""

    def __init__(self, feeds):
        self._items = iter(
            [{name: array[i : i + 1] for name, array in feeds.items()} for i in range(16)]
        )

    def get_next(self):
        return next(self._items, None)


def by_onnxruntime(
    graph, tmp_path, *, activations="QUInt8", form="QDQ", per_channel=False, **options
):
    """Return the path of a model that onnxruntime has quantized."""
    source, target = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    ir.save(graph, source)
    kind = ort_quantization.QuantType
    ort_quantization.quantize_static(
        source,
        target,
        Reader(samples(graph)),
        quant_format=ort_quantization.QuantFormat[form],
        per_channel=per_channel,
        activation_type=kind[activations],
        weight_type=kind.QInt8,
        extra_options=options,
    )
    return target


def text(body, opset=13, **constants):
    """Return a model in ONNX's text with constants."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]> {body}'
    )
    for name, array in constants.items():
        held = array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name)
        model.graph.initializer.append(held)
    return ir.from_proto(model)


# ---- onnxruntime's ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    (
        {},
        {"activations": "QInt8", "ActivationSymmetric": True},
        {"per_channel": True},
        {"form": "QOperator"},
        {"form": "QOperator", "per_channel": True, "activations": "QInt8"},
    ),
    ids=("u8s8", "s8s8", "channel", "qoperator", "qoperator-s8s8-channel"),
)
@pytest.mark.parametrize(
    "net",
    mark_rest_slow(1, (nets.plain, nets.residual, nets.branches)),
    ids=lambda net: net.__name__,
)
def test_what_onnxruntime_quantized(net, settings, tmp_path):
    """The float graph is the quantized one without rounding; the integers are near what onnxruntime
    computes.
    """
    path = by_onnxruntime(net(), tmp_path, **settings)
    found, feeds = import_quantized_model(ir.load(path)), samples(net(), 16)
    left = {node.op_type for node in found.graph.graph}
    assert not any(kind.startswith(("QLinear", "Quantize", "Dequantize", "QGemm")) for kind in left)
    name = str(found.graph.graph.outputs[0].name)
    want, real = (
        next(array for tensor, array, _ in FloatRunner(graph).run(feeds) if tensor == name)
        for graph in (ir.load(path), found.graph)
    )
    noise = ((want - real) ** 2).mean() / (want**2).mean()
    assert noise < 0.01
    made = lo.quantize(path, platform="generic")
    assert made.plan.mode == "max-value"
    assert all(
        taken.kept
        for taken in made.report.taken
        if taken.sqnr is not None or taken.bits_lost is None
    )
    got = made.session().run([name], feeds)[0]
    assert ((got - want) ** 2).mean() / (want**2).mean() < 0.02


def test_symmetric_scales_are_kept(tmp_path):
    """s8s8: every scale is the one in the file, whatever is calibrated besides."""
    path = by_onnxruntime(nets.plain(), tmp_path, activations="QInt8", ActivationSymmetric=True)
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    told = {
        n.input[0]: held[n.input[1]]
        for n in onnx.load(path).graph.node
        if n.op_type == "QuantizeLinear"
    }
    for calib in (None, samples(nets.plain(), 8)):
        made = lo.quantize(path, calib, platform="generic")
        assert len(told) >= 6
        for name, step in told.items():
            if name in made.plan.tensors and name != "y":
                assert made.plan.tensors[name].scale == pytest.approx(1 / float(step), rel=1e-6)
        assert [taken for taken in made.report.taken if not taken.kept] == []


def test_zero_points_stay_where_they_are_taken(tmp_path):
    """u8s8 on generic: all activations as they came; there and back gives the same again."""
    path = by_onnxruntime(nets.plain(), tmp_path)
    made = lo.quantize(path, platform="generic")
    assert [str(taken) for taken in made.report.taken if not taken.kept] == []
    assert {q.zero_point for q in made.plan.tensors.values()} - {0}
    lo.convert(made.graph, "qdq").save(tmp_path / "again.onnx")
    again = lo.quantize(tmp_path / "again.onnx", platform="generic")
    same = set(made.plan.tensors) & set(again.plan.tensors)
    assert {name: made.plan.tensors[name] for name in same} == {
        name: again.plan.tensors[name] for name in same
    }
    feeds = samples(nets.plain(), 4)
    np.testing.assert_array_equal(
        again.session().run(None, feeds)[0], made.session().run(None, feeds)[0]
    )


def test_a_chip_takes_powers_of_two(tmp_path):
    """On venus nothing can stay: what each change cost is told, and the graph is chip-ready."""
    path = by_onnxruntime(nets.residual(), tmp_path)
    made = lo.quantize(
        path, samples(nets.residual()), platform="venus", notes="full", requantize=False
    )
    assert made.report.chip_ready
    assert all(q.power_of_two for q in made.plan.tensors.values())
    taken = {t.tensor: t for t in made.report.taken}
    moved = [t for t in taken.values() if t.bits_lost is not None and not t.kept]
    assert moved
    for one in moved:
        assert one.bits_lost == pytest.approx(np.log2(one.scale / one.qparams.scale), abs=1e-6)
        assert any(f"'{one.tensor}': scale" in note for note in made.report.notes)
    weights = [t for t in taken.values() if t.bits_lost is None]
    assert weights
    assert all(t.sqnr > 25 for t in weights)
    body = made.report.to_dict()["scales_taken"]
    assert {entry["tensor"] for entry in body} == set(taken)
    json.dumps(body)


def test_a_relu_that_was_left_to_saturation_comes_back(tmp_path):
    """onnxruntime takes Relu out before an unsigned quantizer; without it negative numbers would go
    through.
    """
    path = by_onnxruntime(nets.plain(), tmp_path)
    assert "Relu" not in {node.op_type for node in onnx.load(path).graph.node}
    found = import_quantized_model(ir.load(path))
    assert "Relu" in {node.op_type for node in found.graph.graph}
    assert any("Relu restored" in note for note in found.notes)


def read_with_quantizer(body, **arrays):
    """Return the operators read from a graph whose output is quantized to uint8, which has no
    sign.
    """
    text = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[N,4,2,2] x) => (float[N,A,B,C] z) {{
        {body} q = QuantizeLinear(y, s, zero) z = DequantizeLinear(q, s, zero) }}"""
    model = onnx.parser.parse_model(text)
    for name, array in {"s": np.float32(0.1), "zero": np.uint8(0), **arrays}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return ops(import_quantized_model(ir.from_proto(model)).graph)


def test_a_sign_is_kept():
    """No second Relu is written behind what a Relu leaves without a sign."""

    def check(body):
        arrays = {"five": np.float32(5)} if "five" in body else {}
        op_types = read_with_quantizer(f"c = Neg(x) r = Relu(c) y = {body}", **arrays)
        assert op_types.count("Relu") == 1

    bodies = (
        "DepthToSpace<blocksize = 2>(r)",
        "Max(r, r)",
        "Sum(r, r)",
        "Div(r, five)",
        "Round(r)",
    )
    check_each(check, bodies)


def test_no_relu_follows_what_is_never_negative():
    """A quantizer without negative integers stands for a Relu behind anything else."""

    def check(op_type):
        assert read_with_quantizer(f"y = {op_type}(x)") == [op_type]

    op_types = float_ops.NONNEGATIVE_OPS & (
        float_ops.REDUCTION_KINDS.keys() | float_ops.SOFTMAX_FAMILY_OPS
    )
    check_each(check, sorted(op_types))


def test_requantize_takes_the_weights_alone(tmp_path):
    path = by_onnxruntime(nets.plain(), tmp_path)
    feeds = samples(nets.plain())
    made = lo.quantize(path, feeds, platform="generic", requantize=True)
    assert made.report.taken == ()
    assert made.plan.mode == "q-value"
    ir.save(import_quantized_model(ir.load(path)).graph, tmp_path / "weights.onnx")
    assert made.plan == lo.quantize(tmp_path / "weights.onnx", feeds, platform="generic").plan
    with pytest.raises(
        lo.ConfigError,
        match="chooses scales, but this quantized model already has them; pass requantize",
    ):
        lo.quantize(path, feeds, platform="generic", min_sqnr=20.0)
    with pytest.raises(lo.ConfigError, match="^requantize: the model has no QuantizeLinear"):
        lo.quantize(nets.plain(), requantize=True)


# ---- our own ---------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    (
        {"platform": "venus"},
        {"platform": "generic", "mode": "max-value", "weight_scales": "channel"},
    ),
    ids=("venus", "free"),
)
@pytest.mark.parametrize("net", mark_rest_slow(1, NETS), ids=lambda net: net.__name__)
def test_there_and_back(net, settings, tmp_path):
    """Law: qdq -> quantize gives the same scales, and the same integers; a file says nothing of
    what the host does.
    """
    made = quantized(net(), **settings, effort="fast")
    lo.convert(made.graph, "qdq").save(tmp_path / "q.onnx")
    again = lo.quantize(tmp_path / "q.onnx", platform=settings["platform"])
    same = set(made.plan.tensors) & set(again.plan.tensors)
    assert len(same) >= 0.8 * len(made.plan.tensors)
    assert {name: made.plan.tensors[name] for name in same} == {
        name: again.plan.tensors[name] for name in same
    }
    feeds = samples(net(), 4)
    for want, got in zip(
        made.session().run(None, feeds), again.session().run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(got, want)


# ---- layouts of others -----------------------------------------------------------------------------------------------

Q = "QuantizeLinear"


def few(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


STEP, ZERO8 = np.float32(0.05), np.int8(0)


def test_float_weights_behind_a_pair():
    """Quantization-aware training leaves weights in float, quantized in the graph, and transposed
    behind.
    """
    w = few(3, 4)
    steps = (np.abs(w).max(axis=1) / 127).astype(np.float32)
    graph = text(
        """g (float[N,4] x) => (float[N,3] y) {
            xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
            wq = QuantizeLinear<axis=0>(w, ws, wz)  wd = DequantizeLinear<axis=0>(wq, ws, wz)
            wt = Transpose<perm=[1,0]>(wd)  y = MatMul(xd, wt) }""",
        w=w,
        s=STEP,
        z=ZERO8,
        ws=steps,
        wz=np.zeros(3, np.int8),
    )
    found = import_quantized_model(graph)
    assert [node.op_type for node in found.graph.graph] == ["MatMul"]
    want = np.clip(np.rint(w / steps[:, None]), -128, 127) * steps[:, None]
    held = ir.const_value(found.graph.graph.node(0).inputs[1])
    np.testing.assert_allclose(held, want.T, rtol=1e-6)
    assert found.weights["wt"].axis == 1
    made = lo.quantize(graph, samples(graph), platform="generic")
    assert made.plan.tensors["wt"].scales == pytest.approx(1 / steps, rel=1e-6)


def test_batch_norm_behind_channels():
    """NNCF leaves batch normalisations; folded in, a weight keeps its integers at other scales of
    its channels.
    """
    w = few(3, 2, 1, 1)
    steps = (np.abs(w).max(axis=(1, 2, 3)) / 127).astype(np.float32)
    integers = np.clip(np.rint(w / steps[:, None, None, None]), -128, 127).astype(np.int8)
    one = [few(3, seed=i) for i in range(3)]
    graph = text(
        """g (float[N,2,4,4] x) => (float[N,3,4,4] y) {
            xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear<axis=0>(wq, ws)  c = Conv(xd, wd)  y = BatchNormalization(c, g, b, m, v) }""",
        s=STEP,
        z=ZERO8,
        wq=integers,
        ws=steps,
        g=np.abs(one[0]) + 1,
        b=one[1],
        m=one[2],
        v=np.abs(one[0]) + 0.5,
    )
    made = lo.quantize(graph, samples(graph), platform="generic")
    held = next(ir.const_value(n.inputs[1]) for n in made.graph.graph if len(n.inputs) > 1)
    np.testing.assert_array_equal(held, integers)


def test_integers_in_and_out():
    """A model that is fed integers goes on being fed them; an output in integers becomes real, with
    a note.
    """
    graph = text(
        """g (uint8[N,2,4,4] x) => (int8[N,3,4,4] y) {
            xd = DequantizeLinear(x, s, u)  c = Conv(xd, w)  y = QuantizeLinear(c, s, z) }""",
        s=STEP,
        u=np.uint8(128),
        z=ZERO8,
        w=few(3, 2, 1, 1),
    )
    found = import_quantized_model(graph)
    assert found.notes == ("output 'y' is float now; it was integer",)
    feed = {"x": np.random.default_rng(0).integers(0, 255, (3, 2, 4, 4)).astype(np.uint8)}
    [(_, got, _)] = FloatRunner(found.graph, {"y"}).run(feed)
    real = (feed["x"].astype(np.float32) - 128) * STEP
    want = np.einsum("nihw,oi->nohw", real, few(3, 2, 1, 1)[:, :, 0, 0])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert found.activations["y"] == Affine(20.0, rounding=Rounding.HALF_EVEN)


def test_channels_of_an_activation():
    """NNCF has a scale for each channel in front of depthwise layers: the coarsest is taken, and
    told.
    """
    graph = text(
        """g (float[N,3,4,4] x) => (float[N,3,4,4] y) {
            xq = QuantizeLinear<axis=1>(x, s, z)  xd = DequantizeLinear<axis=1>(xq, s, z)  y = Relu(xd) }""",
        s=np.array([0.5, 0.25, 0.125], np.float32),
        z=np.zeros(3, np.int8),
    )
    found = import_quantized_model(graph)
    assert found.activations["x"].scale == 2.0
    assert "one scale per channel (3)" in found.notes[0]


def test_wider_and_narrower_integers():
    """int16 activations stay on generic and become int8 of the same range on a chip; int4 weights
    are held.
    """
    values = np.arange(12) % 15 - 7
    graph = text(
        """g (float[N,4] x) => (float[N,3] y) {
            xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, ws)  y = Gemm<transB=1>(xd, wd) }""",
        opset=21,
        s=np.float32(2.0**-12),
        z=np.int16(0),
        ws=np.float32(0.25),
        w=helper.make_tensor("w", TensorProto.INT4, (3, 4), values.tolist()),
    )
    made = lo.quantize(graph, samples(graph), platform="generic")
    assert (made.plan.tensors["x"].scale, made.plan.tensors["x"].bits) == (4096.0, 16)
    assert made.plan.tensors["wd"].bits == 4
    chip = lo.quantize(graph, samples(graph), platform="venus")
    assert chip.plan.tensors["x"].bits == 8
    assert chip.plan.tensors["x"].scale <= 32.0


# ---- refusals --------------------------------------------------------------------------------------------------------

PAIR = "xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)"


@pytest.mark.parametrize(
    ("body", "says"),
    (
        (
            (
                "g (float[N,4] x) => (float[N,4] y) { q, a, b = DynamicQuantizeLinear(x)  y = "
                "DequantizeLinear(q, a, b) }"
            ),
            "DynamicQuantizeLinear .*dynamic quantization: activation scales are computed at run time",
        ),
        (
            (
                "g (float[N,4] x, float a) => (float[N,4] y) { q = QuantizeLinear(x, a)  y = "
                "DequantizeLinear(q, a) }"
            ),
            "QuantizeLinear .*its scale is computed at run time",
        ),
        (
            (
                f"g (float[N,4] x) => (float[N,4] y) {{ {PAIR}  m = Mul(xq, xq)  y = "
                "DequantizeLinear(m, s, z) }"
            ),
            "Mul .*computes with integers",
        ),
        (
            (
                "g (float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, s, z)  y = "
                "DequantizeLinear(q, t, z) }"
            ),
            "DequantizeLinear .*its scale differs from the QuantizeLinear that wrote",
        ),
        (
            (
                "g (float[N,4] x) => (float[N,4] y) { q = QuantizeLinear(x, n, z)  y = "
                "DequantizeLinear(q, n, z) }"
            ),
            "QuantizeLinear .*its scale is -1; it must be a number from 3e-39",
        ),
    ),
    ids=("dynamic", "computed", "integers", "other-scale", "negative"),
)
def test_refusals(body, says):
    graph = text(body, s=STEP, t=np.float32(0.1), n=np.float32(-1.0), z=ZERO8)
    with pytest.raises(lo.ModelError, match=says) as caught:
        lo.quantize(graph, samples(graph))
    assert "\n" not in str(caught.value)


def test_float8_is_refused():
    graph = text(
        (
            "g (float[N,4] x) => (float[N,4] y) { q = QuantizeLinear<output_dtype=17>(x, s)  y = "
            "DequantizeLinear(q, s) }"
        ),
        opset=21,
        s=STEP,
    )
    with pytest.raises(
        lo.ModelError, match="its integer type is float8e4m3fn; int4 to int32 are supported"
    ):
        import_quantized_model(graph)


# ---- commands --------------------------------------------------------------------------------------------------------


def run(*args):
    return CliRunner().invoke(cli.main, list(map(str, args)))


def test_commands(tmp_path):
    """quantize tells what became of the scales; convert makes an integer graph without data."""
    path, out = by_onnxruntime(nets.plain(), tmp_path), tmp_path / "out.onnx"
    done = run("quantize", path, "-o", out, "--platform", "generic", "--json")
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    assert body["mode"] == "max-value"
    assert any(entry["zero_point"] for entry in body["scales_taken"])
    assert any("imported scales:" in note for note in body["notes"])
    done = run(
        "convert", path, "-o", tmp_path / "a.onnx", "--to", "thinker", "--platform", "generic"
    )
    assert done.exit_code == 0, done.output
    assert lo.Session(tmp_path / "a.onnx").is_integer
    done = run("convert", path, "-o", tmp_path / "b.onnx", "--to", "linger")
    assert done.exit_code == 0, done.output
    done = run("convert", out, "-o", tmp_path / "c.onnx", "--to", "qdq", "--platform", "venus")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert "this graph has one" in done.output
    ir.save(nets.plain(), tmp_path / "float.onnx")
    done = run("quantize", tmp_path / "float.onnx", "--requantize", "-o", tmp_path / "d.onnx")
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert not (tmp_path / "d.onnx").exists()


@pytest.mark.parametrize("form", ("QDQ", "QOperator"))
def test_zero_points_are_kept_where_operators_take_them(form, tmp_path):
    """onnxruntime's uint8 activations on `generic`: the same ranges, 128 lower; around a Softmax
    made symmetric.
    """
    path = by_onnxruntime(nets.plain(), tmp_path, form=form)
    grids = import_quantized_model(ir.load(path)).activations
    result = quantized(ir.load(path), platform="generic", effort="fast")
    held = {name: q for name, q in result.plan.tensors.items() if name in grids}
    assert sum(q.zero_point != 0 for q in held.values()) >= 3
    assert any(q.zero_point == grids[name].signed_zero != 0 for name, q in held.items())
    net = nets.Net(4, 6, 6, seed=3)
    rows = net.node(
        "Reshape", net.conv("x", (6, 4, 3, 3)), net.const(np.array([0, 6, 16], np.int64))
    )
    soft = net.node("Softmax", rows, axis=-1)
    path = by_onnxruntime(
        net.graph(net.node("MatMul", soft, net.node("Transpose", soft, perm=[0, 2, 1]), out="y")),
        tmp_path,
    )
    made = quantized(ir.load(path), platform="generic", effort="fast")
    kinds = {node.op_type: node for node in made.graph.graph}
    assert "SoftmaxInt" in kinds
    assert not any(name.startswith("zero_point") for name in kinds["SoftmaxInt"].attributes)
