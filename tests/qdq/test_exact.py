"""Standard ONNX that gives the simulator's integers bit for bit, in onnxruntime with its own settings."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import lingeronnx as lo
from lingeronnx import cli
from lingeronnx.errors import ConfigError
from lingeronnx.graph import ir
from lingeronnx.qdq.exact.account import ExactFile
from lingeronnx.qdq.exact.amounts import Sum, of_sum
from lingeronnx.qdq.exact.functions import DOMAIN, function
from lingeronnx.qdq.exact.nodes import NotExact
from lingeronnx.qdq.exact.proof import random_feeds
from lingeronnx.qdq.exact.write import write_exact
from simulator import kernels as k
from simulator.channels import ChannelRescale
from simulator.fixed import Chain, Rescale
from simulator.kernels import softmax_entry
from simulator.machine import Call, Spec, compile
from tests.examples import examples, first
from tests.naive import curves as naive_curves
from tests.nets import NETS, Net, quantized
from tests.simulator.helpers import integers, run, triple
from tests.targets.luna.dialects.helpers import model

FREE = {"platform": "generic", "mode": "max-value", "weight_scales": "channel"}
MOVED = {**FREE, "activations": "asymmetric"}


def session(model):
    return ort.InferenceSession(ir.to_bytes(model), providers=["CPUExecutionProvider"])


def called(kernel, *arrays, opset=13):
    """What onnxruntime computes for the function of a kernel."""
    written = function(kernel, "f", [a.shape for a in arrays], [a.dtype for a in arrays], opset)
    inputs = [
        ir.Value(name=f"x{i}", shape=ir.Shape(a.shape), type=ir.tensor_type(a.dtype)) for i, a in enumerate(arrays)
    ]
    call = ir.node("f", inputs, {}, domain=DOMAIN, num_outputs=len(written.outputs))
    for number, value in enumerate(call.outputs):
        value.name = f"out{number}"
    graph = ir.Body(inputs, call.outputs, nodes=[call], opset_imports={"": opset, DOMAIN: 1}, name="g")
    model = ir.Graph(graph, ir_version=8, functions=[written])
    proto = ir.to_proto(model)
    for value, spec in zip(proto.graph.output, call.outputs, strict=True):
        value.name = str(spec.name)
        value.ClearField("type")
    content = proto.SerializeToString()
    found = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    return found.run(None, {f"x{i}": a for i, a in enumerate(arrays)})


# ---- the bound -------------------------------------------------------------------------------------------------------


def to_even(total, shift, half):
    """What QuantizeLinear makes of float32 (total + half) / 2^shift, as float32 adds and rounds; int8."""
    real = np.float32(np.float32(total) + np.float32(half)) / np.float32(2.0**shift)
    return np.clip(np.rint(real), -128, 127)


def half_up(total, shift):
    return np.clip((total + (1 << shift >> 1)) >> shift, -128, 127)


@examples(30)
@given(st.integers(0, 16), st.integers(-130, 130), st.integers(-3, 3), st.booleans())
def test_half_a_step_makes_ties_go_up(shift, count, near, tie):
    """Law: around every tie, and around every whole number, the amount gives the chip's integer and no other."""
    total = (count << shift) + (1 << shift >> 1 if tie else 0) + near
    amount = of_sum(Sum(1 << 22, 1.0), Rescale.from_shift(shift, 8), 2.0**-shift, 8)
    assert amount.value == (0.5 if shift else 0.0)
    assert to_even(total, shift, amount.value) == half_up(total, shift)


def test_the_largest_sums_saturate():
    """Beyond 2^23 half a step has no room any more, and at shifts up to 16 none is needed."""
    totals = np.concatenate([np.arange((1 << 24) - 5000, 1 << 24), np.arange((1 << 23) - 40000, (1 << 23) + 40000)])
    for total in (totals, -totals):
        for shift in (14, 15, 16):
            assert np.array_equal(to_even(total, shift, 0.5), half_up(total, shift))


def test_what_has_no_amount():
    """Both limits, from both sides; at a shift of 17 half a step is lost in a sum that decides."""
    assert of_sum(Sum((1 << 24) - 1, 1.0), Rescale.from_shift(16, 8), 2.0**-16, 8).value == 0.5
    with pytest.raises(NotExact, match="float32 counts to 16777216"):
        of_sum(Sum(1 << 24, 1.0), Rescale.from_shift(15, 8), 2.0**-15, 8)
    with pytest.raises(NotExact, match="its shift is 17"):
        of_sum(Sum(1 << 23, 1.0), Rescale.from_shift(17, 8), 2.0**-17, 8)
    assert (to_even(253 << 16, 17, 0.5), half_up(253 << 16, 17)) == (126, 127)
    with pytest.raises(NotExact, match="no power of two"):
        of_sum(Sum(100, 3.0), Rescale.from_ratio(1 / 3, 8), 1.0, 8)
    with pytest.raises(NotExact, match="not that of its scales"):
        of_sum(Sum(100, 8.0), Rescale.from_shift(2, 8), 1.0, 8)


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extremes", (False, True))
def test_layers(extremes):
    """Against the kernels, which have oracles of their own: full ranges, groups, strides, channels, free ratios."""
    rng = np.random.default_rng(3)
    weight, bias = integers(rng, (6, 2, 3, 3), extremes=extremes), rng.integers(-(2**20), 2**20, 6)
    x = integers(rng, (2, 4, 7, 6), extremes=extremes)
    free = Rescale.from_ratio(0.00123, 8, 5)
    channels = ChannelRescale(tuple(Rescale.from_ratio(0.0001 * (i + 1), 8) for i in range(6)))
    for rescale in (Rescale.from_shift(9, 8), free, channels, Rescale.from_shift(0, 32)):
        kernel = k.Conv(weight, bias, rescale, (2, 1), (1, 0, 1, 2), group=2, zero=-3, clip=None)
        assert np.array_equal(called(kernel, x)[0], run(kernel, x))
    flat, square = integers(rng, (3, 5, 40), extremes=extremes), integers(rng, (9, 40), extremes=extremes)
    for kind in (np.int8, np.int16):
        given_ = flat.astype(kind) * (1 if kind is np.int8 else 200)
        kernel = k.Linear(square, None, Rescale.from_ratio(0.0007, 16, 100), clip=(-3000, 3000))
        assert np.array_equal(called(kernel, given_)[0], run(kernel, given_))
    kernel = k.MatMul(Rescale.from_shift(10, 8))
    other = integers(rng, (3, 40, 4), extremes=extremes)
    assert np.array_equal(called(kernel, flat, other)[0], run(kernel, flat, other))


def test_elementwise_pools_and_tables():
    rng = np.random.default_rng(4)
    x, y = integers(rng, (2, 4, 6, 6)), integers(rng, (2, 4, 6, 6))
    pair = (
        k.AddShift(1, 3, sign=-1),
        k.AddScaled.from_ratios(0.3, 1.7, 8, 1, 7),
        k.Mul(Rescale.from_ratio(0.011, 8)),
        k.Centered(k.Mul(Rescale.from_ratio(0.004, 8)), (3, -100)),
        k.Concat(1, (Rescale.from_shift(1, 8), Rescale.from_ratio(1.3, 8))),
    )
    for kernel in pair:
        assert np.array_equal(called(kernel, x, y)[0], run(kernel, x, y)), kernel
    one = (
        k.ChannelAffine(integers(rng, (4,)), rng.integers(-9999, 9999, 4), Rescale.from_shift(6, 8), 2),
        k.Requant(Rescale.from_shift(-8, 16), saturate=False),
        k.Requant(Rescale.from_shift(-9, 16), saturate=False),
        k.Requant(Rescale.from_shift(2, 8)),
        k.AvgPool((3, 2), (1, 2), (1, 0, 1, 0), k.luna_average("venus", 6, 4, 4)),
        k.AvgPool((2, 2), (2, 2), None, k.luna_average("arcs", 4, 5, 4)),
        k.AvgPool((5, 5), None, None, k.luna_average("arcs", 25, 4, 6)),
        k.AvgPool((3, 3), None, None, Rescale.from_ratio(1.3 / 9, 8)),
        k.Table(integers(rng, (256,))),
        k.Glu(k.Glu.gates(4), Rescale.from_shift(15, 8), axis=1),
    )
    for kernel in one:
        assert np.array_equal(called(kernel, x)[0], run(kernel, x)), kernel
    wide = integers(rng, (3, 5), np.int16)
    table = k.Table(integers(rng, (65536,)))
    assert np.array_equal(called(table, wide)[0], run(table, wide))


@pytest.mark.parametrize("way", ("divide", "fused", "newton"))
def test_softmax(way):
    """Against the oracle in plain Python, each row; and over an axis in the middle."""
    rng = np.random.default_rng(5)
    x, rescale = np.concatenate([integers(rng, (6, 11)), np.full((1, 11), 127, np.int8)]), Rescale.from_shift(8, 8)
    for q in (1, 4, 7):
        kernel = k.Softmax(softmax_entry(2.0 ** (25 - q), 8), rescale, way=way)
        want = np.array([naive_curves.softmax(row.tolist(), 2 ** (25 - q), way, triple(rescale)) for row in x])
        assert np.array_equal(called(kernel, x)[0], want)
    deep = integers(rng, (2, 3, 4))
    for alone in (False, True):
        kernel = k.Softmax(softmax_entry(2.0**22, 8), rescale, axis=1, way=way, alone=alone)
        assert np.array_equal(called(kernel, deep)[0], run(kernel, deep))


def test_log_softmax_and_layer_norm():
    rng = np.random.default_rng(6)
    x, rescale = integers(rng, (5, 7)), Rescale.from_shift(11, 8)
    for way in ("divide", "fused"):
        kernel = k.LogSoftmax(softmax_entry(2.0**21, 8), rescale, way=way)
        want = np.array([naive_curves.log_softmax(row.tolist(), 2**21, way, triple(rescale)) for row in x])
        assert np.array_equal(called(kernel, x)[0], want)
    x = np.concatenate([integers(rng, (4, 8)), np.full((1, 8), 9, np.int8), integers(rng, (3, 8), extremes=True)])
    gamma, beta = rng.integers(-128, 128, 8), rng.integers(-(2**16), 2**16, 8)
    for fraction in (10, 15):
        rescale = Rescale.from_shift(fraction + 2, 8)
        kernel = k.LayerNorm(gamma, beta, 7, rescale, fraction=fraction)
        want = [naive_curves.layer_norm(row.tolist(), gamma, beta, 7, fraction, triple(rescale)) for row in x]
        assert np.array_equal(called(kernel, x)[0], np.array(want))
    deep = integers(rng, (2, 3, 4, 2))
    kernel = k.LayerNorm(gamma, beta, 0, Rescale.from_shift(11, 8), axes=2)
    assert np.array_equal(called(kernel, deep)[0], run(kernel, deep))


def recurrent(kind, gates, shift, units=3, **more):
    """A layer with weights over the whole range, and what goes in: x, states, cells."""
    rng = np.random.default_rng(7)
    weights = [integers(rng, (gates * units, n)) for n in (4, units)]
    biases = [rng.integers(-5000, 5000, gates * units) for _ in range(2)]
    how = Chain(Rescale.from_shift(0, 32), Rescale.from_shift(shift, 32))
    x, h = integers(rng, (3, 5, 4)), integers(rng, (3, 1, units))
    c = rng.integers(-(2**15), 2**15, (3, 1, units)).astype(np.int32)
    return kind(*weights, *biases, how, how, **more), x, h, c


def outputs(kernel, *arrays):
    """What the simulator computes for all outputs of a kernel."""
    names = [f"x{i}" for i in range(len(arrays))]
    feed = dict(zip(names, arrays, strict=True))
    wanted = tuple(f"y{i}" for i in range(len(kernel.kept)))
    specs = {name: Spec(a.shape, a.dtype) for name, a in feed.items()}
    return [array for _, array in compile([Call(kernel, tuple(names), wanted)], specs, keep=wanted).run(feed)]


@pytest.mark.parametrize("forward", (True, False))
@pytest.mark.parametrize(
    ("arithmetic", "chip"), (("q27", "arcs"), ("q27", "venusA"), ("wide", "arcs"), ("q11", "venus"))
)
def test_lstm(arithmetic, chip, forward):
    """Sequence, last state and last cell (packed on one chip); from the beginning and from given states."""
    out, shift = k.Lstm.output(arithmetic, 100.0 if arithmetic == "wide" else 64.0, 8), 6 if chip == "venus" else -12
    for given_, units in (((), 3), (("h", "c"), 4)):
        kernel, x, *states = recurrent(
            k.Lstm, 4, shift, units, rescale_o=out, arithmetic=arithmetic, table=chip, kept=(0, 1, 2), given=given_,
            forward=forward,
        )  # fmt: skip
        arrays = (x, *states[: len(given_)])
        for a, b in zip(called(kernel, *arrays), outputs(kernel, *arrays), strict=True):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
            assert len(np.unique(a)) > 3


@pytest.mark.parametrize("time_axis", (0, 1))
def test_gru(time_axis):
    """As it is defined, both places of the reset gate, and as the executor computes it."""
    out, kept = k.Gru.output(64.0, 8), {"kept": (0, 1), "time_axis": time_axis}
    made = [recurrent(k.Gru, 3, -12, rescale_o=out, reset_after=after, **kept) for after in (True, False)]
    for joined in (True, False):
        to_state = Rescale.from_shift(7, 8)
        made.append(recurrent(k.ExecutorGru, 3, 6, rescale_o=to_state, table="venus", joined=joined, **kept))
    for kernel, x, *_ in made:
        for a, b in zip(called(kernel, x), outputs(kernel, x), strict=True):
            assert np.array_equal(a, b)
            assert len(np.unique(a)) > 3


def test_what_has_no_function():
    kernel, x, *_ = recurrent(k.Lstm, 4, -12, rescale_o=k.Lstm.output("q27", 64.0, 8), given=("lengths",))
    with pytest.raises(NotExact, match="lengths"):
        called(kernel, x, np.array([1, 2, 3]))
    with pytest.raises(NotExact, match="16 bits"):
        called(k.Conv(np.ones((1, 1, 1), np.int8), None, Rescale.from_shift(0, 8)), np.ones((1, 1, 4), np.int16))
    with pytest.raises(NotExact, match="Mean has no form"):
        called(k.Mean(None, None, None, 0), np.ones((1, 1, 4), np.int8))


# ---- whole graphs ----------------------------------------------------------------------------------------------------


def equal(graph, found):
    """How many of a few samples give the same outputs, in onnxruntime with its own settings."""
    simulator, opened = lo.Session(graph), session(found)
    names = [value.name for value in opened.get_outputs()]
    feeds = [*random_feeds(graph, True, 3), *random_feeds(graph, False, 3)]
    return [
        all(np.array_equal(a, b) for a, b in zip(opened.run(names, f), simulator.run(names, f), strict=True))
        for f in feeds
    ]


@pytest.mark.parametrize("platform", first(1, ("venus", "arcs", "venusA")))
@pytest.mark.parametrize("net", first(3, NETS), ids=lambda net: net.__name__)
def test_nets_on_chips_need_no_functions(net, platform):
    """Law: convolutions, sums, pools, concatenations and linear layers are exact by amounts alone."""
    made = quantized(net(), platform=platform, effort="fast").graph
    found = write_exact(made, functions=False)
    onnx.checker.check_model(ir.to_proto(found.standard.graph), full_check=True)
    assert found.amounts
    whole = {why for _, why in found.approximate.values()}
    assert all("no power of two" in why and "divides" in why for why in whole)
    with_functions = write_exact(made, functions=True)
    assert not with_functions.approximate
    assert all(equal(made, with_functions.standard.graph))


@pytest.mark.parametrize("settings", (FREE, MOVED), ids=("free", "zero points"))
@pytest.mark.parametrize("net", first(2, NETS), ids=lambda net: net.__name__)
def test_free_scales_take_functions(net, settings):
    """Law: with scales of any size and zero points every integer is the simulator's, by functions."""
    made = quantized(net(), effort="fast", **settings).graph
    found = write_exact(made, functions=True)
    assert found.functions
    assert not found.approximate
    file = ExactFile(made, functions=True)
    assert file.equal
    assert write_exact(made, functions=False).approximate


@pytest.mark.parametrize("platform", first(1, ("venus", "arcs", "venusA")))
@pytest.mark.parametrize("name", ("lstm", "gru", "attention"))
def test_sequences(name, platform):
    """Recurrent layers and attention, every sample bit for bit, the batch open."""
    made = lo.quantize(f"models/digits_{name}.onnx", "models/digits_calib.npz", platform=platform, effort="fast")
    file = ExactFile(made.graph, functions=True)
    assert not file.written.approximate
    assert file.equal
    with np.load("models/digits_test.npz") as data:
        x = data["input"][:20]
    simulator, opened = lo.Session(made.graph), session(file.graph)
    (name,) = (value.name for value in opened.get_outputs())
    assert file.batch == ""
    assert np.array_equal(opened.run(None, {"input": x})[0], simulator.run([name], {"input": x})[0])


def test_full_weights_do_not_saturate():
    """Weights and inputs at the ends of their range: onnxruntime's integer kernels cut such sums on some processors."""
    net = Net(16, 6, 6)
    rng = np.random.default_rng(0)
    weight = np.where(rng.random((8, 16, 3, 3)) < 0.5, -1.0, 0.992).astype(np.float32)
    made = quantized(
        net.graph(net.node("Conv", "x", net.const(weight), out="y")), effort="fast", platform="venus"
    ).graph
    file = ExactFile(made, functions=True)
    assert file.equal
    assert sum(one.count for one in file.compared.values()) == 32


def test_large_sums_are_written_as_integers():
    """A linear layer whose sums leave float32: refused without functions, exact with them."""
    net = Net(2100, 1, 1)
    rng = np.random.default_rng(1)
    weight = np.sign(rng.standard_normal((2100, 3))).astype(np.float32)
    made = quantized(
        net.graph(net.node("MatMul", net.node("Flatten", "x"), net.const(weight), out="y")),
        effort="fast",
        platform="generic",
    ).graph
    [(operator, why)] = write_exact(made, functions=False).approximate.values()
    assert operator == "LinearInt"
    assert "float32 counts to 16777216" in why
    assert all(equal(made, write_exact(made, functions=True).standard.graph))


# ---- the command -----------------------------------------------------------------------------------------------------


def converted(path, *options):
    return CliRunner().invoke(cli.main, ["convert", str(path), "-o", str(path.with_name("exact.onnx")), *options])


def test_command(tmp_path):
    path = tmp_path / "quant.onnx"
    made = lo.quantize("models/digits_attention.onnx", "models/digits_calib.npz", platform="arcs", effort="fast")
    made.save(path)
    plain = converted(path, "--to", "qdq", "--exact")
    assert plain.exit_code == 0, plain.output
    assert "NOT exact" in plain.output
    assert "`--functions`" in plain.output
    whole = converted(path, "--to", "qdq", "--exact", "--functions", "--json")
    assert whole.exit_code == 0, whole.output
    notes = "\n".join(json.loads(whole.stdout)["notes"])
    assert "NOT exact" not in notes
    assert "16 of 16 samples like calibration data" in notes
    assert "SoftmaxInt" in notes
    onnx.checker.check_model(str(tmp_path / "exact.onnx"))
    for options, word in (
        (("--to", "thinker", "--exact"), "exact is for qdq"),
        (("--to", "qoperator", "--exact"), "exact is for qdq"),
        (("--to", "qdq", "--functions"), "not asked for"),
    ):
        done = converted(path, *options)
        assert done.exit_code == 1
        assert word in done.output
        assert len(done.output.strip().splitlines()) == 1


def test_call_refuses_what_the_command_refuses():
    with pytest.raises(ConfigError, match="exact is for qdq"):
        lo.convert("models/digits_cnn.onnx", "linger", exact=True)


def test_a_training_graph_is_named():
    """Its rounding is not the chip's; nothing is said to be exact."""
    x = {"x": np.zeros((1, 4), np.float32)}
    graph = model(
        [
            ("Quant", ["x"], ["q"], {"scale_x": 16.0, "data_bits": 8}, "linger"),
            ("Dequant", ["q"], ["y"], {"scale_o": 16.0}, "linger"),
        ],
        x,
        domain="linger",
    )
    found = write_exact(graph, functions=True)
    assert found.approximate == {"q": ("Quant", "it rounds as the training side does")}
